// Which place computes which expert in one layer call. Pure: the same inputs give the same answer.
//
// An expert is never divided within a call: all its rows go to one place. That is what keeps kernels exact whose bits
// depend on the number of rows (expert::batch_sensitive), and it reads each weight once.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.hpp"
#include "swarm/coverage.hpp"

namespace kvasir::swarm {

struct expert_load {
    std::uint32_t expert = 0;
    std::uint32_t n_rows = 0;
    /// What this machine would need for it. Infinite: only if no worker is available.
    double here_us = std::numeric_limits<double>::infinity();
};

/// What is known about a worker when a call begins.
struct worker_estimate {
    bool available = false;
    double fixed_us = 0.0;    ///< round trip and queue: what an empty request would take
    double per_row_us = 0.0;  ///< for one more (row, expert) pair
};

/// For each entry of `experts` the worker that computes it, or empty for this machine. Largest experts first, each to
/// the place that would then finish soonest: a holder, or this machine after what it was given before. Equal finishes
/// go to the worker, and among workers to the lower index.
std::vector<std::optional<worker_index>> choose_places(layer_id layer, std::span<const expert_load> experts,
                                                       const coverage& who_holds,
                                                       std::span<const worker_estimate> workers);

}  // namespace kvasir::swarm
