// Model files as they should not be. Every one must be refused, with a message that names the file and what is wrong.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <functional>
#include <string>
#include <string_view>

#include "model/gguf_model.hpp"
#include "model/gguf_scan.hpp"
#include "support/model_builder.hpp"
#include "support/raw_gguf.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::model {
namespace {

using namespace test_support;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct hostile_file {
    const char* name;
    std::function<std::string()> bytes;
    const char* message;  ///< a part of what must be said
    errc kind = errc::invalid_input;
};

void PrintTo(const hostile_file& file, std::ostream* out) {
    *out << file.name;
}

/// small_moe() with one thing changed.
std::function<std::string()> with(std::function<void(raw_gguf&)> change) {
    return [change = std::move(change)] {
        raw_gguf file = small_moe();
        change(file);
        return file.bytes();
    };
}

const hostile_file hostile_files[] = {
    {"empty", [] { return std::string(); }, "not a GGUF file"},
    {"three_bytes", [] { return std::string("GGU"); }, "not a GGUF file"},
    {"other_magic", with([](raw_gguf& f) { f.magic = "GGML"; }), "not a GGUF file"},
    {"magic_only", [] { return std::string("GGUF"); }, "ends inside its first 24 bytes"},
    {"version_0", with([](raw_gguf& f) { f.version = 0; }), "big-endian", errc::unsupported},
    {"version_1", with([](raw_gguf& f) { f.version = 1; }), "GGUF version 1", errc::unsupported},
    {"version_4", with([](raw_gguf& f) { f.version = 4; }), "GGUF version 4", errc::unsupported},
    {"big_endian", with([](raw_gguf& f) { f.version = 0x03000000; }), "big-endian", errc::unsupported},
    {"negative_tensor_count", with([](raw_gguf& f) { f.n_tensors = ~0ULL; }), "claims 18446744073709551615 tensors",
     errc::limit_exceeded},
    {"many_tensors", with([](raw_gguf& f) { f.n_tensors = 40'000; }), "claims 40000 tensors", errc::limit_exceeded},
    {"more_tensors_than_there_are", with([](raw_gguf& f) { f.n_tensors = 30; }), "tensor 9"},
    {"many_keys", with([](raw_gguf& f) { f.n_keys = 1ULL << 62; }), "metadata keys (at most", errc::limit_exceeded},
    {"more_keys_than_there_are",
     [] {
         raw_gguf file;
         file.add_u32("a", 1).n_keys = 3;
         return file.bytes();
     },
     "ends inside metadata key 1"},
    {"same_key_twice", with([](raw_gguf& f) { f.add_text("general.architecture", "again"); }),
     "metadata key general.architecture is there twice"},
    {"empty_key", with([](raw_gguf& f) { f.add_u32("", 1); }), "metadata key 5 is empty"},
    {"nul_in_key", with([](raw_gguf& f) { f.add_u32(std::string_view("a\0b", 3), 1); }), "characters in it"},
    {"escape_in_key", with([](raw_gguf& f) { f.add_u32("a\033[2J", 1); }), "characters in it"},
    {"long_key", with([](raw_gguf& f) { f.add_u32(std::string(70'000, 'k'), 1); }), "claims 70000 bytes",
     errc::limit_exceeded},
    {"unknown_kind", with([](raw_gguf& f) { f.add_raw("a", 13, le64(0)); }), "metadata key a has unknown type 13"},
    {"negative_kind", with([](raw_gguf& f) { f.add_raw("a", ~0U, le64(0)); }), "unknown type 4294967295"},
    {"array_of_arrays", with([](raw_gguf& f) { f.add_raw("a", kind_array, le32(kind_array) + le64(1)); }),
     "unknown type 9"},
    {"endless_array", with([](raw_gguf& f) { f.add_raw("a", kind_array, le32(kind_u32) + le64(~0ULL)); }),
     "claims 18446744073709551615 elements", errc::limit_exceeded},
    {"long_array", with([](raw_gguf& f) { f.add_raw("a", kind_array, le32(kind_u64) + le64(10'000'000)); }),
     "ends inside metadata key a"},
    {"more_strings_than_there_are",
     [] {
         raw_gguf file;
         file.add_raw("a", kind_array, le32(kind_string) + le64(1000) + le64(0) + le64(0));
         return file.bytes();
     },
     "ends inside a metadata string"},
    {"too_many_strings",
     with([](raw_gguf& f) { f.add_raw("a", kind_array, le32(kind_string) + le64((16U << 20) + 1)); }),
     "claims 16777217 elements", errc::limit_exceeded},
    {"long_string", with([](raw_gguf& f) { f.add_raw("a", kind_string, le64(~0ULL)); }), "claims 18446744073709551615",
     errc::limit_exceeded},
    {"string_past_the_end", with([](raw_gguf& f) { f.add_raw("a", kind_string, le64(100'000)); }), "ends inside"},
    {"alignment_of_another_kind", with([](raw_gguf& f) { f.add_i32("general.alignment", 32); }), "must be an u32"},
    {"alignment_array", with([](raw_gguf& f) { f.add_u32_array("general.alignment", {32}); }), "must be an u32"},
    {"alignment_0", with([](raw_gguf& f) { f.add_u32("general.alignment", 0); }), "alignment 0"},
    {"alignment_1", with([](raw_gguf& f) { f.add_u32("general.alignment", 1); }), "alignment 1 "},
    {"alignment_24", with([](raw_gguf& f) { f.add_u32("general.alignment", 24); }), "alignment 24"},
    {"alignment_2_gib", with([](raw_gguf& f) { f.add_u32("general.alignment", 1U << 31); }), "alignment 2147483648"},
    {"same_tensor_twice", with([](raw_gguf& f) { f.tensors[2].name = f.tensors[1].name; }), "is there twice"},
    {"nameless_tensor", with([](raw_gguf& f) { f.tensors[2].name.clear(); }), "name of tensor 2 is empty"},
    {"line_end_in_tensor_name", with([](raw_gguf& f) { f.tensors[2].name = "a\nb"; }), "characters in it"},
    {"long_tensor_name", with([](raw_gguf& f) { f.tensors[2].name = std::string(64, 'n'); }), "claims 64 bytes",
     errc::limit_exceeded},
    {"endless_tensor_name", with([](raw_gguf& f) { f.tensors[2].name_size = ~0ULL; }), "claims 18446744073709551615",
     errc::limit_exceeded},
    {"five_dimensions", with([](raw_gguf& f) { f.tensors[2].n_dimensions = 5; }), "5 dimensions"},
    {"four_billion_dimensions", with([](raw_gguf& f) { f.tensors[2].n_dimensions = ~0U; }), "4294967295 dimensions"},
    {"no_elements", with([](raw_gguf& f) {
         f.tensors[2].ne = {4, 0, 4};
     }),
     "has no elements"},
    {"negative_dimension", with([](raw_gguf& f) { f.tensors[2].ne = {~0ULL}; }), "ends before the data of tensor"},
    {"overflowing_shape", with([](raw_gguf& f) {
         f.tensors[2].ne = {1ULL << 32, 1ULL << 32, 4};
     }),
     "ends before the data of tensor"},
    {"wrapping_shape", with([](raw_gguf& f) {
         f.tensors[2].ne = {1ULL << 31, 1ULL << 31, 4, 1};
     }),
     "ends before the data of tensor"},
    {"large_shape", with([](raw_gguf& f) {
         f.tensors[2].ne = {4, 4, 5'000};
     }),
     "ends before the data of tensor"},
    {"unknown_type", with([](raw_gguf& f) { f.tensors[2].type = 1000; }), "has type 1000", errc::unsupported},
    {"removed_type", with([](raw_gguf& f) { f.tensors[2].type = 4; }), "has type 4", errc::unsupported},
    {"negative_type", with([](raw_gguf& f) { f.tensors[2].type = ~0U; }), "has type 4294967295", errc::unsupported},
    {"broken_rows", with([](raw_gguf& f) { f.tensors[2].type = type_q4_k; }), "no multiple of q4_K's block of 256"},
    {"unaligned", with([](raw_gguf& f) { f.tensors[2].offset = 97; }), "not aligned to 32"},
    {"overlapping", with([](raw_gguf& f) { f.tensors[2].offset = 0; }), "overlaps"},
    {"hole", with([](raw_gguf& f) { f.tensors[2].offset = 4096; }), "starts at offset 4096 instead of"},
    {"offset_past_everything", with([](raw_gguf& f) { f.tensors[2].offset = ~31ULL; }), "instead of"},
    {"last_offset_past_everything", with([](raw_gguf& f) { f.tensors.back().offset = ~31ULL; }), "instead of"},
    {"half_the_data",
     [] {
         const std::string bytes = small_moe().bytes();
         return bytes.substr(0, bytes.size() / 2);
     },
     "ends before the data of tensor blk."},
    {"no_data",
     [] {
         raw_gguf file;
         file.add_f32("a", {4});
         return file.bytes().substr(0, 24 + 8 + 1 + 4 + 8 + 4 + 8);
     },
     "gap before its tensor data"},
};

class hostile_gguf : public ::testing::TestWithParam<hostile_file> {};

TEST_P(hostile_gguf, is_refused_by_name) {
    const temporary_directory directory;
    write_file(directory / "bad.gguf", GetParam().bytes());
    const auto model = gguf_model::open(directory / "bad.gguf");
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code, make_error_code(GetParam().kind)) << model.error().message;
    EXPECT_THAT(model.error().message,
                AllOf(HasSubstr("bad.gguf"), HasSubstr(GetParam().message), Not(HasSubstr("\n"))));
    EXPECT_LT(model.error().message.size(), 400U);
}

INSTANTIATE_TEST_SUITE_P(table, hostile_gguf, ::testing::ValuesIn(hostile_files),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(hostile_gguf_files, every_truncation_is_refused) {
    const temporary_directory directory;
    const std::string bytes = small_moe().bytes();
    write_file(directory / "bad.gguf", bytes);
    ASSERT_TRUE(gguf_model::open(directory / "bad.gguf"));
    for (std::size_t size = bytes.size(); size-- > 0;) {
        std::filesystem::resize_file(directory / "bad.gguf", size);
        ASSERT_FALSE(gguf_model::open(directory / "bad.gguf")) << size;
    }
}

TEST(hostile_gguf_files, header_without_end_is_cut_off_at_the_limit) {
    const temporary_directory directory;
    raw_gguf file;
    file.add_raw("a", kind_string, le64(gguf_limits::header_size_bytes));
    write_file(directory / "long.gguf", file.bytes());
    // Sparse: the string is there, and is too long.
    std::filesystem::resize_file(directory / "long.gguf", gguf_limits::header_size_bytes + 4096);
    const auto refused = gguf_model::open(directory / "long.gguf");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, make_error_code(errc::limit_exceeded));
    EXPECT_THAT(refused.error().message, HasSubstr("header is larger than 128 MiB"));
}

TEST(hostile_gguf_files, what_is_no_file_is_refused) {
    const temporary_directory directory;
    EXPECT_THAT(gguf_model::open(directory / "none.gguf").error().message, HasSubstr("No such file"));
    EXPECT_THAT(gguf_model::open(directory.path()).error().message, HasSubstr("is a directory"));
    EXPECT_THAT(gguf_model::open("").error().message, HasSubstr("No such file"));
    ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
    EXPECT_THAT(gguf_model::open(directory / "pipe").error().message, HasSubstr("not a regular file"))
        << "and does not wait for somebody to write into the pipe";
}

class hostile_split : public ::testing::Test {
  protected:
    hostile_split() {
        std::mt19937 random(5);
        paths_ = build_moe({}, random).write_split(directory_ / "m", 3, false);
    }

    error refused(const std::filesystem::path& path) {
        const auto model = gguf_model::open(path);
        EXPECT_FALSE(model);
        return model ? error(errc::internal, "") : model.error();
    }

    temporary_directory directory_;
    std::vector<std::filesystem::path> paths_;
};

TEST_F(hostile_split, missing_part_is_named) {
    std::filesystem::remove(paths_[1]);
    EXPECT_THAT(refused(paths_[2]).message, AllOf(HasSubstr("3 files"), HasSubstr("m-00002-of-00003.gguf")));
}

TEST_F(hostile_split, renamed_part_is_explained) {
    std::filesystem::rename(paths_[0], directory_ / "renamed.gguf");
    EXPECT_THAT(refused(directory_ / "renamed.gguf").message, HasSubstr("name the files <model>-00001-of-00003.gguf"));
}

TEST_F(hostile_split, swapped_parts_are_refused) {
    std::filesystem::rename(paths_[1], directory_ / "tmp");
    std::filesystem::rename(paths_[2], paths_[1]);
    std::filesystem::rename(directory_ / "tmp", paths_[2]);
    EXPECT_THAT(refused(paths_[0]).message, HasSubstr("does not say that it is file 2 of 3"));
    EXPECT_THAT(refused(paths_[1]).message, HasSubstr("name does not say so"));
}

TEST_F(hostile_split, part_that_is_no_model_is_refused) {
    write_file(paths_[2], "hello");
    EXPECT_THAT(refused(paths_[0]).message, HasSubstr("m-00003-of-00003.gguf: not a GGUF file"));
}

TEST_F(hostile_split, part_of_another_model_is_refused_when_tensors_repeat_or_lack) {
    raw_gguf other;
    other.add_u16("split.no", 2).add_u16("split.count", 3).add_f32("token_embd.weight", {4});
    write_file(paths_[2], other.bytes());
    EXPECT_THAT(refused(paths_[0]).message, HasSubstr("its 3 files hold"));
    raw_gguf first;
    first.add_u16("split.no", 0).add_u16("split.count", 2).add_f32("a", {4});
    raw_gguf second;
    second.add_u16("split.no", 1).add_u16("split.count", 2).add_f32("a", {4});
    write_file(directory_ / "d-00001-of-00002.gguf", first.bytes());
    write_file(directory_ / "d-00002-of-00002.gguf", second.bytes());
    EXPECT_THAT(refused(directory_ / "d-00001-of-00002.gguf").message, HasSubstr("tensor a is in an earlier file"));
}

TEST_F(hostile_split, absurd_counts_are_refused) {
    const auto write_part = [this](std::uint16_t number, std::uint16_t count) {
        raw_gguf part;
        part.add_u16("split.no", number).add_u16("split.count", count);
        write_file(directory_ / "x-00001-of-65535.gguf", part.bytes());
        return refused(directory_ / "x-00001-of-65535.gguf");
    };
    EXPECT_EQ(write_part(0, 65535).code, make_error_code(errc::limit_exceeded));
    EXPECT_EQ(write_part(9, 3).code, make_error_code(errc::invalid_input));
    raw_gguf negative;
    negative.add_i32("split.count", 2).add_i32("split.no", -1);
    write_file(directory_ / "n-00001-of-00002.gguf", negative.bytes());
    EXPECT_EQ(refused(directory_ / "n-00001-of-00002.gguf").code, make_error_code(errc::invalid_input));
}

}  // namespace
}  // namespace kvasir::model
