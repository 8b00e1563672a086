// Hot experts: which are chosen, when they change, and that computing them here changes no bit.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "swarm/hot_set.hpp"
#include "swarm_faked.hpp"

namespace kvasir::swarm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr layer_id first{0};
constexpr layer_id second{1};

void count(hot_set& set, layer_id layer, std::vector<std::uint32_t> rows_of_expert) {
    set.count(layer, std::accumulate(rows_of_expert.begin(), rows_of_expert.end(), 0U), rows_of_expert);
}

TEST(hot_set, takes_the_most_chosen_experts_that_fit) {
    hot_set set({.budget_bytes = 250});
    set.set_layer(first, 4, 100);
    count(set, first, {1, 5, 0, 3});
    EXPECT_THAT(set.review().entered, ElementsAre(hot_expert{first, 1}, hot_expert{first, 3}));
    EXPECT_TRUE(set.contains(first, 1));
    EXPECT_FALSE(set.contains(first, 0));
    EXPECT_EQ(set.size_bytes(), 200U);
    EXPECT_EQ(set.n_experts(), 2U);
}

TEST(hot_set, has_nobody_who_was_never_chosen) {
    hot_set set({.budget_bytes = 1000});
    set.set_layer(first, 4, 100);
    EXPECT_THAT(set.review().entered, IsEmpty());
    count(set, first, {0, 1, 0, 0});
    EXPECT_THAT(set.review().entered, ElementsAre(hot_expert{first, 1}));
    EXPECT_EQ(set.n_experts(), 1U);
}

TEST(hot_set, weighs_popularity_by_size) {
    hot_set set({.budget_bytes = 400});
    set.set_layer(first, 2, 400);
    set.set_layer(second, 4, 100);
    count(set, first, {12, 0});
    count(set, second, {4, 4, 4, 4});
    // Four experts that are chosen sixteen times together take no more room than one that is chosen twelve times.
    set.review();
    EXPECT_EQ(set.n_experts(), 4U);
    EXPECT_FALSE(set.contains(first, 0));
}

TEST(hot_set, changes_only_for_what_is_clearly_better) {
    hot_set set({.budget_bytes = 100, .half_life_rows = 1e9, .hysteresis = 1.25});
    set.set_layer(first, 2, 100);
    count(set, first, {100, 0});
    set.review();
    count(set, first, {0, 120});
    EXPECT_THAT(set.review().left, IsEmpty());
    count(set, first, {0, 6});
    const auto changed = set.review();
    EXPECT_THAT(changed.left, ElementsAre(hot_expert{first, 0}));
    EXPECT_THAT(changed.entered, ElementsAre(hot_expert{first, 1}));
    EXPECT_EQ(set.size_bytes(), 100U);
}

TEST(hot_set, forgets_with_the_rows_that_pass) {
    hot_set set({.budget_bytes = 100, .half_life_rows = 10.0});
    set.set_layer(first, 3, 100);
    count(set, first, {100, 0, 0});
    set.review();
    EXPECT_TRUE(set.contains(first, 0));
    // After four half-lives the hundred count as about six.
    for (int i = 0; i < 4; ++i)
        count(set, first, {0, 5, 5});
    set.review();
    EXPECT_FALSE(set.contains(first, 0));
}

TEST(hot_set, forgets_a_layer_that_is_set_again) {
    hot_set set({.budget_bytes = 1000});
    set.set_layer(first, 2, 100);
    set.set_layer(second, 2, 100);
    count(set, first, {1, 1});
    count(set, second, {1, 0});
    set.review();
    EXPECT_EQ(set.size_bytes(), 300U);
    set.set_layer(first, 2, 50);
    EXPECT_EQ(set.size_bytes(), 100U);
    EXPECT_EQ(set.n_experts(), 1U);
    EXPECT_FALSE(set.contains(first, 0));
    EXPECT_THAT(set.review().left, IsEmpty());
}

TEST(hot_set, survives_what_it_does_not_know) {
    hot_set set({.budget_bytes = 100});
    count(set, first, {1, 1});
    EXPECT_THAT(set.review().entered, IsEmpty());
    EXPECT_FALSE(set.contains(first, 0));
    set.set_layer(first, 2, 0);
    count(set, first, {1, 1, 1});
    EXPECT_FALSE(set.contains(first, 7));
    EXPECT_THAT(set.review().entered, IsEmpty());
}

TEST(hot_set, never_exceeds_its_budget) {
    std::mt19937 random(11);
    for (int round = 0; round < 50; ++round) {
        const std::uint64_t budget_bytes = random() % 5000;
        hot_set set({.budget_bytes = budget_bytes, .half_life_rows = 50.0});
        std::vector<std::uint64_t> sizes;
        for (std::uint32_t layer = 0; layer < 3; ++layer) {
            sizes.push_back(1 + random() % 500);
            set.set_layer({layer}, 16, sizes.back());
        }
        for (int review = 0; review < 10; ++review) {
            for (std::uint32_t layer = 0; layer < 3; ++layer) {
                std::vector<std::uint32_t> rows(16);
                std::ranges::generate(rows, [&] { return random() % 4; });
                count(set, {layer}, rows);
            }
            set.review();
            std::uint64_t sum_bytes = 0;
            for (std::uint32_t layer = 0; layer < 3; ++layer)
                for (std::uint32_t expert = 0; expert < 16; ++expert)
                    if (set.contains({layer}, expert)) sum_bytes += sizes[layer];
            EXPECT_EQ(sum_bytes, set.size_bytes());
            EXPECT_LE(sum_bytes, budget_bytes);
        }
    }
}

