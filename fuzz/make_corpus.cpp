// Writes the corpora of the fuzz targets gguf, manifest and selection: make_fuzz_corpus fuzz/corpus
//
// Run it again when a format changes. Files are small and each shows one thing; the mutations do the rest.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>

#include "model/model.hpp"
#include "support/raw_gguf.hpp"

namespace {

using namespace kvasir;
using namespace kvasir::test_support;

void write(const std::filesystem::path& path, std::string_view bytes) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

raw_gguf split_part(std::uint16_t number, std::uint16_t count) {
    raw_gguf part;
    part.add_u16("split.no", number).add_u16("split.count", count).add_i32("split.tensors.count", 3);
    return part;
}

std::string split_model() {
    raw_gguf first = split_part(0, 3);
    first.add_text("general.architecture", "mixtral").add_u32("mixtral.expert_used_count", 1);
    raw_gguf second = split_part(1, 3);
    second.add_f32("blk.0.ffn_gate_up_exps.weight", {4, 8, 2});
    raw_gguf third = split_part(2, 3);
    third.add_f32("blk.0.ffn_down_exps.weight", {4, 4, 2}).add_f32("blk.0.ffn_down_exps.scale", {2});
    constexpr std::string_view separator = "\n--next file--\n";
    std::string bytes = first.bytes();
    bytes += separator;
    bytes += second.bytes();
    bytes += separator;
    bytes += third.bytes();
    return bytes;
}

raw_gguf with_biases() {
    raw_gguf file;
    file.add_text("general.architecture", "gpt-oss").add_u32("general.alignment", 64);
    file.alignment = 64;
    file.add_f32("blk.0.ffn_up_exps.weight", {4, 4, 3}).add_f32("blk.0.ffn_up_exps.bias", {4, 3});
    file.add_f32("blk.0.ffn_gate_exps.weight", {4, 4, 3}).add_f32("blk.0.ffn_gate_exps.bias", {4, 3});
    file.add_f32("blk.0.ffn_down_exps.weight", {4, 4, 3}).add_f32("blk.0.ffn_down_exps.bias", {4, 3});
    return file;
}

raw_gguf quantised() {
    raw_gguf file;
    file.add_text("general.architecture", "qwen3moe");
    for (const char* name : {"blk.0.ffn_up_exps.weight", "blk.0.ffn_down_exps.weight"})
        file.tensors.push_back(
            {.name = name, .ne = {32, 32, 1}, .type = 8 /* q8_0 */, .data = std::string(32 * 34, '\x11')});
    return file;
}

void write_gguf_corpus(const std::filesystem::path& directory, const std::filesystem::path& scratch) {
    write(directory / "moe", small_moe().bytes());
    write(directory / "split", split_model());
    write(directory / "biases", with_biases().bytes());
    write(directory / "quantised", quantised().bytes());
    write(directory / "empty", "");
    write(directory / "header-only", raw_gguf().bytes());
    raw_gguf dense;
    dense.add_text("general.architecture", "llama").add_f32("blk.0.ffn_up.weight", {4, 4});
    write(directory / "not-moe", dense.bytes());
    raw_gguf separate;
    separate.add_text("general.architecture", "llama").add_f32("blk.0.ffn_up.0.weight", {4, 4});
    write(directory / "separate-experts", separate.bytes());
    raw_gguf arrays;
    arrays.add_raw("tokenizer.ggml.tokens", kind_array, le32(kind_string) + le64(2) + le64(1) + "a" + le64(0));
    arrays.add_u32_array("x.expert_used_count", {1, 2}).add_raw("flag", 7, std::string(1, '\1'));
    arrays.add_raw("real", 12, le64(0x3ff0000000000000)).add_raw("long", kind_u64, le64(~0ULL));
    write(directory / "metadata-kinds", arrays.bytes());

    const std::string moe = small_moe().bytes();
    write(directory / "truncated-data", moe.substr(0, moe.size() - 40));
    write(directory / "truncated-header", moe.substr(0, 200));
    raw_gguf counts = small_moe();
    counts.n_tensors = ~0ULL;
    write(directory / "huge-tensor-count", counts.bytes());
    counts.n_tensors = std::nullopt;
    counts.n_keys = 1ULL << 62;
    write(directory / "huge-key-count", counts.bytes());
    raw_gguf offsets = small_moe();
    offsets.tensors[2].offset = 0;
    write(directory / "overlapping", offsets.bytes());
    offsets.tensors[2].offset = 97;
    write(directory / "unaligned", offsets.bytes());
    raw_gguf shape = small_moe();
    shape.tensors[2].ne = {1ULL << 40, 1ULL << 40, 4};
    write(directory / "huge-shape", shape.bytes());

    const std::filesystem::path model_path = scratch / "moe.gguf";
    write(model_path, small_moe().bytes());
    const auto model = model::gguf_model::open(model_path).value();
    const auto made = model::manifest::compute(model).value();
    const auto selection = model::expert_selection::parse("1:0+2,2:1-3").value();
    static_cast<void>(model::write_slice(model, selection, made.model_digest(), directory / "slice").value());
}

/// The same manifest every time: nothing of this run's clock in it.
std::string manifest_json(const std::filesystem::path& path, std::string_view bytes) {
    write(path, bytes);
    std::filesystem::last_write_time(path,
                                     std::filesystem::file_time_type(std::filesystem::file_time_type::duration(0)));
    return model::manifest::compute(model::gguf_model::open(path).value()).value().to_json();
}

void write_manifest_corpus(const std::filesystem::path& directory, const std::filesystem::path& scratch) {
    const std::string dense = [&] {
        raw_gguf file;
        file.add_text("general.architecture", "llama").add_f32("blk.0.ffn_up.weight", {4, 4}).add_f32("a", {1});
        return manifest_json(scratch / "dense.gguf", file.bytes());
    }();
    write(directory / "dense", dense);
    write(directory / "biases", manifest_json(scratch / "biases.gguf", with_biases().bytes()));
    write(directory / "truncated", dense.substr(0, dense.size() / 2));
    write(directory / "empty-object", "{}");
    write(directory / "nested", R"({"format":[[[[[[[[[[[[]]]]]]]]]]]]})");
    write(directory / "later-version", R"({"format":"kvasir-manifest","version":18446744073709551615})");
    write(directory / "no-json", "GGUF");
}

void write_selection_corpus(const std::filesystem::path& directory) {
    const char* texts[] = {"all",
                           "3:0-63,4:0-63,5:7,6:0-3+9",
                           "*:0-7",
                           "0-2:*",
                           "5:0-3 + 9 , 48:144",
                           "1:5-2",
                           "4294967296:0",
                           "1:0-4294967295",
                           "*:*,*:0",
                           ":",
                           "1:",
                           "1:+",
                           "-1:0",
                           ""};
    for (std::size_t i = 0; i < std::size(texts); ++i)
        write(directory / std::to_string(i), texts[i]);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::cerr << "usage: make_fuzz_corpus DIRECTORY\n";
        return 2;
    }
    const std::filesystem::path root = argv[1];
    const std::filesystem::path scratch = root / "scratch";
    write_gguf_corpus(root / "gguf", scratch);
    write_manifest_corpus(root / "manifest", scratch);
    write_selection_corpus(root / "selection");
    std::filesystem::remove_all(scratch);
    return 0;
}
