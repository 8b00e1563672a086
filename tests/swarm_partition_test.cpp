// Cutting a worker's part of a layer call into requests: nothing lost, nothing twice, no limit broken.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "swarm/partition.hpp"
#include "swarm_support.hpp"
#include "wire/messages.hpp"

namespace kvasir::swarm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

wire::held_layer held_of(const std::vector<wire::expert_range>& ranges) {
    wire::held_layer made;
    made.layer = {2};
    made.n_in = made.n_out = 8;
    made.ranges = ranges;
    return made;
}

/// Everything that must be true of any answer.
void check(std::span<const row_expert_pair> pairs, std::span<const std::uint32_t> positions,
           const wire::held_layer& held, const partition_limits& limits, const partition& cut) {
    std::multiset<std::uint32_t> seen(cut.left_over.begin(), cut.left_over.end());
    std::map<std::uint32_t, std::set<const request_part*>> requests_of_expert;
    std::map<std::uint32_t, std::vector<std::uint32_t>> order_of_expert;
    for (const request_part& part : cut.requests) {
        ASSERT_FALSE(part.positions.empty());
        ASSERT_EQ(part.positions.size(), part.pairs.size());
        ASSERT_TRUE(std::ranges::is_sorted(part.rows));
        ASSERT_EQ(std::ranges::adjacent_find(part.rows), part.rows.end()) << "a row travels twice";
        std::set<std::uint32_t> rows_used;
        for (std::size_t i = 0; i < part.pairs.size(); ++i) {
            const row_expert_pair& asked = pairs[part.positions[i]];
            ASSERT_LT(part.pairs[i].row, part.rows.size());
            EXPECT_EQ(part.rows[part.pairs[i].row], asked.row);
            EXPECT_EQ(held.global_of({part.pairs[i].expert}), expert_id{asked.expert});
            rows_used.insert(part.pairs[i].row);
            requests_of_expert[asked.expert].insert(&part);
            order_of_expert[asked.expert].push_back(part.positions[i]);
        }
        EXPECT_EQ(rows_used.size(), part.rows.size()) << "a row travels that nobody wants";
        seen.insert(part.positions.begin(), part.positions.end());

        const std::uint64_t request_bytes = wire::compute_head_bytes + part.rows.size() * limits.row_in_bytes +
                                            part.pairs.size() * sizeof(row_expert_pair);
        const std::uint64_t result_bytes = wire::result_head_bytes + part.pairs.size() * limits.row_out_bytes;
        EXPECT_LE(request_bytes, limits.max_message_bytes);
        EXPECT_LE(result_bytes, limits.max_message_bytes);
    }
    EXPECT_EQ(seen, std::multiset<std::uint32_t>(positions.begin(), positions.end()));

    for (const auto& [expert, order] : order_of_expert) {
        EXPECT_TRUE(std::ranges::is_sorted(order)) << "the rows of expert " << expert << " change their order";
        if (!limits.keep_experts_whole) continue;
        EXPECT_THAT(requests_of_expert[expert], SizeIs(1)) << "expert " << expert << " is divided";
    }
    for (const std::uint32_t position : cut.left_over) {
        const std::uint32_t expert = pairs[position].expert;
        EXPECT_FALSE(limits.keep_experts_whole && order_of_expert.contains(expert)) << "expert is divided";
    }
}

TEST(partition, holds_its_invariants_for_random_calls) {
    std::mt19937 random(21);
    std::size_t n_cut = 0;
    std::size_t n_left_over = 0;
    for (int round = 0; round < 2000; ++round) {
        std::vector<wire::expert_range> ranges;
        std::uint32_t next = 0;
        for (std::uint32_t i = 0, n = 1 + below(4, random); i < n; ++i) {
            next += 1 + below(3, random);
            ranges.push_back({{next}, 1 + below(5, random)});
            next += ranges.back().count;
        }
        const wire::held_layer held = held_of(ranges);

        std::vector<row_expert_pair> pairs(below(60, random));
        const std::uint32_t n_rows = 1 + below(16, random);
        for (row_expert_pair& pair : pairs)
            pair = {below(n_rows, random), below(next + 2, random)};
        std::vector<std::uint32_t> positions;
        for (std::uint32_t i = 0; i < pairs.size(); ++i)
            if (below(4, random) != 0) positions.push_back(i);

        partition_limits limits;
        limits.row_in_bytes = 1 + below(100, random);
        limits.row_out_bytes = 1 + below(100, random);
        limits.max_message_bytes = below(2, random) == 0 ? below(700, random) : 100'000;
        limits.keep_experts_whole = below(2, random) == 0;
        const partition cut = cut_into_requests(pairs, positions, held, limits);
        check(pairs, positions, held, limits, cut);
        if (HasFatalFailure()) return;
        n_cut += cut.requests.size() > 1 ? 1 : 0;
        n_left_over += cut.left_over.empty() ? 0 : 1;
    }
    EXPECT_GT(n_cut, 100U) << "the draw never needed a cut";
    EXPECT_GT(n_left_over, 100U);
}

TEST(partition, sends_a_row_once_for_all_its_experts) {
    const std::vector<row_expert_pair> pairs = {{9, 4}, {3, 5}, {9, 5}, {3, 4}};
    const std::vector<std::uint32_t> all = {0, 1, 2, 3};
    const partition cut = cut_into_requests(pairs, all, held_of({{{4}, 2}}), {100'000, 10, 10, true});
    ASSERT_THAT(cut.requests, SizeIs(1));
    EXPECT_THAT(cut.requests[0].rows, ElementsAre(3, 9));
    EXPECT_THAT(cut.requests[0].positions, ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(cut.requests[0].pairs, ElementsAre(row_expert_pair{1, 0}, row_expert_pair{0, 1}, row_expert_pair{1, 1},
                                                   row_expert_pair{0, 0}));
    EXPECT_THAT(cut.left_over, IsEmpty());
}

TEST(partition, divides_an_expert_only_where_its_bits_allow_it) {
    std::vector<row_expert_pair> pairs;
    std::vector<std::uint32_t> all;
    for (std::uint32_t i = 0; i < 30; ++i) {
        pairs.push_back({i, 0});
        all.push_back(i);
    }
    // Room for ten pairs.
    partition_limits limits{wire::compute_head_bytes + 10 * 28, 20, 28, false};
    const partition divided = cut_into_requests(pairs, all, held_of({{{0}, 1}}), limits);
    EXPECT_THAT(divided.requests, SizeIs(3));
    EXPECT_THAT(divided.left_over, IsEmpty());
    limits.keep_experts_whole = true;
    const partition whole = cut_into_requests(pairs, all, held_of({{{0}, 1}}), limits);
    EXPECT_THAT(whole.requests, IsEmpty());
    EXPECT_THAT(whole.left_over, SizeIs(30));
}

TEST(partition, sends_nothing_where_no_pair_fits) {
    const std::vector<row_expert_pair> pairs = {{0, 0}, {0, 1}};
    const std::vector<std::uint32_t> all = {0, 1};
    for (const std::uint64_t max_message_bytes : {0, 1, 24, 25, 60}) {
        const partition cut = cut_into_requests(pairs, all, held_of({{{0}, 2}}), {max_message_bytes, 64, 64, false});
        EXPECT_THAT(cut.requests, IsEmpty());
        EXPECT_THAT(cut.left_over, ElementsAre(0, 1));
    }
    EXPECT_THAT(cut_into_requests(pairs, {}, held_of({{{0}, 2}}), {100'000, 64, 64, false}).requests, IsEmpty());
}

}  // namespace
}  // namespace kvasir::swarm
