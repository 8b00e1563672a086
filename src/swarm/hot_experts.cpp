#include "swarm/hot_experts.hpp"

#include <algorithm>
#include <utility>

namespace kvasir::swarm {
namespace {

// Choosing the set sorts all experts; with some ten thousand of them that takes about what one layer call takes.
constexpr std::uint64_t calls_between_reviews = 128;

bool same_memory(const expert::layer_weights& left, const expert::layer_weights& right) {
    return left.n_experts == right.n_experts && left.down.weight == right.down.weight &&
           left.up.weight == right.up.weight && left.gate_up.weight == right.gate_up.weight &&
           left.down.type == right.down.type && left.n_in() == right.n_in() && left.n_out() == right.n_out();
}

std::uint64_t bytes_per_expert(const expert::layer_weights& weights) {
    std::uint64_t sum = 0;
    for (const byte_span slab : expert::slabs_of(weights, 0))
        sum += slab.size();
    return sum;
}

}  // namespace

hot_experts::hot_experts(std::uint64_t budget_bytes)
    : budget_bytes_(budget_bytes), set_({.budget_bytes = budget_bytes}), calls_until_review_(calls_between_reviews) {}

std::vector<bool> hot_experts::count(const layer_call& call, std::span<const std::uint32_t> rows_of_expert) {
    const std::lock_guard lock(mutex_);
    learn_layer(call);
    std::vector<bool> hot(rows_of_expert.size());
    for (std::uint32_t expert = 0; expert < rows_of_expert.size(); ++expert) {
        hot[expert] = set_.contains(call.layer, expert);
        counts_.pairs += rows_of_expert[expert];
        if (hot[expert]) counts_.hits += rows_of_expert[expert];
    }
    set_.count(call.layer, call.n_rows, rows_of_expert);
    if (--calls_until_review_ == 0) review();
    return hot;
}

/// The weights of a model that was loaded later may lie elsewhere, under the same layer numbers.
void hot_experts::learn_layer(const layer_call& call) {
    const auto [known, is_new] = weights_.try_emplace(call.layer, *call.weights);
    if (!is_new && same_memory(known->second, *call.weights)) return;
    known->second = *call.weights;
    locks_.erase(call.layer);
    set_.set_layer(call.layer, static_cast<std::uint32_t>(call.weights->n_experts), bytes_per_expert(*call.weights));
}

void hot_experts::review() {
    calls_until_review_ = calls_between_reviews;
    const hot_set::change made = set_.review();
    for (const hot_expert& which : made.left)
        locks_[which.layer].erase(which.expert);
    for (const hot_expert& which : made.entered)
        admit(which);
    counts_.evictions += made.left.size();
}

void hot_experts::admit(const hot_expert& which) {
    std::vector<page_lock> locks;
    for (const byte_span slab : expert::slabs_of(weights_.at(which.layer), which.expert)) {
        will_need(slab);
        auto locked = page_lock::make(slab);
        if (locked) {
            locks.push_back(std::move(*locked));
        } else {
            // Without it the expert is hot all the same; it only may be paged out when memory is short.
            counts_.why_not_locked = locked.error().message;
        }
    }
    locks_[which.layer][which.expert] = std::move(locks);
}

hot_statistics hot_experts::statistics() const {
    const std::lock_guard lock(mutex_);
    hot_statistics copy = counts_;
    copy.budget_bytes = budget_bytes_;
    copy.n_experts = set_.n_experts();
    copy.size_bytes = set_.size_bytes();
    return copy;
}

}  // namespace kvasir::swarm
