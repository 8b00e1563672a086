// The vocabulary of one expert call, shared by those who compute it, send it and ask for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir {

/// What stands between an expert's first and last matrix product. The numbers are the wire's: never reuse one.
enum class activation_kind : std::uint8_t {
    silu = 1,            ///< no gate: silu(up)
    gelu = 2,            ///< no gate: gelu(up), ggml's tanh approximation by table
    relu = 3,            ///< no gate: max(up, 0)
    relu_squared = 4,    ///< no gate: max(up, 0)^2
    swiglu = 5,          ///< silu(gate) * up
    geglu = 6,           ///< gelu(gate) * up
    reglu = 7,           ///< relu(gate) * up
    swiglu_clamped = 8,  ///< ggml's swiglu_clamp; p0 = limit
    swiglu_limited = 9,  ///< min(silu(gate), p0) * clamp(up, -p0, p0), as separate operations
    swiglu_oai = 10,     ///< ggml's swiglu_oai; p0 = alpha, p1 = limit
    situ = 11,           ///< p0 tanh(gate/p0) sigmoid(gate) * u, u = p1 tanh(up/p1) if p1 > 0, else up
};

struct activation {
    activation_kind kind = activation_kind::swiglu;
    float p0 = 0.0F;
    float p1 = 0.0F;

    friend bool operator==(const activation&, const activation&) = default;
};

/// The enumerator with this number, if there is one: how a peer's byte becomes a kind.
std::optional<activation_kind> activation_kind_from(std::uint8_t number);
/// True for the kinds that take a gate beside up (separate or merged).
bool has_gate(activation_kind kind);
std::string_view name_of(activation_kind kind);

/// The biases and scales that a call's expert tensors are used with. A file may have more than the architecture's graph
/// reads, so whoever asks says which. Bits of one number; the wire's: never reuse one.
enum companion : std::uint16_t {
    gate_bias = 1U << 0U,
    gate_scale = 1U << 1U,
    up_bias = 1U << 2U,
    up_scale = 1U << 3U,
    gate_up_bias = 1U << 4U,
    gate_up_scale = 1U << 5U,
    down_bias = 1U << 6U,
    down_scale = 1U << 7U,
};
inline constexpr std::uint16_t all_companions = 0x00ff;

/// How a row's values travel. The numbers are the wire's: never reuse one.
enum class row_encoding : std::uint8_t {
    f32 = 0,   ///< n values of 4 bytes
    q8_k = 1,  ///< ggml's block_q8_K: 292 bytes (float scale, 256 int8, 16 int16 sums) for 256 values
};

std::optional<row_encoding> row_encoding_from(std::uint8_t number);
std::string_view name_of(row_encoding encoding);
/// Bytes of one row of `n_values`; empty where the encoding cannot hold that many (zero, or q8_k and no multiple of
/// 256).
std::optional<std::uint64_t> row_size_bytes(row_encoding encoding, std::uint32_t n_values);

/// One thing to compute: a row of a batch through one expert. The same pair may appear more than once.
struct row_expert_pair {
    std::uint32_t row = 0;
    std::uint32_t expert = 0;  ///< position among the experts at hand (local on a worker)

    friend bool operator==(const row_expert_pair&, const row_expert_pair&) = default;
};

}  // namespace kvasir
