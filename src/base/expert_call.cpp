#include "base/expert_call.hpp"

namespace kvasir {

std::optional<activation_kind> activation_kind_from(std::uint8_t number) {
    if (number < static_cast<std::uint8_t>(activation_kind::silu)) return std::nullopt;
    if (number > static_cast<std::uint8_t>(activation_kind::situ)) return std::nullopt;
    return static_cast<activation_kind>(number);
}

bool has_gate(activation_kind kind) {
    switch (kind) {
        case activation_kind::silu:
        case activation_kind::gelu:
        case activation_kind::relu:
        case activation_kind::relu_squared:
            return false;
        case activation_kind::swiglu:
        case activation_kind::geglu:
        case activation_kind::reglu:
        case activation_kind::swiglu_clamped:
        case activation_kind::swiglu_limited:
        case activation_kind::swiglu_oai:
        case activation_kind::situ:
            return true;
    }
    return false;
}

std::string_view name_of(activation_kind kind) {
    switch (kind) {
        case activation_kind::silu:
            return "silu";
        case activation_kind::gelu:
            return "gelu";
        case activation_kind::relu:
            return "relu";
        case activation_kind::relu_squared:
            return "relu_squared";
        case activation_kind::swiglu:
            return "swiglu";
        case activation_kind::geglu:
            return "geglu";
        case activation_kind::reglu:
            return "reglu";
        case activation_kind::swiglu_clamped:
            return "swiglu_clamped";
        case activation_kind::swiglu_limited:
            return "swiglu_limited";
        case activation_kind::swiglu_oai:
            return "swiglu_oai";
        case activation_kind::situ:
            return "situ";
    }
    return "unknown";
}

std::optional<row_encoding> row_encoding_from(std::uint8_t number) {
    if (number > static_cast<std::uint8_t>(row_encoding::q8_k)) return std::nullopt;
    return static_cast<row_encoding>(number);
}

std::string_view name_of(row_encoding encoding) {
    return encoding == row_encoding::q8_k ? "q8_k" : "f32";
}

std::optional<std::uint64_t> row_size_bytes(row_encoding encoding, std::uint32_t n_values) {
    constexpr std::uint32_t q8_k_block_values = 256;
    constexpr std::uint64_t q8_k_block_bytes = 292;
    if (n_values == 0) return std::nullopt;
    if (encoding == row_encoding::f32) return std::uint64_t{n_values} * sizeof(float);
    if (n_values % q8_k_block_values != 0) return std::nullopt;
    return n_values / q8_k_block_values * q8_k_block_bytes;
}

}  // namespace kvasir
