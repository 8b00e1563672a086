// Reads a layer's expert FFN off a ggml graph: what llama.cpp's MoE graph computes, as an expert call. Internal.
//
// It accepts a graph only if every computing node of it has its place in the pattern and nothing but the last is used
// outside; anything else is "not recognised", which costs speed, never exactness.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/expert_call.hpp"
#include "base/ids.hpp"
#include "expert/expert.hpp"

namespace kvasir::backend {

/// Points into the graph's tensors.
struct expert_graph {
    layer_id layer;
    activation act;
    expert::layer_weights weights;
    /// F32 [n_in, rows_per_token, n_tokens]; rows_per_token is 1, or n_used where the router's weights come first.
    const ggml_tensor* rows = nullptr;
    const ggml_tensor* ids = nullptr;     ///< I32 [n_used, n_tokens], possibly strided
    const ggml_tensor* result = nullptr;  ///< F32 [n_out, n_used, n_tokens], contiguous

    std::int64_t n_used() const { return ids->ne[0]; }
    std::int64_t n_tokens() const { return ids->ne[1]; }
    std::uint32_t n_rows() const { return static_cast<std::uint32_t>(rows->ne[1] * rows->ne[2]); }
    std::size_t n_pairs() const { return static_cast<std::size_t>(n_used() * n_tokens()); }
};

std::optional<expert_graph> read_expert_graph(ggml_cgraph* graph);

/// The router's choice as pairs, in the order of the result's rows. False when an id is not an expert of the layer.
bool read_pairs(const expert_graph& graph, std::vector<row_expert_pair>& pairs);

}  // namespace kvasir::backend
