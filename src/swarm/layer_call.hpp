// One layer's routed experts for one batch: what the backbone asks the swarm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/expert_call.hpp"
#include "base/ids.hpp"
#include "expert/expert.hpp"

namespace kvasir::swarm {

/// Everything is borrowed for the duration of the call.
struct layer_call {
    layer_id layer;
    activation act;
    /// F32 rows of weights->n_in() values, `row_stride_bytes` apart.
    const std::byte* rows = nullptr;
    std::size_t row_stride_bytes = 0;
    std::uint32_t n_rows = 0;
    /// Experts by their index in the whole model.
    std::span<const row_expert_pair> pairs;
    /// The layer's experts on this machine: the fallback.
    const expert::layer_weights* weights = nullptr;
    /// pairs.size() rows of weights->n_out() values, in the order of the pairs.
    std::span<float> out;
};

}  // namespace kvasir::swarm
