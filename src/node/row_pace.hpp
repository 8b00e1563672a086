// How fast a worker may compute when its owner has set a limit: so many rows, (row, expert) pairs that is, per second.
// Pure: `now` goes in, the time at which to begin comes out.
//
// A token bucket. It fills while nothing is computed, up to `burst_rows()`, so that a request now and then is answered
// at once; a request larger than what is there waits until the rest has come in. Over any time T no more rows are begun
// than rate * T and the larger of burst_rows() and one request.
#pragma once

#include <cstdint>

#include "base/clock.hpp"

namespace kvasir::node {

class row_pace {
  public:
    /// `rows_per_second` is positive and finite.
    explicit row_pace(double rows_per_second);

    /// When `n_rows` may be begun that are asked for at `now`, if nothing else is begun before.
    time_point ready_at(time_point now, std::uint64_t n_rows) const;
    /// They are begun at `when`, which ready_at() has given or which is later.
    void begin(time_point when, std::uint64_t n_rows);

    double burst_rows() const { return burst_rows_; }

  private:
    double level(time_point now) const;

    const double rows_per_second_;
    const double burst_rows_;
    double level_;  ///< rows in the bucket at `level_at_`
    time_point level_at_{};
};

}  // namespace kvasir::node
