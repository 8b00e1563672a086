// The delaying link under a clock that the test turns.
#include "bench/link_schedule.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvasir::bench {
namespace {

using namespace std::chrono_literals;

constexpr time_point start{1h};

TEST(link_schedule, delays_every_piece_alike) {
    link_schedule link({.delay = 20ms}, 1);
    EXPECT_EQ(link.arrival(start, 1), start + 20ms);
    EXPECT_EQ(link.arrival(start + 3ms, 1'000'000), start + 23ms);
    EXPECT_LE(link.free_at(), start + 3ms);
}

TEST(link_schedule, sends_no_faster_than_its_bandwidth) {
    link_schedule link({.delay = 10ms, .bytes_per_second = 1000}, 1);
    EXPECT_EQ(link.arrival(start, 100), start + 110ms);
    EXPECT_EQ(link.free_at(), start + 100ms);
    // It waits for the one before …
    EXPECT_EQ(link.arrival(start + 50ms, 100), start + 210ms);
    // … but nothing is saved up while the link is idle.
    EXPECT_EQ(link.arrival(start + 1s, 100), start + 1110ms);
}

TEST(link_schedule, jitter_is_bounded_and_keeps_the_order) {
    link_schedule link({.delay = 10ms, .jitter = 30ms}, 1);
    time_point last{};
    duration least = 1h;
    duration most{};
    for (int i = 0; i < 1000; ++i) {
        const time_point now = start + i * 50ms;  // further apart than the jitter: no piece waits for another
        const time_point arrives = link.arrival(now, 10);
        EXPECT_GE(arrives, last);
        last = arrives;
        least = std::min(least, arrives - now);
        most = std::max(most, arrives - now);
    }
    EXPECT_GE(least, 10ms);
    EXPECT_LE(most, 40ms);
    EXPECT_LT(least, 11ms);
    EXPECT_GT(most, 39ms);
    link_schedule dense({.delay = 10ms, .jitter = 30ms}, 1);
    for (int i = 0; i < 1000; ++i) {
        const time_point arrives = dense.arrival(start + i * 1ms, 10);
        if (i > 0) {
            EXPECT_GE(arrives, last);
        }
        last = arrives;
    }
}

TEST(link_schedule, a_stall_holds_up_what_would_arrive_in_it) {
    const link_options options{.delay = 5ms, .stall_every = 200ms, .stall_for = 60ms};
    link_schedule link(options, 7);
    time_point last{};
    int n_held = 0;
    constexpr int n_pieces = 20'000;
    for (int i = 0; i < n_pieces; ++i) {
        const time_point now = start + i * 1ms;
        const time_point arrives = link.arrival(now, 10);
        EXPECT_GE(arrives - now, 5ms);
        EXPECT_LE(arrives - now, 65ms);
        EXPECT_GE(arrives, last);
        last = arrives;
        if (arrives - now > 5ms) ++n_held;
    }
    // Stalls begin 200 ms apart on average, never within one another: some 60 of 218 ms.
    EXPECT_GT(n_held, n_pieces / 6);
    EXPECT_LT(n_held, n_pieces / 2);
}

TEST(link_schedule, the_seed_decides) {
    const link_options options{.delay = 5ms, .jitter = 20ms, .stall_every = 50ms, .stall_for = 5ms};
    const auto arrivals = [&](std::uint64_t seed) {
        link_schedule link(options, seed);
        std::vector<time_point> all;
        for (int i = 0; i < 100; ++i)
            all.push_back(link.arrival(start + i * 10ms, 10));
        return all;
    };
    EXPECT_EQ(arrivals(1), arrivals(1));
    EXPECT_NE(arrivals(1), arrivals(2));
}

TEST(link_schedule, its_line_holds_bandwidth_times_delay) {
    EXPECT_GE(line_capacity_bytes({.delay = 100ms, .bytes_per_second = 100'000'000}), 10'000'000U);
    EXPECT_GE(
        line_capacity_bytes(
            {.delay = 50ms, .jitter = 20ms, .bytes_per_second = 100'000'000, .stall_every = 1s, .stall_for = 30ms}),
        10'000'000U);
    EXPECT_LT(line_capacity_bytes({.delay = 1ms, .bytes_per_second = 1000}), 1'000'000U);
}

TEST(link_schedule, impossible_links_are_refused) {
    EXPECT_TRUE(check({}));
    EXPECT_TRUE(check({.delay = 1s, .jitter = 1s, .bytes_per_second = 1, .stall_every = 1s, .stall_for = 1ms}));
    EXPECT_FALSE(check({.delay = -1ms}));
    EXPECT_FALSE(check({.delay = 2h}));
    EXPECT_FALSE(check({.stall_every = 1s}));
    EXPECT_FALSE(check({.stall_for = 1s}));
    EXPECT_FALSE(check({.delay = 1h, .bytes_per_second = 1'000'000'000}));
    EXPECT_FALSE(check({.delay = 1h, .bytes_per_second = ~0ULL}));
}

}  // namespace
}  // namespace kvasir::bench
