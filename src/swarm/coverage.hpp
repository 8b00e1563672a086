// Who holds which experts, as an immutable snapshot. A worker that joins or leaves makes a new one, so that a layer
// call in progress keeps a consistent view without a lock.
//
// Kept as runs of experts with the same holders: what a HELLO costs follows its length. One entry per expert would let
// a hundred kilobytes that claim all experts of all layers take gigabytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.hpp"
#include "wire/hello.hpp"

namespace kvasir::swarm {

/// A worker by its position in the swarm's list of workers.
using worker_index = std::uint32_t;

class coverage {
  public:
    struct holder {
        worker_index worker = 0;
        const wire::hello* hello = nullptr;  ///< read during construction only
    };

    coverage() = default;
    explicit coverage(std::span<const holder> holders);

    /// The workers that hold this expert, ascending; empty for nobody, and for unknown layers and experts.
    std::span<const worker_index> holders_of(layer_id layer, std::uint32_t expert) const;
    bool covers_any_of(layer_id layer) const { return layers_.contains(layer); }
    /// (layer, expert) pairs that at least one worker holds.
    std::uint64_t n_experts_covered() const;

  private:
    /// Experts [begin, end) with the same holders; runs are ascending and apart.
    struct run {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        std::vector<worker_index> workers;
    };
    struct held_range {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        worker_index worker = 0;
    };
    static std::vector<run> runs_of(std::vector<held_range> ranges);

    std::unordered_map<layer_id, std::vector<run>> layers_;
};

}  // namespace kvasir::swarm
