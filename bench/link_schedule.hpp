// When bytes that enter a network link come out at its other end: propagation delay, jitter, a bandwidth cap and
// stalls. Pure: `now` goes in, a time comes out, and the same seed gives the same times.
//
// The order of bytes never changes, as in TCP: what jitter or a stall holds up holds up everything behind it. A lost
// packet is not visible above TCP except as such a stall, so that is how loss is shown here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace kvasir::bench {

struct link_options {
    duration delay{};                    ///< one way
    duration jitter{};                   ///< each piece is delayed by up to this much more, evenly distributed
    std::uint64_t bytes_per_second = 0;  ///< 0: no cap
    /// Mean time between the beginnings of stalls (exponentially distributed); zero: none. What would arrive during a
    /// stall arrives at its end.
    duration stall_every{};
    duration stall_for{};
};

/// Bytes that the link holds at most while they travel: what fits into its longest delay at its bandwidth, and a
/// little more for pieces that come out late. Links without a cap hold `uncapped_line_bytes`, which then is their cap:
/// that much per one-way delay.
std::uint64_t line_capacity_bytes(const link_options& options);
inline constexpr std::uint64_t uncapped_line_bytes = 64ULL * 1024U * 1024U;
/// The longest line that is accepted.
inline constexpr std::uint64_t max_line_bytes = 1024ULL * 1024U * 1024U;

/// errc::invalid_input or errc::limit_exceeded with a sentence when no link can be like this.
result<void> check(const link_options& options);

/// One direction of one connection.
class link_schedule {
  public:
    link_schedule(const link_options& options, std::uint64_t seed);

    /// `n_bytes` are put on the link at `now`; when the last of them arrives. Never before an earlier answer.
    time_point arrival(time_point now, std::size_t n_bytes);
    /// While this lies in the future, the link is busy sending what it was given.
    time_point free_at() const { return free_at_; }

  private:
    time_point after_stalls(time_point arrival);

    const link_options options_;
    std::mt19937_64 random_;
    time_point free_at_{};
    time_point last_arrival_{};
    bool begun_ = false;
    time_point next_stall_{};
};

}  // namespace kvasir::bench
