// The expert: a pure function (hidden rows, expert ids) -> rows, made of the matrix products of one MoE layer.
//
// What a layer computes for one row x and one expert e (llama.cpp's MoE graph, without router and combine):
//
//     gate = W_gate[e] x (* scale) (+ bias)      up = W_up[e] x (* scale) (+ bias)     or both in one merged W_gate_up[e]
//     y    = W_down[e] activation(gate, up) (* scale) (+ bias)
//
// Invariant: the result for a (row, expert) pair has exactly the bits that ggml's CPU backend of this build computes for
// it inside the whole model's graph (without weight repacking), however pairs are split over calls — with one proviso,
// batch_sensitive() below.
//
// No network, no files. ggml does the arithmetic through its public backend interface; nothing here is a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.hpp"
#include "base/error.hpp"

namespace kvasir::expert {

/// What stands between the first and the last matrix product. The numbers are the wire's: never reuse one.
/// `p0`, `p1` are the parameters of `activation`.
enum class activation_kind : std::uint8_t {
    silu = 1,             ///< no gate: silu(up)
    gelu = 2,             ///< no gate: gelu(up), ggml's tanh approximation by table
    relu = 3,             ///< no gate: max(up, 0)
    relu_squared = 4,     ///< no gate: max(up, 0)^2
    swiglu = 5,           ///< silu(gate) * up
    geglu = 6,            ///< gelu(gate) * up
    reglu = 7,            ///< relu(gate) * up
    swiglu_clamped = 8,   ///< ggml's swiglu_clamp, p0 = limit
    swiglu_limited = 9,   ///< min(silu(gate), p0) * clamp(up, -p0, p0), as separate operations
    swiglu_oai = 10,      ///< ggml's swiglu_oai, p0 = alpha, p1 = limit
    situ = 11,            ///< p0 tanh(gate/p0) sigmoid(gate) * up', up' = p1 tanh(up/p1) if p1 > 0, else up
};

struct activation {
    activation_kind kind = activation_kind::swiglu;
    float p0 = 0.0F;
    float p1 = 0.0F;

    friend bool operator==(const activation&, const activation&) = default;
};

/// True for the kinds that take a gate beside up (separate or merged).
bool has_gate(activation_kind kind);
/// True when `value` is one of the enumerators: what a peer sent is checked with this.
bool is_known(std::uint8_t value);
std::string_view name_of(activation_kind kind);

/// One expert tensor of a layer with its companions, as bytes somebody else owns (a mapped file, a ggml buffer).
/// Weight: ggml type `type`, shape [n_in, n_out, n_experts], expert e at `weight + e * expert_stride_bytes`.
/// Bias: F32 [n_out, n_experts]. Scale: F32 [n_experts]. A null `weight` means the tensor does not exist.
struct expert_tensor {
    const std::byte* weight = nullptr;
    std::int32_t type = 0;  ///< a ggml_type
    std::int64_t n_in = 0;
    std::int64_t n_out = 0;
    const float* bias = nullptr;
    const float* scale = nullptr;

    explicit operator bool() const { return weight != nullptr; }
};

/// The experts of one layer, or a slice of them: all tensors hold the same `n_experts` in the same order.
/// Either `gate_up` (merged, n_out = 2 ff, gate first) or `up` with or without `gate`.
struct layer_weights {
    std::int64_t n_experts = 0;
    expert_tensor gate;
    expert_tensor up;
    expert_tensor gate_up;
    expert_tensor down;

    std::int64_t n_in() const { return gate_up ? gate_up.n_in : up.n_in; }
    std::int64_t n_out() const { return down.n_out; }
};

/// Shapes that fit each other, types that this ggml multiplies; a sentence naming what does not fit otherwise.
result<void> validate(const layer_weights& weights);
/// An activation that this layer's tensors can feed (gate present or absent, finite parameters).
result<void> validate(const layer_weights& weights, const activation& act);

/// How a row's values travel. The numbers are the wire's: never reuse one.
enum class row_encoding : std::uint8_t {
    f32 = 0,   ///< n values of 4 bytes
    q8_k = 1,  ///< ggml's block_q8_K: 292 bytes for 256 values; n is a multiple of 256
};

bool is_known_row_encoding(std::uint8_t value);
/// Bytes of one row of `n_values`; empty where the encoding cannot hold that many.
std::optional<std::size_t> row_size_bytes(row_encoding encoding, std::int64_t n_values);

/// The leanest encoding that is proven to leave all bits of the result as they are: Q8_K when every tensor that reads
/// the row is a K-quant, F32 otherwise.
row_encoding lossless_encoding(const layer_weights& weights);

/// True when a type's kernel depends on how many rows one call brings to the same expert (ggml's panel path for IQ
/// types). All pairs of one expert in one layer call must then be computed in one call, or bits differ.
bool batch_sensitive(const layer_weights& weights);

/// Rows in one encoding, one after another, owned by somebody else.
struct row_batch {
    row_encoding encoding = row_encoding::f32;
    std::int64_t n_values = 0;
    std::size_t n_rows = 0;
    byte_span bytes;
};

/// Encodes `n_rows` F32 rows, `stride_bytes` apart, into `out` (row_size_bytes each, no gaps).
result<void> encode_rows(row_encoding encoding, const std::byte* rows, std::size_t stride_bytes, std::int64_t n_values,
                         std::size_t n_rows, std::span<std::byte> out);

/// One thing to compute: a row of the batch through one expert. The same pair may appear more than once.
struct pair {
    std::uint32_t row = 0;
    std::uint32_t expert = 0;  ///< index into the layer_weights

    friend bool operator==(const pair&, const pair&) = default;
};

/// Computes expert FFNs with ggml's CPU backend. Owns its threads and scratch memory, which grows to the largest call
/// and is bounded by cutting large calls into pieces (never through the pairs of one expert where that matters).
/// One thread at a time may use an engine.
class engine {
  public:
    /// Throws std::runtime_error when ggml has no CPU backend (start-up).
    explicit engine(int n_threads);
    ~engine();
    engine(engine&&) noexcept;
    engine& operator=(engine&&) noexcept;

    void set_n_threads(int n_threads);

    /// out[i * n_out … ] = the result of pairs[i]. Everything is checked before ggml sees it: sizes, indices, types.
    /// `out.size()` must be pairs.size() * weights.n_out(). No pairs is a valid, empty call.
    result<void> compute(const layer_weights& weights, const activation& act, const row_batch& rows,
                         std::span<const pair> pairs, std::span<float> out);

  private:
    struct state;
    std::unique_ptr<state> state_;
};

/// What decides the bits of a result on this machine, as one line of text:
/// "<kernel family> <version>; <architecture and instruction sets>; probe <16 hex digits>". The probe is a digest of the
/// results of a fixed pseudo-random expert in every family of weight types: two nodes with equal text compute equal
/// bits. Takes some milliseconds; call it once.
std::string numerics_fingerprint();

}  // namespace kvasir::expert
