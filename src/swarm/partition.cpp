#include "swarm/partition.hpp"

#include <algorithm>

#include "wire/messages.hpp"

namespace kvasir::swarm {
namespace {

constexpr std::uint64_t pair_bytes = 8;

/// How many pairs fit one request, each counted as if it brought its own row.
std::uint64_t max_pairs_of(const partition_limits& limits) {
    const std::uint64_t head = std::max(wire::compute_head_bytes, wire::result_head_bytes);
    if (limits.max_message_bytes <= head) return 0;
    const std::uint64_t per_pair = std::max(limits.row_in_bytes + pair_bytes, limits.row_out_bytes);
    return (limits.max_message_bytes - head) / per_pair;
}

request_part make_part(std::span<const row_expert_pair> pairs, std::span<const std::uint32_t> positions,
                       const wire::held_layer& held) {
    request_part part;
    part.positions.assign(positions.begin(), positions.end());
    for (const std::uint32_t position : positions)
        part.rows.push_back(pairs[position].row);
    std::ranges::sort(part.rows);
    part.rows.erase(std::unique(part.rows.begin(), part.rows.end()), part.rows.end());
    for (const std::uint32_t position : positions) {
        const auto row = std::ranges::lower_bound(part.rows, pairs[position].row) - part.rows.begin();
        part.pairs.push_back(
            {static_cast<std::uint32_t>(row), held.local_of(expert_id{pairs[position].expert})->value});
    }
    return part;
}

}  // namespace

partition cut_into_requests(std::span<const row_expert_pair> pairs, std::span<const std::uint32_t> positions,
                            const wire::held_layer& held, const partition_limits& limits) {
    partition result;
    std::vector<std::uint32_t> by_expert;
    for (const std::uint32_t position : positions) {
        const bool is_held = held.local_of(expert_id{pairs[position].expert}).has_value();
        (is_held ? by_expert : result.left_over).push_back(position);
    }
    const std::uint64_t max_pairs = max_pairs_of(limits);
    if (by_expert.size() <= max_pairs) {
        if (!by_expert.empty()) result.requests.push_back(make_part(pairs, by_expert, held));
        return result;
    }

    // Too much for one request: whole experts together as far as they fit. Stable, so that an expert's rows stay in
    // order.
    std::ranges::stable_sort(by_expert, {}, [&](std::uint32_t position) { return pairs[position].expert; });
    std::vector<std::uint32_t> open;
    const auto close = [&] {
        if (!open.empty()) result.requests.push_back(make_part(pairs, open, held));
        open.clear();
    };
    for (std::size_t begin = 0; begin < by_expert.size();) {
        std::size_t end = begin;
        while (end < by_expert.size() && pairs[by_expert[end]].expert == pairs[by_expert[begin]].expert)
            ++end;
        if (open.size() + (end - begin) > max_pairs) close();
        if (end - begin <= max_pairs) {
            open.insert(open.end(), by_expert.begin() + static_cast<std::ptrdiff_t>(begin),
                        by_expert.begin() + static_cast<std::ptrdiff_t>(end));
        } else if (limits.keep_experts_whole || max_pairs == 0) {
            result.left_over.insert(result.left_over.end(), by_expert.begin() + static_cast<std::ptrdiff_t>(begin),
                                    by_expert.begin() + static_cast<std::ptrdiff_t>(end));
        } else {
            for (std::size_t i = begin; i < end; ++i) {
                if (open.size() == max_pairs) close();
                open.push_back(by_expert[i]);
            }
        }
        begin = end;
    }
    close();
    return result;
}

}  // namespace kvasir::swarm