/// Routing as skewed as that of trained routers: expert i is chosen in proportion to 1 / (i + 1).
TEST(hot_set, comes_near_the_best_choice_in_hindsight) {
    constexpr std::uint32_t n_experts = 64;
    constexpr std::uint32_t n_hot = 16;
    std::vector<double> weights(n_experts);
    for (std::uint32_t i = 0; i < n_experts; ++i)
        weights[i] = 1.0 / (i + 1);
    std::mt19937 random(3);
    std::discrete_distribution<std::uint32_t> draw(weights.begin(), weights.end());
    hot_set set({.budget_bytes = n_hot * 100});
    set.set_layer(first, n_experts, 100);
    std::vector<std::uint64_t> total(n_experts);
    std::uint64_t hits = 0;
    std::uint64_t asked = 0;
    for (int call = 0; call < 20'000; ++call) {
        std::vector<std::uint32_t> rows(n_experts);
        for (int k = 0; k < 4; ++k)
            ++rows[draw(random)];
        for (std::uint32_t expert = 0; expert < n_experts; ++expert) {
            total[expert] += rows[expert];
            asked += rows[expert];
            if (set.contains(first, expert)) hits += rows[expert];
        }
        set.count(first, 1, rows);
        if (call % 32 == 31) set.review();
    }
    std::ranges::sort(total, std::greater{});
    const auto best = std::accumulate(total.begin(), total.begin() + n_hot, std::uint64_t{0});
    EXPECT_GT(best, asked / 2);
    EXPECT_GT(static_cast<double>(hits), 0.95 * static_cast<double>(best));
    EXPECT_LE(hits, best);
}

// The same in a swarm: layer 0 has three F32 tensors of 256 x 256, 786,432 bytes an expert, and eight experts.

constexpr std::uint64_t expert_bytes = 786'432;

TEST(swarm, computes_hot_experts_here_when_that_is_quicker) {
    faked_swarm here;
    here.set_here_us_per_pair(0.0);
    here.set_audit_share(0.0);
    here.set_hot_experts_bytes(3 * expert_bytes + 1);
    here.add_whole();
    here.start();
    for (int call = 0; call < 200; ++call)
        here.expect_right(0, 4, 40);
    const statistics before = here.swarm().statistics();
    EXPECT_EQ(before.hot.n_experts, 3U);
    EXPECT_EQ(before.hot.size_bytes, 3 * expert_bytes);
    EXPECT_GT(before.hot.hits, 0U);
    EXPECT_LT(before.hot.hits, before.hot.pairs);
    EXPECT_EQ(before.hot.pairs, 200U * 40);
    // Exactly the hits were computed here: nothing else is quicker here, and nothing was late.
    EXPECT_EQ(before.local_pairs, before.hot.hits);
    here.expect_counts_add_up();
}

TEST(swarm, asks_workers_for_hot_experts_that_they_compute_sooner) {
    faked_swarm here;
    here.set_here_us_per_pair(1e9);
    here.set_hot_experts_bytes(100 * expert_bytes);
    here.add_whole();
    here.start();
    for (int call = 0; call < 200; ++call)
        here.expect_right(0, 4, 40);
    const statistics after = here.swarm().statistics();
    EXPECT_EQ(after.hot.n_experts, 8U);
    EXPECT_GT(after.hot.hits, 0U);
    EXPECT_EQ(after.local_pairs, 0U);
    here.expect_counts_add_up();
}

TEST(swarm, asks_nobody_when_all_that_is_wanted_is_hot) {
    faked_swarm here;
    here.set_here_us_per_pair(0.0);
    here.set_hot_experts_bytes(100 * expert_bytes);
    here.add_whole();
    here.start();
    EXPECT_TRUE(here.wait_until([&] { return here.compute(0, 4, 40) == outcome::all_local; }));
    EXPECT_EQ(here.swarm().statistics().hot.n_experts, 8U);
}

TEST(swarm, keeps_every_bit_with_hot_experts_of_every_kind_of_layer) {
    faked_swarm here;
    here.set_here_us_per_pair(0.0);
    here.set_hot_experts_bytes(8 * expert_bytes);
    here.add_whole();
    here.add_whole();
    here.start();
    for (int call = 0; call < 300; ++call)
        here.compute(below(3, here.random()), 1 + below(12, here.random()), 1 + below(60, here.random()));
    EXPECT_GT(here.swarm().statistics().hot.hits, 0U);
    here.expect_counts_add_up();
}

TEST(swarm, has_no_hot_experts_unless_told_to) {
    faked_swarm here;
    here.set_here_us_per_pair(0.0);
    here.add_whole();
    here.start();
    for (int call = 0; call < 150; ++call)
        here.expect_right(0, 4, 40);
    EXPECT_EQ(here.swarm().statistics().hot.pairs, 0U);
    EXPECT_EQ(here.swarm().statistics().hot.n_experts, 0U);
}

}  // namespace
}  // namespace kvasir::swarm
