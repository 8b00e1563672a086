// libggml-kvasir.so in front of every kind of program: it gives its registry to one with the ggml it was built for, and
// tells any other in one line why not.
#include <gmock/gmock.h>

#include <filesystem>

#include "support/run_program.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::test_support {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

program_result host(const std::vector<std::string>& libraries, const std::string& plugin = KVASIR_PLUGIN,
                    const std::vector<std::string>& environment = {}) {
    std::vector<std::string> words = {PLUGIN_HOST, plugin};
    words.insert(words.end(), libraries.begin(), libraries.end());
    program_result done = run_program(words, environment);
    EXPECT_EQ(done.status, 0) << done.err;
    return done;
}

void expect_refusal(const program_result& done, const std::string& why) {
    EXPECT_THAT(done.out, HasSubstr("registry: none"));
    EXPECT_THAT(done.err, AllOf(HasSubstr("kvasir: the plug-in cannot be used: "), HasSubstr(why)));
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
}

TEST(loader, gives_its_registry_to_the_right_ggml) {
    const program_result visible = host({"public:" GGML});
    EXPECT_THAT(visible.out, HasSubstr("registry: KVASIR"));
    EXPECT_THAT(visible.err, IsEmpty());
}

TEST(loader, finds_a_ggml_that_was_loaded_privately) {
    const program_result hidden = host({"private:" GGML});
    EXPECT_THAT(hidden.out, HasSubstr("registry: KVASIR"));
    EXPECT_THAT(hidden.err, IsEmpty());
}

TEST(loader, refuses_a_program_without_ggml) {
    expect_refusal(host({}), "this program shows no shared ggml library");
}

TEST(loader, refuses_another_version_and_leaves_it_as_it_is) {
    const std::string why = "it was built for ggml " GGML_VERSION_HERE " and this program has ggml 9.9.9";
    expect_refusal(host({"public:" FAKE_GGML_OTHER}), why);
    const program_result hidden = host({"private:" FAKE_GGML_OTHER});
    expect_refusal(hidden, why);
    EXPECT_THAT(hidden.out, HasSubstr("ggml is private")) << "a program that cannot use it was changed";
}

TEST(loader, refuses_a_ggml_that_lacks_what_it_needs) {
    expect_refusal(host({"private:" FAKE_GGML_HOLLOW}), "loading libkvasir-backend.so failed: ");
}

TEST(loader, refuses_without_its_other_half) {
    const temporary_directory directory;
    fs::copy_file(KVASIR_PLUGIN, directory / "libggml-kvasir.so");
    const std::string alone = (directory / "libggml-kvasir.so").string();
    expect_refusal(host({"public:" GGML}, alone), "loading libkvasir-backend.so failed: ");
    fs::copy_file(FAKE_GGML_OTHER, directory / "libkvasir-backend.so");
    expect_refusal(host({"public:" GGML}, alone), "is not Kvasir's backend");
}

TEST(loader, says_what_is_wrong_with_the_environment_and_goes_on) {
    const program_result done = host({"public:" GGML}, KVASIR_PLUGIN, {"KVASIR_WORKERS=nowhere"});
    EXPECT_THAT(done.out, HasSubstr("registry: KVASIR"));
    EXPECT_THAT(done.err, AllOf(HasSubstr("\"nowhere\" is no address"), HasSubstr("all experts are computed here")));
}

}  // namespace
}  // namespace kvasir::test_support
