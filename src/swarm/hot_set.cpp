#include "swarm/hot_set.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace kvasir::swarm {
namespace {

struct candidate {
    double worth = 0.0;  ///< popularity per byte, with the hysteresis of those in the set
    hot_expert which;
};

/// The best first; equals by their place in the model, so that the order is always the same.
bool comes_before(const candidate& left, const candidate& right) {
    return std::tuple(-left.worth, left.which.layer, left.which.expert) <
           std::tuple(-right.worth, right.which.layer, right.which.expert);
}

}  // namespace

void hot_set::set_layer(layer_id layer, std::uint32_t n_experts, std::uint64_t bytes_per_expert) {
    layer_state& state = layers_[layer];
    const auto n_in_set = static_cast<std::uint64_t>(std::ranges::count(state.in_set, true));
    n_experts_ -= n_in_set;
    size_bytes_ -= n_in_set * state.bytes_per_expert;
    state = {bytes_per_expert, std::vector<double>(n_experts), std::vector<bool>(n_experts)};
}

void hot_set::count(layer_id layer, std::uint32_t n_rows, std::span<const std::uint32_t> rows_of_expert) {
    const auto found = layers_.find(layer);
    if (found == layers_.end()) return;
    std::vector<double>& popularity = found->second.popularity;
    const double left = std::exp2(-static_cast<double>(n_rows) / settings_.half_life_rows);
    for (std::size_t expert = 0; expert < popularity.size(); ++expert) {
        const double newest = expert < rows_of_expert.size() ? rows_of_expert[expert] : 0.0;
        popularity[expert] = popularity[expert] * left + newest;
    }
}

hot_set::change hot_set::review() {
    std::vector<candidate> candidates;
    for (const auto& [layer, state] : layers_) {
        if (state.bytes_per_expert == 0) continue;
        for (std::uint32_t expert = 0; expert < state.popularity.size(); ++expert) {
            if (state.popularity[expert] <= 0.0) continue;
            const double favour = state.in_set[expert] ? settings_.hysteresis : 1.0;
            candidates.push_back(
                {favour * state.popularity[expert] / static_cast<double>(state.bytes_per_expert), {layer, expert}});
        }
    }
    std::ranges::sort(candidates, comes_before);

    change made;
    std::unordered_map<layer_id, std::vector<bool>> before;
    for (auto& [layer, state] : layers_) {
        before[layer] = state.in_set;
        state.in_set.assign(state.in_set.size(), false);
    }
    size_bytes_ = 0;
    n_experts_ = 0;
    for (const candidate& one : candidates) {
        layer_state& state = layers_.at(one.which.layer);
        if (state.bytes_per_expert > settings_.budget_bytes - size_bytes_) continue;
        size_bytes_ += state.bytes_per_expert;
        ++n_experts_;
        state.in_set[one.which.expert] = true;
        if (!before[one.which.layer][one.which.expert]) made.entered.push_back(one.which);
    }
    for (const auto& [layer, was_in] : before)
        for (std::uint32_t expert = 0; expert < was_in.size(); ++expert)
            if (was_in[expert] && !layers_.at(layer).in_set[expert]) made.left.push_back({layer, expert});
    return made;
}

bool hot_set::contains(layer_id layer, std::uint32_t expert) const {
    const auto found = layers_.find(layer);
    return found != layers_.end() && expert < found->second.in_set.size() && found->second.in_set[expert];
}

}  // namespace kvasir::swarm
