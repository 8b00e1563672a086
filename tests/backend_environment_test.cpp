// The workers that a plug-in is told of by environment variables and files: what is taken, and what is refused with a
// sentence that helps.
#include <gmock/gmock.h>

#include <map>

#include "backend/backend.hpp"
#include "model/manifest.hpp"
#include "support/model_builder.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::backend {
namespace {

using test_support::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using variables = std::map<std::string, std::string>;

class workers_from_environment_test : public ::testing::Test {
  protected:
    workers_from_environment_test() {
        std::mt19937 random(71);
        test_support::build_moe({}, random).write(directory_ / "model.gguf");
        const auto model = model::gguf_model::open(directory_ / "model.gguf");
        const auto manifest = model::manifest::compute(*model);
        EXPECT_TRUE(manifest->save(directory_ / "good.json"));
        digest_ = manifest->model_digest();
    }

    std::string path(const std::string& name) const { return (directory_ / name).string(); }
    std::string write(const std::string& name, const std::string& text) const {
        write_file(directory_ / name, text);
        return path(name);
    }
    /// A KVASIR_CONFIG file with this text, in which MANIFEST stands for the manifest's path.
    result<swarm::options> read_config(std::string text) const {
        const std::size_t at = text.find("MANIFEST");
        if (at != std::string::npos) text.replace(at, 8, path("good.json"));
        return read({{"KVASIR_CONFIG", write("config.json", text)}});
    }
    static result<swarm::options> read(const variables& set) {
        return workers_from_environment([&set](const char* name) {
            const auto found = set.find(name);
            return found == set.end() ? nullptr : found->second.c_str();
        });
    }
    void expect_workers(const result<swarm::options>& chosen, const std::vector<std::string>& expected) const {
        ASSERT_TRUE(chosen) << chosen.error().message;
        std::vector<std::string> texts;
        for (const net::endpoint& worker : chosen->workers)
            texts.push_back(worker.text());
        EXPECT_EQ(texts, expected);
        EXPECT_TRUE(expected.empty() || chosen->model == digest_);
    }
    static void expect_error(const result<swarm::options>& chosen, errc code, const std::string& part) {
        ASSERT_TRUE(chosen.has_error()) << "accepted; expected: " << part;
        EXPECT_EQ(chosen.error().code, code) << chosen.error().message;
        EXPECT_THAT(chosen.error().message, HasSubstr(part));
        EXPECT_THAT(chosen.error().message, ::testing::Not(HasSubstr("\n")));
    }

    test_support::temporary_directory directory_;
    sha256_digest digest_;
};

TEST_F(workers_from_environment_test, takes_lists_of_addresses) {
    const std::string manifest = path("good.json");
    const auto listed = [&](const std::string& text) {
        return read({{"KVASIR_WORKERS", text}, {"KVASIR_MANIFEST", manifest}});
    };
    expect_workers(read({}), {});
    expect_workers(listed(""), {});
    expect_workers(listed(","), {});
    expect_workers(read({{"KVASIR_MANIFEST", path("missing.json")}}), {});
    expect_workers(listed("a:1"), {"a:1"});
    expect_workers(listed("a:1,b.example:22,[::1]:333"), {"a:1", "b.example:22", "[::1]:333"});
    expect_workers(listed(",a:1,,b:2,"), {"a:1", "b:2"});
    expect_workers(listed("a:1, b:2 ,\tc:3"), {"a:1", "b:2", "c:3"});
}

TEST_F(workers_from_environment_test, refuses_bad_lists) {
    const std::string manifest = path("good.json");
    for (const char* bad : {"a", "a:", "a:x", "a:65536", "a:-1", ":1", "::1:1", "a:1,b", "a:1 b:2"})
        expect_error(read({{"KVASIR_WORKERS", bad}, {"KVASIR_MANIFEST", manifest}}), errc::invalid_input,
                     "the list of workers");
    expect_error(read({{"KVASIR_WORKERS", "a:1"}}), errc::invalid_input, "KVASIR_MANIFEST");
    EXPECT_TRUE(read({{"KVASIR_WORKERS", "a:1"}, {"KVASIR_MANIFEST", path("missing.json")}}).has_error());
    expect_error(read({{"KVASIR_WORKERS", "a:1"}, {"KVASIR_MANIFEST", write("bad.json", "{}")}}), errc::invalid_input,
                 "KVASIR_MANIFEST");
    std::string many;
    for (int i = 0; i < 4097; ++i)
        many += "a:1,";
    expect_error(read({{"KVASIR_WORKERS", many}, {"KVASIR_MANIFEST", manifest}}), errc::limit_exceeded, "4097");
}

TEST_F(workers_from_environment_test, takes_a_file_before_the_variables) {
    expect_workers(read_config(R"({"workers": [], "manifest": ""})"), {});
    expect_workers(read_config(R"({"workers": ["a:1"], "manifest": "MANIFEST"})"), {"a:1"});
    expect_workers(read_config(R"({"workers": ["a:1", "[::1]:2"], "manifest": "MANIFEST", "note": 1})"),
                   {"a:1", "[::1]:2"});
    const std::string config =
        write("config.json", R"({"workers": ["a:1"], "manifest": ")" + path("good.json") + R"("})");
    expect_workers(read({{"KVASIR_CONFIG", config}, {"KVASIR_WORKERS", "b:2"}, {"KVASIR_MANIFEST", "nowhere"}}),
                   {"a:1"});
}

TEST_F(workers_from_environment_test, refuses_bad_files) {
    for (const char* bad :
         {"", "[]", "{", "null", R"({"workers": ["a:1"]})", R"({"manifest": "MANIFEST"})",
          R"({"workers": "a:1", "manifest": "MANIFEST"})", R"({"workers": [1], "manifest": "MANIFEST"})",
          R"({"workers": ["a:1"], "manifest": 1})", "\xff\xfe", R"({"workers": ["a:1"], "manifest": "MANIFEST"} x)"})
        expect_error(read_config(bad), errc::invalid_input, "config.json");
    expect_error(read_config(R"({"workers": ["a"], "manifest": "MANIFEST"})"), errc::invalid_input, "\"a\"");
    expect_error(read_config(R"({"workers": ["a:1"], "manifest": ""})"), errc::invalid_input, "manifest");
    expect_error(read_config(std::string(1'000'000, '[')), errc::invalid_input, "config.json");
    expect_error(read_config(std::string(1'100'000, ' ')), errc::limit_exceeded, "1 MiB");
    EXPECT_TRUE(read({{"KVASIR_CONFIG", path("missing.json")}}).has_error());
    EXPECT_THAT(read({{"KVASIR_CONFIG", path("missing.json")}}).error().message, HasSubstr("KVASIR_CONFIG"));
    EXPECT_TRUE(read({{"KVASIR_CONFIG", directory_.path().string()}}).has_error());
}

}  // namespace
}  // namespace kvasir::backend
