#include "swarm/coverage.hpp"

#include <algorithm>

namespace kvasir::swarm {

coverage::coverage(std::span<const holder> holders) {
    std::unordered_map<layer_id, std::vector<held_range>> ranges_of_layer;
    for (const holder& one : holders)
        for (const wire::held_layer& held : one.hello->layers)
            for (const wire::expert_range& range : held.ranges)
                ranges_of_layer[held.layer].push_back(
                    {range.first.value, std::uint64_t{range.first.value} + range.count, one.worker});
    for (auto& [layer, ranges] : ranges_of_layer)
        layers_.emplace(layer, runs_of(std::move(ranges)));
}

/// A sweep over all borders of ranges, with the set of those that are open.
std::vector<coverage::run> coverage::runs_of(std::vector<held_range> ranges) {
    std::vector<std::uint64_t> borders;
    for (const held_range& range : ranges) {
        borders.push_back(range.begin);
        borders.push_back(range.end);
    }
    std::ranges::sort(borders);
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    std::ranges::sort(ranges, {}, &held_range::begin);

    std::vector<run> runs;
    std::vector<held_range> open;
    auto next = ranges.begin();
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
        std::erase_if(open, [&](const held_range& range) { return range.end <= borders[i]; });
        for (; next != ranges.end() && next->begin == borders[i]; ++next)
            open.push_back(*next);
        if (open.empty()) continue;
        run made{borders[i], borders[i + 1], {}};
        for (const held_range& range : open)
            made.workers.push_back(range.worker);
        std::ranges::sort(made.workers);
        made.workers.erase(std::unique(made.workers.begin(), made.workers.end()), made.workers.end());
        runs.push_back(std::move(made));
    }
    return runs;
}

std::span<const worker_index> coverage::holders_of(layer_id layer, std::uint32_t expert) const {
    const auto found = layers_.find(layer);
    if (found == layers_.end()) return {};
    const std::vector<run>& runs = found->second;
    const auto after = std::ranges::upper_bound(runs, std::uint64_t{expert}, {}, &run::begin);
    if (after == runs.begin() || expert >= std::prev(after)->end) return {};
    return std::prev(after)->workers;
}

std::uint64_t coverage::n_experts_covered() const {
    std::uint64_t covered = 0;
    for (const auto& [layer, runs] : layers_)
        for (const run& one : runs)
            covered += one.end - one.begin;
    return covered;
}

}  // namespace kvasir::swarm
