// The swarm's pure policies: who holds what, which place computes which expert, how long to wait and to pause.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "swarm/audit.hpp"
#include "swarm/coverage.hpp"
#include "swarm/placement.hpp"
#include "swarm/service_time.hpp"
#include "swarm/standing.hpp"
#include "swarm_support.hpp"

namespace kvasir::swarm {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

wire::held_layer held(std::uint32_t layer, std::vector<wire::expert_range> ranges) {
    wire::held_layer made;
    made.layer = {layer};
    made.n_in = made.n_out = 8;
    made.encodings = {row_encoding::f32};
    made.ranges = std::move(ranges);
    return made;
}

wire::hello hello_of(std::vector<wire::held_layer> layers) {
    wire::hello made;
    made.role = wire::node_role::worker;
    made.layers = std::move(layers);
    return made;
}

std::vector<worker_index> holders(const coverage& who, std::uint32_t layer, std::uint32_t expert) {
    const auto found = who.holders_of({layer}, expert);
    return {found.begin(), found.end()};
}

/// A worker that holds every expert of a layer with the given chance.
wire::hello random_hello(std::uint32_t n_layers, std::uint32_t n_experts, double chance, std::mt19937& random) {
    std::bernoulli_distribution holds(chance);
    std::vector<wire::held_layer> layers;
    for (std::uint32_t layer = 0; layer < n_layers; ++layer) {
        std::vector<wire::expert_range> ranges;
        for (std::uint32_t expert = 0; expert < n_experts; ++expert) {
            if (!holds(random)) continue;
            if (!ranges.empty() && ranges.back().first.value + ranges.back().count == expert) {
                ++ranges.back().count;
            } else {
                ranges.push_back({{expert}, 1});
            }
        }
        if (!ranges.empty()) layers.push_back(held(layer, ranges));
    }
    return hello_of(layers);
}

TEST(coverage, knows_nobody_at_first) {
    const coverage nobody;
    EXPECT_THAT(holders(nobody, 0, 0), IsEmpty());
    EXPECT_FALSE(nobody.covers_any_of({0}));
    EXPECT_EQ(nobody.n_experts_covered(), 0U);
}

TEST(coverage, tells_the_holders_of_every_expert) {
    const wire::hello first = hello_of({held(3, {{{4}, 3}, {{9}, 1}})});
    const wire::hello second = hello_of({held(3, {{{6}, 4}}), held(7, {{{0}, 2}})});
    const coverage who(std::vector<coverage::holder>{{2, &first}, {5, &second}});
    EXPECT_THAT(holders(who, 3, 3), IsEmpty());
    EXPECT_THAT(holders(who, 3, 4), ElementsAre(2));
    EXPECT_THAT(holders(who, 3, 6), ElementsAre(2, 5));
    EXPECT_THAT(holders(who, 3, 7), ElementsAre(5));
    EXPECT_THAT(holders(who, 3, 9), ElementsAre(2, 5));
    EXPECT_THAT(holders(who, 3, 10), IsEmpty());
    EXPECT_THAT(holders(who, 3, 0xffffffffU), IsEmpty());
    EXPECT_THAT(holders(who, 4, 6), IsEmpty());
    EXPECT_THAT(holders(who, 7, 1), ElementsAre(5));
    EXPECT_TRUE(who.covers_any_of({3}));
    EXPECT_FALSE(who.covers_any_of({4}));
    EXPECT_EQ(who.n_experts_covered(), 8U);
}

TEST(coverage, agrees_with_every_hello) {
    std::mt19937 random(11);
    for (int round = 0; round < 50; ++round) {
        const std::uint32_t n_layers = 1 + below(4, random);
        const std::uint32_t n_experts = 1 + below(40, random);
        std::vector<wire::hello> hellos;
        for (std::uint32_t i = 0, n = below(7, random); i < n; ++i)
            hellos.push_back(random_hello(n_layers, n_experts, 0.3, random));
        std::vector<coverage::holder> with;
        for (std::uint32_t i = 0; i < hellos.size(); ++i)
            with.push_back({i * 3, &hellos[i]});
        const coverage who(with);
        std::uint64_t n_covered = 0;
        for (std::uint32_t layer = 0; layer < n_layers; ++layer) {
            for (std::uint32_t expert = 0; expert < n_experts + 2; ++expert) {
                std::vector<worker_index> expected;
                for (const auto& one : with) {
                    const wire::held_layer* layer_held = one.hello->find({layer});
                    if (layer_held != nullptr && layer_held->local_of({expert})) expected.push_back(one.worker);
                }
                ASSERT_EQ(holders(who, layer, expert), expected) << "layer " << layer << " expert " << expert;
                n_covered += expected.empty() ? 0 : 1;
            }
        }
        EXPECT_EQ(who.n_experts_covered(), n_covered);
    }
}

/// A HELLO of 112 KiB may claim 4096 layers of 65536 experts: what it costs must follow its length, not its claims.
TEST(coverage, costs_nothing_for_what_a_hello_only_claims) {
    std::vector<wire::held_layer> layers;
    for (std::uint32_t layer = 0; layer < wire::max_layers; ++layer)
        layers.push_back(held(layer, {{{0}, wire::max_experts_per_layer}}));
    const wire::hello claims = hello_of(layers);
    const coverage who(std::vector<coverage::holder>{{0, &claims}, {1, &claims}});
    EXPECT_EQ(who.n_experts_covered(), std::uint64_t{wire::max_layers} * wire::max_experts_per_layer);
    EXPECT_THAT(holders(who, wire::max_layers - 1, wire::max_experts_per_layer - 1), ElementsAre(0, 1));
}

/// One drawn question to choose_places.
struct question {
    wire::hello hellos[5];
    coverage who;
    std::vector<expert_load> loads;
    std::vector<worker_estimate> workers;

