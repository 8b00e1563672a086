// The expert: a pure function (hidden rows, expert ids) -> rows, made of the matrix products of one MoE layer.
//
// What a layer computes for one row x and one expert e (llama.cpp's MoE graph, without router and combine):
//
//     gate = W_gate[e] x (* scale) (+ bias)      up = W_up[e] x (* scale) (+ bias)     or both in one merged
//     W_gate_up[e] y    = W_down[e] activation(gate, up) (* scale) (+ bias)
//
// Invariant: the result for a (row, expert) pair has exactly the bits that ggml's CPU backend of this build computes
// for it inside the whole model's graph (without weight repacking), however pairs are split over calls — with one
// proviso, batch_sensitive() below.
//
// No network, no files. ggml does the arithmetic through its public backend interface; nothing here is a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/error.hpp"
#include "base/expert_call.hpp"

namespace kvasir::expert {

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

/// Which biases and scales the layer has: `companion` bits.
std::uint16_t companions_of(const layer_weights& weights);
/// The layer with no other biases and scales than these. errc::invalid_input when it lacks one of them.
result<layer_weights> with_companions(const layer_weights& weights, std::uint16_t companions);

/// Where the weights of one expert lie, one slab for each of its tensors. The weights must be valid, the expert one of
/// them; companions, some bytes an expert, are not counted.
std::vector<byte_span> slabs_of(const layer_weights& weights, std::int64_t expert);

/// Shapes that fit each other, types that this ggml multiplies; a sentence naming what does not fit otherwise.
result<void> validate(const layer_weights& weights);
/// An activation that this layer's tensors can feed (gate present or absent, finite parameters).
result<void> validate(const layer_weights& weights, const activation& act);

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
                         std::span<const row_expert_pair> pairs, std::span<float> out);

  private:
    struct state;
    std::unique_ptr<state> state_;
};

/// What decides the bits of a result on this machine, as one line of text:
/// "<kernel family> <version>; <architecture and instruction sets>; probe <16 hex digits>". The probe is a digest of
/// the results of a fixed pseudo-random expert in every family of weight types: two nodes with equal text compute equal
/// bits. Takes some milliseconds; call it once.
std::string numerics_fingerprint();

}  // namespace kvasir::expert
