// The ggml graph of one layer's experts over a flat list of (row, expert) pairs. Internal to this part.
//
// The monolithic graph works on [n, n_used, n_tokens]; here every pair is a token of its own: [n, 1, n_pairs] with
// ids [1, n_pairs]. MUL_MAT_ID treats every (row, expert) product by itself, so the bits are the same. (MUL_MAT must
// not stand in for it: it may take a tiled path that MUL_MAT_ID does not have.)
#pragma once

#include <ggml.h>

#include "expert/expert.hpp"

namespace kvasir::expert {

/// The tensors whose data the caller provides before computing, and the result. Owned by the context.
struct ffn_graph {
    ggml_cgraph* graph = nullptr;
    ggml_tensor* rows = nullptr;        ///< [n_in, 1, n_pairs], F32 or Q8_K
    ggml_tensor* ids = nullptr;         ///< I32 [1, n_pairs], counted from the first expert given
    ggml_tensor* up_scale = nullptr;    ///< F32 [1, 1, n_pairs]; null where the layer has no such scale
    ggml_tensor* gate_scale = nullptr;  ///< likewise
    ggml_tensor* down_scale = nullptr;  ///< likewise
    ggml_tensor* result = nullptr;      ///< F32 [n_out, 1, n_pairs]
};

/// Metadata memory that build_ffn_graph needs in its (no_alloc) context.
std::size_t ffn_graph_context_bytes();

/// `first_expert` and `n_experts` choose the part of `weights` that the ids refer to. Weights must be validated.
ffn_graph build_ffn_graph(ggml_context* context, const layer_weights& weights, std::int64_t first_expert,
                          std::int64_t n_experts, const activation& act, row_encoding encoding, std::int64_t n_pairs);

}  // namespace kvasir::expert
