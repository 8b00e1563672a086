// Which experts are worth keeping on this machine: those that the router chose most often lately. Pure: no memory is
// touched, no clock is read.
//
// An expert's popularity is the number of rows that were routed to it, each row counting half as much for every
// `half_life_rows` rows of the layer that came after it. The set is the experts of greatest popularity per byte that
// fit the budget. An expert that is in the set counts `hysteresis` times its popularity, so that two of about equal
// popularity do not take each other's place all the time: every change costs reading a slab.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.hpp"

namespace kvasir::swarm {

struct hot_expert {
    layer_id layer;
    std::uint32_t expert = 0;

    friend bool operator==(const hot_expert&, const hot_expert&) = default;
};

class hot_set {
  public:
    struct settings {
        std::uint64_t budget_bytes = 0;
        double half_life_rows = 1024.0;
        double hysteresis = 1.25;
    };
    /// What a review changed.
    struct change {
        std::vector<hot_expert> entered;
        std::vector<hot_expert> left;
    };

    explicit hot_set(const settings& chosen) : settings_(chosen) {}

    /// Makes a layer known, or forgets what was known of it. None of its experts is in the set afterwards.
    void set_layer(layer_id layer, std::uint32_t n_experts, std::uint64_t bytes_per_expert);
    /// One layer call: how many of its `n_rows` rows went to each expert. Unknown layers are ignored.
    void count(layer_id layer, std::uint32_t n_rows, std::span<const std::uint32_t> rows_of_expert);
    /// Chooses the set anew.
    change review();

    bool contains(layer_id layer, std::uint32_t expert) const;
    std::uint64_t size_bytes() const { return size_bytes_; }
    std::uint64_t n_experts() const { return n_experts_; }

  private:
    struct layer_state {
        std::uint64_t bytes_per_expert = 0;
        std::vector<double> popularity;
        std::vector<bool> in_set;
    };

    settings settings_;
    std::unordered_map<layer_id, layer_state> layers_;
    std::uint64_t size_bytes_ = 0;
    std::uint64_t n_experts_ = 0;
};

}  // namespace kvasir::swarm
