#include "support/raw_gguf.hpp"

#include <bit>
#include <cstring>

namespace kvasir::test_support {
namespace {

template <class T>
std::string little_endian(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
}

std::string counted(std::string_view text) {
    return le64(text.size()) + std::string(text);
}

void pad(std::string& bytes, std::uint64_t alignment) {
    while (bytes.size() % alignment != 0)
        bytes += '\0';
}

}  // namespace

std::string le16(std::uint16_t value) {
    return little_endian(value);
}
std::string le32(std::uint32_t value) {
    return little_endian(value);
}
std::string le64(std::uint64_t value) {
    return little_endian(value);
}

raw_gguf& raw_gguf::add_raw(std::string_view key, std::uint32_t kind, std::string_view payload) {
    entries_ += counted(key) + le32(kind) + std::string(payload);
    ++n_entries_;
    return *this;
}

raw_gguf& raw_gguf::add_u16(std::string_view key, std::uint16_t value) {
    return add_raw(key, kind_u16, le16(value));
}
raw_gguf& raw_gguf::add_u32(std::string_view key, std::uint32_t value) {
    return add_raw(key, kind_u32, le32(value));
}
raw_gguf& raw_gguf::add_i32(std::string_view key, std::int32_t value) {
    return add_raw(key, kind_i32, le32(static_cast<std::uint32_t>(value)));
}
raw_gguf& raw_gguf::add_text(std::string_view key, std::string_view value) {
    return add_raw(key, kind_string, counted(value));
}
raw_gguf& raw_gguf::add_u32_array(std::string_view key, const std::vector<std::uint32_t>& values) {
    std::string payload = le32(kind_u32) + le64(values.size());
    for (const std::uint32_t value : values)
        payload += le32(value);
    return add_raw(key, kind_array, payload);
}

raw_gguf& raw_gguf::add_f32(std::string_view name, const std::vector<std::uint64_t>& ne) {
    std::uint64_t n_elements = 1;
    for (const std::uint64_t size : ne)
        n_elements *= size;
    std::uint32_t seed = 0;
    for (const char c : name)
        seed = seed * 31 + static_cast<unsigned char>(c);
    std::string data;
    for (std::uint64_t i = 0; i < n_elements; ++i)
        data += little_endian(static_cast<float>((seed + i * 7) % 1000) / 8.0F);
    tensors.push_back({.name = std::string(name), .ne = ne, .data = std::move(data)});
    return *this;
}

std::string raw_gguf::bytes() const {
    std::string file =
        magic + le32(version) + le64(n_tensors.value_or(tensors.size())) + le64(n_keys.value_or(n_entries_)) + entries_;
    std::string data;
    for (const raw_tensor& tensor : tensors) {
        file += le64(tensor.name_size.value_or(tensor.name.size())) + tensor.name;
        file += le32(tensor.n_dimensions.value_or(static_cast<std::uint32_t>(tensor.ne.size())));
        for (const std::uint64_t size : tensor.ne)
            file += le64(size);
        file += le32(tensor.type) + le64(tensor.offset.value_or(data.size()));
        data += tensor.data;
        pad(data, alignment);
    }
    if (!tensors.empty()) pad(file, alignment);
    return file + data;
}

raw_gguf small_moe() {
    raw_gguf file;
    file.add_text("general.architecture", "qwen3moe").add_text("general.name", "small");
    file.add_u32("qwen3moe.block_count", 3)
        .add_u32("qwen3moe.expert_count", 4)
        .add_u32("qwen3moe.expert_used_count", 2);
    file.add_f32("token_embd.weight", {4, 5});
    for (const char* layer : {"1", "2"}) {
        const std::string prefix = std::string("blk.") + layer;
        file.add_f32(prefix + ".ffn_gate_inp.weight", {4, 4});
        file.add_f32(prefix + ".ffn_gate_exps.weight", {4, 4, 4});
        file.add_f32(prefix + ".ffn_up_exps.weight", {4, 4, 4});
        file.add_f32(prefix + ".ffn_down_exps.weight", {4, 4, 4});
    }
    return file;
}

}  // namespace kvasir::test_support
