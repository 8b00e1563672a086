// Manifests: the same model has the same digest however it is cut into files, any other byte changes it; JSON
// from anybody is held against itself.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "model/manifest.hpp"
#include "support/model_builder.hpp"
#include "support/raw_gguf.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::model {
namespace {

using namespace test_support;
using ::testing::AllOf;
using ::testing::HasSubstr;
using json = nlohmann::json;

manifest manifest_of(const std::filesystem::path& path, unsigned n_threads = 2) {
    return manifest::compute(gguf_model::open(path).value(), {.n_threads = n_threads, .progress = {}}).value();
}

TEST(manifest, names_a_model_whatever_files_it_is_in) {
    const temporary_directory directory;
    std::mt19937 random(10);
    for (int round = 0; round < 8; ++round) {
        const model_builder built = build_moe(random_moe_shape(random), random);
        built.write(directory / "whole.gguf");
        const sha256_digest whole = manifest_of(directory / "whole.gguf").model_digest();
        for (const std::size_t n_files : {2U, 3U, 11U})
            for (const bool metadata_only_first : {false, true})
                EXPECT_EQ(
                    manifest_of(built.write_split(directory / "part", n_files, metadata_only_first)[1]).model_digest(),
                    whole);
    }
}

TEST(manifest, does_not_depend_on_threads_or_the_order_of_tensors) {
    const temporary_directory directory;
    std::mt19937 random(11);
    model_builder built = build_moe({}, random);
    built.write(directory / "a.gguf");
    const manifest first = manifest_of(directory / "a.gguf", 1);
    EXPECT_EQ(manifest_of(directory / "a.gguf", 7).to_json(), first.to_json());
    std::ranges::shuffle(built.tensors(), random);
    built.write(directory / "b.gguf");
    EXPECT_EQ(manifest_of(directory / "b.gguf").model_digest(), first.model_digest());
}

TEST(manifest, notices_every_changed_byte) {
    const temporary_directory directory;
    const std::string bytes = small_moe().bytes();
    write_file(directory / "m.gguf", bytes);
    const sha256_digest original = manifest_of(directory / "m.gguf").model_digest();
    const gguf_model model = gguf_model::open(directory / "m.gguf").value();
    // Which bytes carry meaning: all of the header but padding, and the tensors.
    std::vector<bool> means(bytes.size(), false);
    const std::size_t data_offset = model.tensors().front().file_offset;
    std::fill_n(means.begin(), data_offset, true);
    for (const tensor_info& tensor : model.tensors())
        std::fill_n(means.begin() + static_cast<std::ptrdiff_t>(tensor.file_offset), tensor.size_bytes(), true);
    std::size_t header_end = data_offset;
    while (bytes[header_end - 1] == '\0')
        means[--header_end] = false;
    std::size_t n_noticed = 0;
    for (std::size_t at = 0; at < bytes.size(); at += (at < data_offset ? 1 : 5)) {
        std::string changed = bytes;
        changed[at] = static_cast<char>(changed[at] ^ 0x20);
        write_file(directory / "changed.gguf", changed);
        const auto opened = gguf_model::open(directory / "changed.gguf");
        if (!opened) continue;  // refused: noticed even earlier
        const auto made = manifest::compute(*opened, {.n_threads = 1, .progress = {}});
        if (!made) continue;
        const sha256_digest digest = made->model_digest();
        // The version of the format is no part of the model, and one bit of it can be a valid other version.
        if (at < 8) continue;
        EXPECT_EQ(digest != original, means[at]) << "byte " << at;
        n_noticed += digest != original ? 1 : 0;
    }
    EXPECT_GT(n_noticed, 300U);
}

// The serialisation of docs/manifest.md, worked out by hand for a model small enough.
TEST(manifest, digest_is_the_documented_one) {
    const temporary_directory directory;
    raw_gguf file;
    file.add_u32("b", 7).add_u16("split.no", 0).add_text("general.architecture", "x").add_u32_array("a", {1, 2});
    file.add_f32("w", {2})
        .add_f32("blk.0.ffn_up_exps.weight", {1, 1, 2})
        .add_f32("blk.0.ffn_down_exps.weight", {1, 1, 2});
    write_file(directory / "m.gguf", file.bytes());
    const manifest made = manifest_of(directory / "m.gguf");

    const auto text = [](std::string_view value) { return le64(value.size()) + std::string(value); };
    const std::string metadata = text("a") + le32(9) + le32(4) + le64(2) + le32(1) + le32(2) +  //
                                 text("b") + le32(4) + le32(7) +                                //
                                 text("general.architecture") + le32(8) + text("x");
    const auto digest_bytes = [](std::string_view bytes) {
        const sha256_digest digest = sha256::of(as_bytes(bytes));
        return std::string(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
    };
    const std::string& w = file.tensors[0].data;
    const std::string& up = file.tensors[1].data;
    const std::string& down = file.tensors[2].data;
    const std::string contents =
        "kvasir.model.v1\n" + digest_bytes(metadata) + text("x") + le64(3) +                    //
        text("blk.0.ffn_down_exps.weight") + le64(0) + le64(1) + le64(1) + le64(2) + le64(1) +  //
        le64(2) + digest_bytes(down.substr(0, 4)) + digest_bytes(down.substr(4, 4)) +           //
        text("blk.0.ffn_up_exps.weight") + le64(0) + le64(1) + le64(1) + le64(2) + le64(1) +    //
        le64(2) + digest_bytes(up.substr(0, 4)) + digest_bytes(up.substr(4, 4)) +               //
        text("w") + le64(0) + le64(2) + le64(1) + le64(1) + le64(1) +                           //
        le64(1) + digest_bytes(w);
    EXPECT_EQ(made.model_digest(), sha256::of(as_bytes(contents)));
    EXPECT_EQ(made.find_tensor("blk.0.ffn_up_exps.weight")->slabs.size(), 2U);
    EXPECT_EQ(made.find_tensor("x"), nullptr);
}

TEST(manifest, survives_json) {
    const temporary_directory directory;
    std::mt19937 random(12);
    for (int round = 0; round < 10; ++round) {
        const auto path = build_moe(random_moe_shape(random), random).write_split(directory / "m", 2, false).front();
        const manifest made = manifest_of(path);
        ASSERT_TRUE(made.save(directory / "m.json"));
        const auto read = manifest::load(directory / "m.json");
        ASSERT_TRUE(read) << read.error().message;
        EXPECT_EQ(read->to_json(), made.to_json());
        EXPECT_EQ(read->model_digest(), made.model_digest());
        EXPECT_TRUE(read->describes(gguf_model::open(path).value()));
    }
}

TEST(manifest, can_be_cancelled) {
    const temporary_directory directory;
    write_file(directory / "m.gguf", small_moe().bytes());
    const auto made = manifest::compute(gguf_model::open(directory / "m.gguf").value(),
                                        {.n_threads = 2, .progress = [](auto, auto) { return false; }});
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, make_error_code(errc::cancelled));
}

TEST(manifest, reports_progress_to_the_end) {
    const temporary_directory directory;
    write_file(directory / "m.gguf", small_moe().bytes());
    const gguf_model model = gguf_model::open(directory / "m.gguf").value();
    std::uint64_t tensor_bytes = 0;
    for (const tensor_info& tensor : model.tensors())
        tensor_bytes += tensor.size_bytes();
    std::uint64_t last = 0;
    ASSERT_TRUE(
        manifest::compute(model, {.n_threads = 3, .progress = [&](std::uint64_t done_bytes, std::uint64_t total) {
                                      EXPECT_EQ(total, tensor_bytes);
                                      EXPECT_GE(done_bytes, last);
                                      last = done_bytes;
                                      return true;
                                  }}));
    EXPECT_EQ(last, tensor_bytes);
}

TEST(manifest, notices_that_a_file_changes_while_it_is_read) {
    const temporary_directory directory;
    write_file(directory / "m.gguf", small_moe().bytes());
    const gguf_model model = gguf_model::open(directory / "m.gguf").value();
    std::filesystem::last_write_time(directory / "m.gguf",
                                     std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
    const auto made = manifest::compute(model);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, make_error_code(errc::mismatch));
}

/// A valid manifest as JSON, to be spoilt.
class hostile_manifest : public ::testing::Test {
  protected:
    hostile_manifest() {
        const temporary_directory directory;
        write_file(directory / "m.gguf", small_moe().bytes());
        document_ = json::parse(manifest_of(directory / "m.gguf").to_json());
    }

