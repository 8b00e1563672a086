// Model files as they should be: whole, split, large; what is read is what ggml wrote.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "base/bytes.hpp"
#include "model/gguf_model.hpp"
#include "model/split_name.hpp"
#include "support/model_builder.hpp"
#include "support/raw_gguf.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::model {
namespace {

using namespace test_support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string_view text_of(byte_span bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Every tensor that was built is there, in order, with its shape and bytes.
void expect_same_tensors(const gguf_model& model, const model_builder& built) {
    ASSERT_EQ(model.tensors().size(), built.tensors().size());
    std::vector<std::string> files;
    for (const model_file& file : model.files())
        files.push_back(read_file(file.path));
    for (std::size_t i = 0; i < built.tensors().size(); ++i) {
        const built_tensor& expected = built.tensors()[i];
        const tensor_info& actual = model.tensors()[i];
        EXPECT_EQ(actual.name, expected.name);
        EXPECT_EQ(actual.type, expected.type);
        for (std::size_t d = 0; d < 4; ++d)
            EXPECT_EQ(actual.ne[d], d < expected.ne.size() ? expected.ne[d] : 1);
        ASSERT_TRUE(text_of(actual.data) == expected.data) << actual.name;
        EXPECT_EQ(actual.nb[3], expected.data.size());
        EXPECT_EQ(model.find_tensor(expected.name), &actual);
        // The offset and the pointer name the same bytes.
        ASSERT_TRUE(std::string_view(files[actual.file_index]).substr(actual.file_offset, actual.size_bytes()) ==
                    expected.data);
    }
}

TEST(gguf_model, reads_what_ggml_wrote_in_any_shape) {
    const temporary_directory directory;
    std::mt19937 random(1);
    for (int round = 0; round < 25; ++round) {
        const model_builder built = build_moe(random_moe_shape(random), random);
        built.write(directory / "model.gguf");
        const auto model = gguf_model::open(directory / "model.gguf");
        ASSERT_TRUE(model) << model.error().message;
        expect_same_tensors(*model, built);
        EXPECT_EQ(model->architecture(), built.architecture());
        EXPECT_EQ(model->files().size(), 1U);
        EXPECT_EQ(model->size_bytes(), std::filesystem::file_size(directory / "model.gguf"));
    }
}

TEST(gguf_model, opens_a_split_model_by_any_of_its_files) {
    const temporary_directory directory;
    std::mt19937 random(2);
    const model_builder built = build_moe({.n_layers = 5}, random);
    for (const bool metadata_only_first : {false, true}) {
        const auto paths = built.write_split(directory / "model", 11, metadata_only_first);
        for (const auto& path : paths) {
            const auto model = gguf_model::open(path);
            ASSERT_TRUE(model) << model.error().message;
            EXPECT_EQ(model->files().size(), 11U);
            EXPECT_EQ(model->path(), paths.front());
            expect_same_tensors(*model, built);
            EXPECT_EQ(model->integer("qwen3moe.expert_used_count"), 2);
        }
    }
}

TEST(gguf_model, opens_a_split_model_by_a_relative_name) {
    const temporary_directory directory;
    std::mt19937 random(3);
    build_moe({}, random).write_split(directory / "model", 2, false);
    const auto former = std::filesystem::current_path();
    std::filesystem::current_path(directory.path());
    const auto model = gguf_model::open("model-00002-of-00002.gguf");
    std::filesystem::current_path(former);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(model->path(), "model-00001-of-00002.gguf");
}

TEST(gguf_model, reads_thousands_of_tensors) {
    const temporary_directory directory;
    std::mt19937 random(4);
    model_builder built("llama");
    for (int i = 0; i < 6000; ++i)
        built.add_tensor(std::string("t").append(std::to_string(i)), GGML_TYPE_F32, {1 + i % 5}, random);
    built.write(directory / "model.gguf");
    const auto model = gguf_model::open(directory / "model.gguf");
    ASSERT_TRUE(model) << model.error().message;
    ASSERT_EQ(model->tensors().size(), 6000U);
    for (const built_tensor& tensor : built.tensors())
        ASSERT_TRUE(text_of(model->find_tensor(tensor.name)->data) == tensor.data);
    EXPECT_EQ(model->find_tensor("t6000"), nullptr);
}

TEST(gguf_model, keeps_its_bytes_when_it_moves) {
    const temporary_directory directory;
    write_file(directory / "a.gguf", small_moe().bytes());
    gguf_model model = gguf_model::open(directory / "a.gguf").value();
    const tensor_info* tensor = model.find_tensor("blk.1.ffn_up_exps.weight");
    const std::string before(text_of(tensor->data));
    const gguf_model moved = std::move(model);
    EXPECT_EQ(moved.find_tensor("blk.1.ffn_up_exps.weight"), tensor);
    std::filesystem::remove(directory / "a.gguf");
    EXPECT_TRUE(text_of(tensor->data) == before);
}

TEST(gguf_model, gives_metadata_by_kind) {
    const temporary_directory directory;
    raw_gguf file;
    file.add_text("general.architecture", "x").add_u16("u16", 65535).add_i32("i32", -5);
    file.add_raw("u8", kind_u8, "\x07").add_raw("bool", 7, "\x01");
    file.add_raw("u64", kind_u64, le64(~0ULL)).add_raw("i64", 11, le64(static_cast<std::uint64_t>(-9)));
    file.add_raw("f32", 6, le32(0x3fc00000)).add_raw("f64", 12, le64(0xbff0000000000000));
    file.add_u32_array("x.expert_used_count", {2, 8, 4}).add_u32_array("none", {});
    file.add_raw("texts", kind_array, le32(kind_string) + le64(1) + le64(1) + "a");
    file.add_text("nul", std::string_view("a\0b", 3));
    write_file(directory / "a.gguf", file.bytes());
    const gguf_model model = gguf_model::open(directory / "a.gguf").value();

    EXPECT_EQ(model.integer("u8"), 7);
    EXPECT_EQ(model.integer("u16"), 65535);
    EXPECT_EQ(model.integer("i32"), -5);
    EXPECT_EQ(model.integer("i64"), -9);
    EXPECT_EQ(model.integer("bool"), 1);
    EXPECT_EQ(model.integer("u64"), std::nullopt) << "does not fit";
    EXPECT_EQ(model.integer("f32"), std::nullopt);
    EXPECT_EQ(model.integer("nothing"), std::nullopt);
    EXPECT_EQ(model.real("f32"), 1.5);
    EXPECT_EQ(model.real("f64"), -1.0);
    EXPECT_EQ(model.real("u16"), std::nullopt);
    EXPECT_EQ(model.text("general.architecture"), "x");
    EXPECT_EQ(model.text("u16"), std::nullopt);
    EXPECT_EQ(model.text("texts"), std::nullopt);
    EXPECT_EQ(model.text("nul"), "a") << "as C has it";
    EXPECT_THAT(model.integers("x.expert_used_count").value(), ElementsAre(2, 8, 4));
    EXPECT_TRUE(model.integers("none").value().empty());
    EXPECT_EQ(model.integers("texts"), std::nullopt);
    EXPECT_EQ(model.integers("u16"), std::nullopt);
    EXPECT_EQ(model.hyper_parameter("expert_used_count"), 8);
    EXPECT_EQ(model.hyper_parameter("nothing"), std::nullopt);
    EXPECT_TRUE(model.has_key("texts"));
    EXPECT_FALSE(model.has_key("text"));
    ASSERT_EQ(model.metadata().size(), 13U);
    EXPECT_EQ(model.metadata()[1].key, "u16");
    EXPECT_TRUE(text_of(model.metadata()[1].value) == le32(kind_u16) + le16(65535));
}

TEST(gguf_model, accepts_a_file_without_padding_after_the_last_tensor) {
    const temporary_directory directory;
    raw_gguf file;
    file.add_f32("a", {3});
    std::string bytes = file.bytes();
    bytes.resize(bytes.size() - 20);
    write_file(directory / "a.gguf", bytes);
    EXPECT_TRUE(gguf_model::open(directory / "a.gguf"));
    bytes.resize(bytes.size() - 1);
    write_file(directory / "b.gguf", bytes);
    EXPECT_FALSE(gguf_model::open(directory / "b.gguf"));
}

// ggml's writer only knows 32, its reader knows all.
TEST(gguf_model, reads_any_alignment) {
    const temporary_directory directory;
    for (std::uint32_t alignment = 8; alignment <= 65'536; alignment *= 2) {
        raw_gguf file;
        file.alignment = alignment;
        file.add_u32("general.alignment", alignment).add_f32("a", {3}).add_f32("b", {50, 2}).add_f32("c", {1});
        write_file(directory / "a.gguf", file.bytes());
        const auto model = gguf_model::open(directory / "a.gguf");
        ASSERT_TRUE(model) << model.error().message;
        for (std::size_t i = 0; i < 3; ++i) {
            EXPECT_EQ(model->tensors()[i].file_offset % alignment, 0U);
            EXPECT_TRUE(text_of(model->tensors()[i].data) == file.tensors[i].data);
        }
    }
}

TEST(gguf_model, reads_version_2) {
    const temporary_directory directory;
    raw_gguf file = small_moe();
    file.version = 2;
    write_file(directory / "a.gguf", file.bytes());
    EXPECT_TRUE(gguf_model::open(directory / "a.gguf"));
}

TEST(split_name, takes_names_apart_and_makes_them) {
    const auto name = split_name::parse("Qwen3-00002-of-00013.gguf");
    ASSERT_TRUE(name);
    EXPECT_EQ(name->prefix, "Qwen3");
    EXPECT_EQ(name->number, 2U);
    EXPECT_EQ(name->count, 13U);
    EXPECT_EQ(name->part(13), "Qwen3-00013-of-00013.gguf");
    for (const char* wrong : {"", "a.gguf", "-00001-of-00002.gguf", "a-0001-of-00002.gguf", "a-00001-of-00002.GGUF",
                              "a-+0001-of-00002.gguf", "a-00001_of-00002.gguf", "a00001-of-00002.gguf"})
        EXPECT_FALSE(split_name::parse(wrong)) << wrong;
}

TEST(type_name, is_ggmls) {
    EXPECT_EQ(type_name(GGML_TYPE_Q4_K), "q4_K");
    EXPECT_EQ(type_name(4), "type 4") << "a type ggml took out";
    EXPECT_EQ(type_name(-1), "type -1");
    EXPECT_EQ(type_name(10'000), "type 10000");
}

}  // namespace
}  // namespace kvasir::model
