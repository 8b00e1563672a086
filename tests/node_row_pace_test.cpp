// The limit on rows per second under a clock that the test turns.
#include "node/row_pace.hpp"

#include <gtest/gtest.h>

#include <random>

namespace kvasir::node {
namespace {

using namespace std::chrono_literals;

constexpr time_point start{1h};

TEST(row_pace, a_burst_is_free_and_the_rest_takes_its_time) {
    row_pace pace(200.0);
    ASSERT_EQ(pace.burst_rows(), 10.0);
    EXPECT_EQ(pace.ready_at(start, 10), start);
    pace.begin(start, 10);
    EXPECT_EQ(pace.ready_at(start, 0), start);
    EXPECT_EQ(pace.ready_at(start, 1), start + 5ms);
    EXPECT_EQ(pace.ready_at(start, 100), start + 500ms);
    // Asking changes nothing; waiting does.
    EXPECT_EQ(pace.ready_at(start + 4ms, 1), start + 5ms);
    EXPECT_EQ(pace.ready_at(start + 5ms, 1), start + 5ms);
}

TEST(row_pace, nothing_is_saved_beyond_the_burst) {
    row_pace pace(200.0);
    pace.begin(start, 10);
    EXPECT_EQ(pace.ready_at(start + 1h, 20), start + 1h + 50ms);
}

TEST(row_pace, a_request_larger_than_the_burst_uses_up_what_it_waited_for) {
    row_pace pace(200.0);
    pace.begin(start, 10);
    const time_point ready = pace.ready_at(start, 100);
    pace.begin(ready, 100);
    EXPECT_EQ(pace.ready_at(ready, 1), ready + 5ms);
}

TEST(row_pace, a_low_limit_lets_single_rows_pass) {
    row_pace pace(0.5);
    EXPECT_EQ(pace.burst_rows(), 1.0);
    EXPECT_EQ(pace.ready_at(start, 1), start);
    pace.begin(start, 1);
    EXPECT_EQ(pace.ready_at(start, 1), start + 2s);
    // However large, times stay within what a clock can say.
    EXPECT_GT(pace.ready_at(start, ~0ULL), start);
    EXPECT_LE(pace.ready_at(start, ~0ULL), start + 1h);
}

TEST(row_pace, holds_the_rate_whatever_is_asked_and_when) {
    std::mt19937_64 random(3);
    for (const double rate : {3.0, 70.0, 5000.0}) {
        row_pace pace(rate);
        time_point now = start;
        double rows = 0.0;
        double largest = pace.burst_rows();
        for (int i = 0; i < 2000; ++i) {
            if (random() % 4 == 0) now += std::chrono::microseconds(random() % 100'000);
            const std::uint64_t n = random() % 40;
            const time_point ready = pace.ready_at(now, n);
            ASSERT_GE(ready, now);
            now = ready + std::chrono::microseconds(random() % 300);
            pace.begin(now, n);
            rows += static_cast<double>(n);
            largest = std::max(largest, static_cast<double>(n));
            const double elapsed_s = std::chrono::duration<double>(now - start).count();
            ASSERT_LE(rows, rate * elapsed_s + largest + 1e-6) << i;
        }
    }
}

TEST(row_pace, reaches_the_rate_when_there_is_always_work) {
    row_pace pace(1000.0);
    time_point now = start;
    for (int i = 0; i < 1000; ++i) {
        now = pace.ready_at(now, 8);
        pace.begin(now, 8);
    }
    EXPECT_LE(now - start, 8s);
    EXPECT_GE(now - start, 8s - 50ms - 1us);
}

}  // namespace
}  // namespace kvasir::node