    explicit question(std::mt19937& random) {
        const std::uint32_t n_experts = 1 + below(64, random);
        std::vector<coverage::holder> with;
        std::uniform_real_distribution<double> us(0.0, 3000.0);
        for (std::uint32_t i = 0; i < std::size(hellos); ++i) {
            hellos[i] = random_hello(2, n_experts, 0.5, random);
            with.push_back({i, &hellos[i]});
            workers.push_back({below(4, random) != 0, us(random), us(random) / 10.0});
        }
        who = coverage(with);
        for (std::uint32_t expert = 0; expert < n_experts; ++expert)
            if (below(3, random) != 0) loads.push_back({.expert = expert, .n_rows = 1 + below(20, random)});
    }
};

double finish_of(const question& asked, const std::vector<std::optional<worker_index>>& places, worker_index worker) {
    double us = asked.workers[worker].fixed_us;
    for (std::size_t i = 0; i < places.size(); ++i)
        if (places[i] == worker) us += asked.workers[worker].per_row_us * asked.loads[i].n_rows;
    return us;
}

TEST(placement, puts_every_expert_at_an_available_holder_or_here) {
    std::mt19937 random(12);
    for (int round = 0; round < 300; ++round) {
        const question asked(random);
        const auto places = choose_places({1}, asked.loads, asked.who, asked.workers);
        ASSERT_EQ(places.size(), asked.loads.size());
        for (std::size_t i = 0; i < places.size(); ++i) {
            const auto may = holders(asked.who, 1, asked.loads[i].expert);
            const bool somebody =
                std::ranges::any_of(may, [&](worker_index worker) { return asked.workers[worker].available; });
            ASSERT_EQ(places[i].has_value(), somebody);
            if (!places[i]) continue;
            EXPECT_TRUE(asked.workers[*places[i]].available);
            EXPECT_THAT(may, ::testing::Contains(*places[i]));
        }
        EXPECT_EQ(places, choose_places({1}, asked.loads, asked.who, asked.workers)) << "not deterministic";
    }
}

/// The busiest worker has no expert that another holder would have finished sooner, counted after all were placed.
TEST(placement, leaves_nothing_at_the_busiest_that_was_better_elsewhere) {
    std::mt19937 random(13);
    for (int round = 0; round < 300; ++round) {
        const question asked(random);
        const auto places = choose_places({1}, asked.loads, asked.who, asked.workers);
        for (std::size_t i = 0; i < places.size(); ++i) {
            if (!places[i]) continue;
            // The last expert that was given to its place was given with all others of this size or larger placed.
            const bool is_smallest = std::ranges::none_of(
                asked.loads, [&](const expert_load& other) { return other.n_rows < asked.loads[i].n_rows; });
            const bool is_last_of_its_size =
                std::none_of(asked.loads.begin() + static_cast<std::ptrdiff_t>(i) + 1, asked.loads.end(),
                             [&](const expert_load& other) { return other.n_rows == asked.loads[i].n_rows; });
            if (!is_smallest || !is_last_of_its_size) continue;
            for (const worker_index other : holders(asked.who, 1, asked.loads[i].expert)) {
                if (!asked.workers[other].available || other == *places[i]) continue;
                const double moved_us =
                    finish_of(asked, places, other) + asked.workers[other].per_row_us * asked.loads[i].n_rows;
                EXPECT_LE(finish_of(asked, places, *places[i]), moved_us + 1e-6);
            }
        }
    }
}

TEST(placement, balances_equal_workers) {
    const wire::hello all = hello_of({held(0, {{{0}, 64}})});
    const coverage who(std::vector<coverage::holder>{{0, &all}, {1, &all}, {2, &all}, {3, &all}});
    const std::vector<worker_estimate> equal(4, {true, 1000.0, 10.0});
    std::mt19937 random(14);
    for (int round = 0; round < 50; ++round) {
        std::vector<expert_load> loads;
        for (std::uint32_t expert = 0; expert < 64; ++expert)
            loads.push_back({.expert = expert, .n_rows = 1 + below(8, random)});
        std::map<worker_index, std::uint32_t> rows;
        const auto places = choose_places({0}, loads, who, equal);
        for (std::size_t i = 0; i < loads.size(); ++i)
            rows[places[i].value()] += loads[i].n_rows;
        ASSERT_EQ(rows.size(), 4U);
        const auto [least, most] =
            std::ranges::minmax_element(rows, {}, [](const auto& entry) { return entry.second; });
        EXPECT_LE(most->second - least->second, 8U) << "by more than the largest expert";
    }
}

TEST(placement, prefers_the_near_and_the_lower_index) {
    const wire::hello all = hello_of({held(0, {{{0}, 8}})});
    const coverage who(std::vector<coverage::holder>{{0, &all}, {1, &all}, {2, &all}});
    const std::vector<expert_load> one = {{.expert = 5, .n_rows = 1}};
    EXPECT_THAT(choose_places({0}, one, who, std::vector<worker_estimate>(3, {true, 1000.0, 10.0})), ElementsAre(0U));
    const std::vector<worker_estimate> second_is_near = {{true, 900.0, 10.0}, {true, 100.0, 10.0}, {true, 100.0, 10.0}};
    EXPECT_THAT(choose_places({0}, one, who, second_is_near), ElementsAre(1U));
    // Many small experts overflow to the far ones: 100 + 80 * 100 us is more than 900.
    std::vector<expert_load> many;
    for (std::uint32_t expert = 0; expert < 8; ++expert)
        many.push_back({.expert = expert, .n_rows = 10});
    const auto places = choose_places({0}, many, who, second_is_near);
    EXPECT_THAT(places, ::testing::Contains(std::optional<worker_index>(1)));
    EXPECT_THAT(places, ::testing::Contains(std::optional<worker_index>(2)));
}

/// This machine is a place like any other, with what it was given before in the balance.
TEST(placement, computes_here_what_that_finishes_sooner) {
    const wire::hello all = hello_of({held(0, {{{0}, 8}})});
    const coverage who(std::vector<coverage::holder>{{0, &all}});
    const std::vector<worker_estimate> far = {{true, 1000.0, 10.0}};
    std::vector<expert_load> loads;
    for (std::uint32_t expert = 0; expert < 8; ++expert)
        loads.push_back({expert, 1, 400.0});
    const auto places = choose_places({0}, loads, who, far);
    EXPECT_EQ(std::ranges::count(places, std::optional<worker_index>()), 2) << "the third would end after 1200 us";
    for (expert_load& load : loads)
        load.here_us = 2000.0;
    EXPECT_EQ(std::ranges::count(choose_places({0}, loads, who, far), std::optional<worker_index>()), 0);
}

TEST(placement, ignores_holders_it_has_no_estimate_of) {
    const wire::hello all = hello_of({held(0, {{{0}, 8}})});
    const coverage who(std::vector<coverage::holder>{{7, &all}});
    EXPECT_THAT(choose_places({0}, std::vector<expert_load>{{.expert = 0, .n_rows = 1}}, who,
                              std::vector<worker_estimate>(3, {true, 1, 1})),
                ElementsAre(std::nullopt));
}

answer_time answer(std::uint32_t n_pairs, duration elapsed, duration compute, std::uint64_t bytes = 1000) {
    return {{n_pairs, bytes}, elapsed, compute, {}};
}

TEST(service_time, waits_have_their_bounds_and_grow_with_the_pairs) {
    std::mt19937 random(15);
    for (int round = 0; round < 200; ++round) {
        service_time measured;
        for (std::uint32_t i = 0, n = below(30, random); i < n; ++i)
            measured.record({{below(5000, random), below(1'000'000, random)},
                             microseconds(below(3'000'000, random)),
                             microseconds(below(5'000'000, random)),
                             microseconds(below(5'000'000, random))});
        EXPECT_GE(measured.fixed_us(), 0.0);
        EXPECT_GE(measured.per_pair_us(), 0.0);
        EXPECT_GE(measured.per_byte_us(), 0.0);
        duration before{};
        duration hedge_before{};
        for (const std::uint32_t n_pairs : {0U, 1U, 8U, 100U, 4096U, 1'000'000U, 0xffffffffU}) {
            const request_size size{n_pairs, 0};
            const duration patience = measured.patience(size);
            EXPECT_GE(patience, seconds(1));
            EXPECT_LE(patience, seconds(15));
            EXPECT_GE(patience, before);
            const duration hedge = measured.hedge_after(size);
            EXPECT_GE(hedge, hedge_before);
            EXPECT_LE(hedge, patience);
            before = patience;
            hedge_before = hedge;
        }
    }
}

TEST(service_time, takes_the_first_measurement_whole_and_follows_the_later_ones) {
    service_time measured;
    EXPECT_FALSE(measured.measured());
    measured.record(answer(10, milliseconds(50), milliseconds(20)));
    EXPECT_TRUE(measured.measured());
    EXPECT_NEAR(measured.fixed_us(), 30'000.0, 1e-3);
    EXPECT_NEAR(measured.per_pair_us(), 2'000.0, 1e-3);
    for (int i = 0; i < 60; ++i)
        measured.record(answer(10, milliseconds(500), milliseconds(100)));
    EXPECT_NEAR(measured.expected_us({10, 1000}), 500'000.0, 1000.0);
    EXPECT_NEAR(measured.per_pair_us(), 10'000.0, 10.0);
    EXPECT_NEAR(std::chrono::duration<double>(measured.patience({10, 1000})).count(), 2.0, 0.01);
}

/// Answers of two sizes over a connection of 20 ms and 1 MB/s, on a worker that takes 100 us a pair.
TEST(service_time, tells_round_trip_bytes_and_pairs_apart) {
    service_time measured;
    std::mt19937 random(16);
    const auto right_us = [](std::uint32_t n_pairs, std::uint64_t bytes) {
        return 20'000.0 + static_cast<double>(bytes) + 100.0 * n_pairs;
    };
    for (int i = 0; i < 200; ++i) {
        const std::uint32_t n_pairs = i % 2 == 0 ? 1 : 50;
        const std::uint64_t bytes = i % 2 == 0 ? 100 : 50'000;
        measured.record(
            {{n_pairs, bytes},
             microseconds(static_cast<int>(right_us(n_pairs, bytes)) + static_cast<int>(below(200, random))),
             microseconds(100 * n_pairs),
             {}});
    }
    EXPECT_NEAR(measured.fixed_us(), 20'100.0, 200.0);
    EXPECT_NEAR(measured.per_pair_us(), 100.0, 1.0);
    EXPECT_NEAR(measured.expected_us({50, 50'000}) / right_us(50, 50'000), 1.0, 0.5);
}

/// Nineteen of twenty of its own answers come before the hedge, and a worker that always strays is given more time.
TEST(service_time, hedges_past_a_quantile_of_its_own_history) {
    std::mt19937 random(17);
    for (const std::uint32_t spread_ms : {10U, 100U, 300U}) {
        service_time measured;
        int n_late = 0;
        constexpr int n_answers = 2000;
        for (int i = 0; i < n_answers; ++i) {
            const duration elapsed = milliseconds(40 + below(spread_ms, random));
            if (i >= 100 && elapsed > measured.hedge_after({4, 1000})) ++n_late;
            measured.record(answer(4, elapsed, milliseconds(10)));
        }
        EXPECT_LT(n_late, n_answers / 10) << spread_ms;
        EXPECT_LT(measured.hedge_after({4, 1000}), milliseconds(60 + 3 * spread_ms)) << "it would never be hedged";
    }
}

/// What was never answered counts: a worker that once was quick and stalls is not believed to be quick.
TEST(service_time, remembers_a_stall_that_no_answer_tells_of) {
    service_time measured;
    for (int i = 0; i < 20; ++i)
        measured.record(answer(4, milliseconds(2), milliseconds(1)));
    const double before_us = measured.expected_us({4, 1000});
    const duration hedge_before = measured.hedge_after({4, 1000});
    for (int i = 0; i < 5; ++i)
        measured.record_unanswered({4, 1000}, milliseconds(500));
    EXPECT_GT(measured.expected_us({4, 1000}), 50 * before_us);
    for (int i = 0; i < 100; ++i)
        measured.record(answer(4, milliseconds(2), milliseconds(1)));
    EXPECT_LT(measured.expected_us({4, 1000}), 2 * before_us) << "never forgiven";
    EXPECT_LT(measured.hedge_after({4, 1000}), 4 * hedge_before);
    measured.record_unanswered({4, 1000}, microseconds(1));
    EXPECT_LT(measured.expected_us({4, 1000}), 2 * before_us) << "cancelled at once says nothing";
}

/// What a worker says about itself is bounded by what was measured here.
TEST(service_time, does_not_believe_more_computing_than_time_passed) {
    service_time measured;
    measured.record({{4, 1000}, milliseconds(8), hours(24), hours(24)});
    EXPECT_NEAR(measured.fixed_us(), 0.0, 1e-6);
    EXPECT_NEAR(measured.per_pair_us(), 2'000.0, 1e-3);
    measured.record(answer(0, milliseconds(8), milliseconds(8)));
    EXPECT_LE(measured.per_pair_us(), 8'000.0);
}

TEST(standing, trusts_at_first_and_forgives_single_misses) {
    manual_clock_source clock;
    standing one;
    EXPECT_TRUE(one.may_work(clock.now()));
    for (int i = 0; i < 20; ++i) {
        one.missed(clock.now());
        one.missed(clock.now());
        one.answered(true, clock.now());
    }
    EXPECT_TRUE(one.may_work(clock.now()));
    EXPECT_FALSE(one.is_suspect());
}

TEST(standing, a_suspect_gets_trials_only_until_it_has_proved_itself) {
    manual_clock_source clock;
    clock.advance(hours(1));
    standing one;
    for (int i = 0; i < 3; ++i)
        one.missed(clock.now());
    EXPECT_TRUE(one.is_suspect());
    EXPECT_FALSE(one.may_work(clock.now()));
    EXPECT_TRUE(one.wants_trial(clock.now()));
    one.trial_sent(clock.now());
    EXPECT_FALSE(one.wants_trial(clock.now())) << "one after another";
    one.answered(true, clock.now());
    one.answered(true, clock.now());
    one.answered(false, clock.now());
    one.answered(true, clock.now());
    one.answered(true, clock.now());
    EXPECT_TRUE(one.is_suspect()) << "a late answer in between";
    clock.advance(seconds(1));
    EXPECT_TRUE(one.wants_trial(clock.now()));
    one.answered(true, clock.now());
    EXPECT_FALSE(one.is_suspect());
    EXPECT_TRUE(one.may_work(clock.now()));
}

TEST(standing, failures_pause_and_make_suspect) {
    manual_clock_source clock;
    clock.advance(hours(1));
    standing one;
    one.failed(clock.now());
    EXPECT_FALSE(one.may_work(clock.now()));
    EXPECT_FALSE(one.wants_trial(clock.now()));
    clock.advance(seconds(1));
    EXPECT_TRUE(one.may_work(clock.now()));
    one.failed(clock.now());
    clock.advance(seconds(2));
    one.failed(clock.now());
    EXPECT_TRUE(one.is_suspect());
    EXPECT_FALSE(one.wants_trial(clock.now())) << "it is in a pause";
    clock.advance(seconds(10));
    EXPECT_TRUE(one.wants_trial(clock.now()));
}

/// A replica that is never asked would keep the estimate it had when it was last asked, for good.
TEST(standing, an_idle_worker_is_tried_now_and_then) {
    manual_clock_source clock;
    clock.advance(hours(1));
    standing one;
    one.asked(clock.now());
    EXPECT_FALSE(one.wants_trial(clock.now()));
    clock.advance(seconds(6));
    EXPECT_TRUE(one.wants_trial(clock.now()));
    one.asked(clock.now());
    one.trial_sent(clock.now());
    EXPECT_FALSE(one.wants_trial(clock.now()));
}

TEST(audit_sampler, draws_its_share_of_any_sequence_of_calls) {
    std::mt19937 random(18);
    for (const double share : {0.001, 0.01, 0.3}) {
        audit_sampler sampler(share, 7);
        std::uint64_t n_results = 0;
        std::uint64_t n_drawn = 0;
        while (n_results < 400'000) {
            const std::uint32_t n = below(64, random);
            const auto drawn = sampler.draw(n);
            EXPECT_TRUE(std::ranges::is_sorted(drawn));
            EXPECT_EQ(std::set(drawn.begin(), drawn.end()).size(), drawn.size());
            EXPECT_TRUE(drawn.empty() || drawn.back() < n);
            n_results += n;
            n_drawn += drawn.size();
        }
        const double expected = share * static_cast<double>(n_results);
        EXPECT_NEAR(static_cast<double>(n_drawn), expected, 5.0 * std::sqrt(expected)) << share;
    }
}

TEST(audit_sampler, takes_all_or_nothing_when_told_to) {
    audit_sampler none(0.0, 1);
    EXPECT_THAT(none.draw(1000), IsEmpty());
    audit_sampler all(1.0, 1);
    EXPECT_THAT(all.draw(3), ElementsAre(0, 1, 2));
    EXPECT_THAT(all.draw(0), IsEmpty());
    EXPECT_THAT(all.draw(1), ElementsAre(0));
}

/// The stated probability against workers that corrupt a share of their results at random.
TEST(audit_sampler, catches_liars_as_often_as_stated) {
    std::mt19937 random(19);
    constexpr int n_workers = 2000;
    constexpr double audit_share = 0.01;
    for (const double corrupt_share : {0.05, 0.5, 1.0}) {
        for (const std::uint32_t n_results : {50U, 400U}) {
            std::bernoulli_distribution corrupts(corrupt_share);
            int n_caught = 0;
            for (int worker = 0; worker < n_workers; ++worker) {
                audit_sampler sampler(audit_share, random());
                const auto drawn = sampler.draw(n_results);
                n_caught += std::ranges::any_of(drawn, [&](std::uint32_t) { return corrupts(random); }) ? 1 : 0;
            }
            const double stated = detection_probability(audit_share, corrupt_share, n_results);
            const double deviation = std::sqrt(stated * (1.0 - stated) / n_workers);
            EXPECT_NEAR(static_cast<double>(n_caught) / n_workers, stated, 5.0 * deviation);
        }
    }
    EXPECT_EQ(detection_probability(0.0, 1.0, 1000), 0.0);
    EXPECT_EQ(detection_probability(1.0, 1.0, 1), 1.0);
    EXPECT_EQ(detection_probability(0.5, 0.5, 0), 0.0);
}

TEST(backoff, doubles_up_to_its_ceiling_and_forgets_after_a_success) {
    manual_clock_source clock;
    backoff pause;
    EXPECT_TRUE(pause.allows(clock.now()));
    duration before{};
    for (int failure = 0; failure < 40; ++failure) {
        pause.failed(clock.now());
        const duration length = pause.until() - clock.now();
        EXPECT_EQ(length, failure == 0 ? milliseconds(500) : std::min<duration>(2 * before, seconds(30)));
        EXPECT_FALSE(pause.allows(clock.now()));
        EXPECT_FALSE(pause.allows(pause.until() - duration(1)));
        EXPECT_TRUE(pause.allows(pause.until()));
        before = length;
        clock.advance(length);
    }
    EXPECT_EQ(before, seconds(30));
    pause.succeeded();
    EXPECT_TRUE(pause.allows(clock.now()));
    pause.failed(clock.now());
    EXPECT_EQ(pause.until() - clock.now(), milliseconds(500));
}

/// Eight requests that a busy worker turns away at once are one reason to leave it alone for a while, not eight.
TEST(backoff, counts_failures_during_a_pause_as_one) {
    manual_clock_source clock;
    backoff pause;
    pause.failed(clock.now());
    const time_point until = pause.until();
    for (int i = 0; i < 8; ++i) {
        clock.advance(milliseconds(1));
        pause.failed(clock.now());
    }
    EXPECT_EQ(pause.until(), until);
    clock.advance(seconds(1));
    pause.failed(clock.now());
    EXPECT_EQ(pause.until() - clock.now(), seconds(1));
}

}  // namespace
}  // namespace kvasir::swarm
