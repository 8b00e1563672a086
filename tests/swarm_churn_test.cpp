// Several threads ask at once while workers fail in every way, leave and come back, at random: every row is right, and
// every pair is counted in exactly one place.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "swarm_faked.hpp"

namespace kvasir::swarm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t n_workers = 4;
constexpr std::size_t n_askers = 3;
constexpr duration at_least = seconds(5);
constexpr duration at_most = seconds(60);

/// Each expert at about half of the workers; experts of layer 0 only at some.
std::vector<std::vector<wire::expert_range>> random_holdings(std::mt19937& random) {
    std::vector<std::vector<wire::expert_range>> ranges(3);
    for (auto& of_layer : ranges)
        for (std::uint32_t expert = 0; expert < 8; ++expert)
            if (below(2, random) == 0) of_layer.push_back({{expert}, 1});
    if (ranges[1].empty()) ranges[1].push_back({{0}, 8});
    return ranges;
}

/// Mostly right; whoever asks is on several threads, under the worker's lock.
fake_worker::script random_script(std::uint32_t seed) {
    return [random = std::make_shared<std::mt19937>(seed)](const wire::compute_request&) {
        constexpr std::array faults = {fate::hold,        fate::late,         fate::hold,
                                       fate::error,       fate::close,        fate::drain,
                                       fate::refuse_busy, fate::refuse_limit, fate::other_layer};
        const std::uint32_t drawn = below(2000, *random);
        if (drawn < 3) return fate::ignore;
        if (drawn < 5) return fate::too_few_rows;
        if (drawn < 7) return fate::too_narrow;
        return drawn < 120 ? faults[drawn % faults.size()] : fate::answer;
    };
}

struct asked_counts {
    std::atomic<std::uint64_t> pairs = 0;
    std::atomic<std::uint64_t> wrong = 0;
    std::atomic<std::uint64_t> in_swarm = 0;
};

/// Asks one call after another until told to stop.
void ask(expert_swarm& swarm, const test_model& model, std::uint32_t seed, const std::atomic<bool>& stop,
         asked_counts& counts) {
    std::mt19937 random(seed);
    expert::engine engine(1);
    while (!stop) {
        test_call one(model, below(3, random), 1 + below(8, random), 1 + below(40, random), random);
        one.prepare(engine);
        const auto done = swarm.compute(one.call(), engine);
        counts.pairs += one.n_pairs();
        if (!done || (*done == outcome::computed && !one.is_right())) ++counts.wrong;
        if (done && *done == outcome::computed) ++counts.in_swarm;
        std::this_thread::sleep_for(milliseconds(1));
    }
}

/// Whether each of the workers has computed something and has failed at something.
bool all_came_and_failed(const kvasir::swarm::statistics& seen) {
    return std::ranges::all_of(seen.workers,
                               [](const worker_statistics& worker) { return worker.pairs > 0 && worker.failures > 0; });
}

TEST(swarm_churn, every_row_is_right_and_counted_once) {
    faked_swarm here;
    here.hedge_early();
    for (std::size_t i = 0; i < n_workers; ++i)
        here.add(random_holdings(here.random()));
    here.start();
    for (std::uint32_t i = 0; i < n_workers; ++i)
        here.workers()[i]->follow(random_script(100 + i));

    std::atomic<bool> stop = false;
    asked_counts counts;
    std::vector<std::thread> askers;
    for (std::uint32_t i = 0; i < n_askers; ++i)
        askers.emplace_back([&, i] { ask(here.swarm(), here.model(), 200 + i, stop, counts); });

    const time_point begun = steady_clock_source().now();
    const auto has_lasted = [begun](duration time) { return steady_clock_source().now() - begun >= time; };
    const auto is_enough = [&] { return has_lasted(at_least) && all_came_and_failed(here.swarm().statistics()); };
    for (int step = 0; !is_enough() && !has_lasted(at_most); ++step) {
        std::this_thread::sleep_for(milliseconds(10));
        for (const auto& worker : here.workers())
            if (below(3, here.random()) == 0) worker->release();
        fake_worker& one = *here.workers()[below(n_workers, here.random())];
        if (step % 70 == 30) one.drain();
        if (step % 70 == 60) one.close_connections();
        if (step % 70 == 65) one.refuse_connections(error(errc::timeout, "no answer"));
        if (step % 70 == 5)
            for (const auto& worker : here.workers())
                worker->refuse_connections({});
        const kvasir::swarm::statistics seen = here.swarm().statistics();
        EXPECT_LE(seen.n_experts_covered, 24U);
    }
    stop = true;
    for (std::thread& asker : askers)
        asker.join();

    EXPECT_EQ(counts.wrong, 0U);
    EXPECT_GT(counts.in_swarm, 100U);
    here.count_asked(counts.pairs);
    here.expect_counts_add_up();
    const kvasir::swarm::statistics seen = here.swarm().statistics();
    EXPECT_GT(seen.fallback_pairs, 0U) << "nothing ever failed";
    EXPECT_GT(seen.layer_calls, 100U);
    EXPECT_LE(seen.layer_calls, counts.in_swarm) << "in some, nobody took anything";
    EXPECT_TRUE(all_came_and_failed(seen));
}

/// A swarm that goes while its workers are busy, connecting or leaving takes nothing along.
TEST(swarm_churn, ends_at_any_time) {
    std::mt19937 random(33);
    for (int round = 0; round < 12; ++round) {
        faked_swarm here;
        for (std::size_t i = 0; i < 2; ++i) {
            here.add_whole();
            here.workers()[i]->follow([](const wire::compute_request&) { return fate::drain; });
        }
        here.start();
        here.expect_right(below(3, random), 4, 10);
        if (round % 3 == 0) here.workers()[0]->close_connections();
        if (round % 3 == 1) here.workers()[1]->drain();
    }
}

}  // namespace
}  // namespace kvasir::swarm