    error refused(const json& document) { return refused_text(document.dump()); }
    error refused_text(std::string_view text) {
        const auto parsed = manifest::parse(text);
        EXPECT_FALSE(parsed) << text.substr(0, 200);
        return parsed ? error(errc::internal, "accepted") : parsed.error();
    }
    /// The document with the value at a JSON pointer replaced.
    json with(const char* pointer, const json& value) const {
        json changed = document_;
        changed[json::json_pointer(pointer)] = value;
        return changed;
    }
    json without(const char* member) const {
        json changed = document_;
        changed.erase(member);
        return changed;
    }

    json document_;
};

TEST_F(hostile_manifest, is_itself_valid_before_it_is_spoilt) {
    EXPECT_TRUE(manifest::parse(document_.dump()));
}

TEST_F(hostile_manifest, anything_covered_by_the_digest_cannot_be_changed) {
    const std::string other(64, 'a');
    for (const json& changed :
         {with("/model_digest", other), with("/metadata_digest", other), with("/architecture", "y"),
          with("/tensors/1/slabs/2", other), with("/tensors/8/name", "token_embd.weighu")}) {
        const error failure = refused(changed);
        EXPECT_EQ(failure.code, make_error_code(errc::mismatch)) << failure.message;
        EXPECT_THAT(failure.message, HasSubstr("altered or damaged"));
    }
    json fewer = document_;
    fewer["tensors"].erase(fewer["tensors"].size() - 1);
    EXPECT_EQ(refused(fewer).code, make_error_code(errc::mismatch));
}

TEST_F(hostile_manifest, what_is_malformed_is_refused) {
    const std::pair<json, const char*> spoilt[] = {
        {with("/version", 2), "format version 2"},
        {with("/version", -1), "\"version\""},
        {with("/version", "1"), "\"version\""},
        {with("/format", "other"), "no manifest"},
        {with("/format", 5), "no manifest"},
        {without("format"), "no manifest"},
        {without("version"), "\"version\" is missing"},
        {without("model_digest"), "\"model_digest\" is missing"},
        {without("tensors"), "\"tensors\" is missing"},
        {with("/model_digest", "zz"), "64 hexadecimal digits"},
        {with("/model_digest", nullptr), "64 hexadecimal digits"},
        {with("/architecture", std::string(300, 'x')), "at most 256"},
        {with("/files", json::object()), "\"files\" must be an array"},
        {with("/files", json::array()), "no files"},
        {with("/files/0", 3), "expected an object"},
        {with("/files/0/name", "../m.gguf"), "plain file name"},
        {with("/files/0/name", "/etc/passwd"), "plain file name"},
        {with("/files/0/name", ".."), "plain file name"},
        {with("/files/0/name", ""), "plain file name"},
        {with("/files/0/name", "a\nb"), "plain file name"},
        {with("/files/0/size_bytes", 100), "\"offset\""},
        {with("/files/0/size_bytes", -1), "\"size_bytes\""},
        {with("/files/0/size_bytes", 1.5), "\"size_bytes\""},
        {with("/files/0/size_bytes", ~0ULL), "\"size_bytes\""},
        {with("/tensors", "x"), "\"tensors\" must be an array"},
        {with("/tensors/0", json::array()), "expected an object"},
        {with("/tensors/0/name", ""), "printable"},
        {with("/tensors/8/name", "a"), "order of their names"},
        {with("/tensors/0/name", std::string(64, 'a')), "at most 63"},
        {with("/tensors/0/type", "q9_Z"), "does not know"},
        {with("/tensors/0/type", 0), "\"type\""},
        {with("/tensors/0/type", "q4_K"), "broken rows"},
        {with("/tensors/0/shape", {1, 2, 3, 4, 5}), "at most 4"},
        {with("/tensors/0/shape", {0}), "\"shape\""},
        {with("/tensors/0/shape", {-1}), "\"shape\""},
        {with("/tensors/0/shape", {1ULL << 40, 1ULL << 40}), "too large"},
        {with("/tensors/0/shape", {4, 4, 4000}), "does not fit into its file"},
        {with("/tensors/0/shape", {4, 4, 3}), "must have 3 \"slabs\""},
        {with("/tensors/0/file", 1), "\"file\""},
        {with("/tensors/0/offset", ~0ULL), "\"offset\""},
        {with("/tensors/0/slabs", json::array()), "must have 4 \"slabs\""},
        {with("/tensors/0/slabs/0", 5), "64 hexadecimal digits"},
    };
    for (const auto& [document, message] : spoilt)
        EXPECT_THAT(refused(document).message, HasSubstr(message));
}

TEST_F(hostile_manifest, what_is_no_json_is_refused) {
    for (const char* text :
         {"", " ", "{", "[1]", "null", "GGUF", "{\"format\":\"kvasir-manifest\"}", "{}{}", "\xff\xfe"})
        refused_text(text);
}

TEST_F(hostile_manifest, what_would_fill_the_memory_is_refused) {
    std::string deep = "{\"format\":";
    deep.append(1'000'000, '[');
    EXPECT_EQ(refused_text(deep).code, make_error_code(errc::limit_exceeded));
    std::string wide = "{\"format\":[";
    for (int i = 0; i < 300'000; ++i)
        wide += "[],";
    EXPECT_EQ(refused_text(wide + "0]}").code, make_error_code(errc::limit_exceeded));
    const std::string large = "{" + std::string(manifest::max_json_size_bytes, ' ') + "}";
    EXPECT_EQ(refused_text(large).code, make_error_code(errc::limit_exceeded));
}

TEST(manifest, file_that_cannot_be_read_is_named) {
    const temporary_directory directory;
    EXPECT_THAT(manifest::load(directory / "none.json").error().message, HasSubstr("none.json: No such file"));
    EXPECT_THAT(manifest::load(directory.path()).error().message, HasSubstr("not a regular file"));
    write_file(directory / "bad.json", "{}");
    EXPECT_THAT(manifest::load(directory / "bad.json").error().message, HasSubstr("bad.json"));
}

class stored_manifest : public ::testing::Test {
  protected:
    stored_manifest() {
        ::setenv("XDG_CACHE_HOME", (directory_ / "cache").c_str(), 1);
        write_file(path_, small_moe().bytes());
    }
    ~stored_manifest() override { ::unsetenv("XDG_CACHE_HOME"); }

    /// The manifest, and whether it had to be computed.
    std::pair<sha256_digest, bool> fetch() {
        bool computed = false;
        const auto got = manifest_for(gguf_model::open(path_).value(),
                                      {.n_threads = 1, .progress = [&](auto, auto) { return computed = true; }});
        return {got.value().model_digest(), computed};
    }

    temporary_directory directory_;
    const std::filesystem::path path_ = directory_ / "m.gguf";
    const std::filesystem::path sidecar_ = directory_ / "m.gguf.manifest.json";
};

TEST_F(stored_manifest, is_computed_once) {
    const auto [digest, computed] = fetch();
    EXPECT_TRUE(computed);
    EXPECT_TRUE(std::filesystem::exists(sidecar_));
    EXPECT_EQ(fetch(), std::pair(digest, false));
}

TEST_F(stored_manifest, is_made_again_when_the_model_changed) {
    const auto [digest, computed] = fetch();
    raw_gguf other = small_moe();
    other.tensors[2].data[0] = static_cast<char>(other.tensors[2].data[0] ^ 1);
    write_file(path_, other.bytes());
    std::filesystem::last_write_time(path_, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    const auto [changed_digest, recomputed] = fetch();
    EXPECT_TRUE(recomputed);
    EXPECT_NE(changed_digest, digest);
    EXPECT_EQ(fetch(), std::pair(changed_digest, false));
}

TEST_F(stored_manifest, is_made_again_when_it_is_damaged) {
    const auto [digest, computed] = fetch();
    std::string text = read_file(sidecar_);
    text[text.size() / 2] = static_cast<char>(text[text.size() / 2] ^ 1);
    write_file(sidecar_, text);
    EXPECT_EQ(fetch(), std::pair(digest, true));
    EXPECT_EQ(fetch(), std::pair(digest, false));
}

TEST_F(stored_manifest, goes_into_the_cache_where_it_cannot_lie_beside_the_model) {
    std::filesystem::create_directory(sidecar_);
    const auto [digest, computed] = fetch();
    EXPECT_TRUE(computed);
    EXPECT_TRUE(std::filesystem::is_directory(directory_ / "cache/kvasir/manifests"));
    EXPECT_EQ(fetch(), std::pair(digest, false));
    EXPECT_THAT(directory_.names(), ::testing::ElementsAre("cache", "m.gguf", "m.gguf.manifest.json"));
}

TEST_F(stored_manifest, may_have_no_place_at_all) {
    std::filesystem::create_directory(sidecar_);
    write_file(directory_ / "cache", "a file");
    const auto [digest, computed] = fetch();
    EXPECT_TRUE(computed);
    EXPECT_EQ(fetch(), std::pair(digest, true));
}

}  // namespace
}  // namespace kvasir::model
