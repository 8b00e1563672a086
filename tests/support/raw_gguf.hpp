// GGUF files byte by byte, so that every field can lie. Honest by default: what is not set is filled in correctly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::test_support {

/// ggml and gguf numbers, written out: the format must not change under us.
inline constexpr std::uint32_t type_f32 = 0;
inline constexpr std::uint32_t type_q4_k = 12;
inline constexpr std::uint32_t kind_u8 = 0;
inline constexpr std::uint32_t kind_u16 = 2;
inline constexpr std::uint32_t kind_u32 = 4;
inline constexpr std::uint32_t kind_i32 = 5;
inline constexpr std::uint32_t kind_string = 8;
inline constexpr std::uint32_t kind_array = 9;
inline constexpr std::uint32_t kind_u64 = 10;

struct raw_tensor {
    std::string name;
    std::vector<std::uint64_t> ne;
    std::uint32_t type = type_f32;
    std::string data;
    std::optional<std::uint64_t> offset{};        ///< default: after the one before, padded
    std::optional<std::uint32_t> n_dimensions{};  ///< default: ne.size()
    std::optional<std::uint64_t> name_size{};     ///< default: name.size()
};

class raw_gguf {
  public:
    std::string magic = "GGUF";
    std::uint32_t version = 3;
    std::optional<std::uint64_t> n_tensors;
    std::optional<std::uint64_t> n_keys;
    std::uint64_t alignment = 32;  ///< used for offsets and padding; add the key yourself
    std::vector<raw_tensor> tensors;

    raw_gguf& add_u16(std::string_view key, std::uint16_t value);
    raw_gguf& add_u32(std::string_view key, std::uint32_t value);
    raw_gguf& add_i32(std::string_view key, std::int32_t value);
    raw_gguf& add_text(std::string_view key, std::string_view value);
    raw_gguf& add_u32_array(std::string_view key, const std::vector<std::uint32_t>& values);
    /// A key with its type and payload as given.
    raw_gguf& add_raw(std::string_view key, std::uint32_t kind, std::string_view payload);

    /// F32 tensor filled with a pattern that depends on its name.
    raw_gguf& add_f32(std::string_view name, const std::vector<std::uint64_t>& ne);

    std::string bytes() const;

  private:
    std::string entries_;
    std::uint64_t n_entries_ = 0;
};

/// Little-endian bytes of a number.
std::string le16(std::uint16_t value);
std::string le32(std::uint32_t value);
std::string le64(std::uint64_t value);

/// A valid MoE model under 4 KB: layers 1 and 2, 4 experts each, rows and hidden rows of 4 values, F32.
raw_gguf small_moe();

}  // namespace kvasir::test_support
