#include "node/row_pace.hpp"

#include <algorithm>

namespace kvasir::node {
namespace {

using seconds_f64 = std::chrono::duration<double>;

/// What may be saved up. Long enough that the scheduler's hiccups do not make the worker slower than its limit, too
/// short for an owner to notice.
constexpr double burst_s = 0.05;
/// No request waits longer at the front: a limit that low is none that anybody sets to be useful, and times must not
/// overflow.
constexpr double longest_wait_s = 3600.0;

}  // namespace

row_pace::row_pace(double rows_per_second)
    : rows_per_second_(rows_per_second), burst_rows_(std::max(1.0, rows_per_second * burst_s)), level_(burst_rows_) {}

double row_pace::level(time_point now) const {
    const double elapsed_s = std::max(0.0, seconds_f64(now - level_at_).count());
    return std::min(burst_rows_, level_ + elapsed_s * rows_per_second_);
}

time_point row_pace::ready_at(time_point now, std::uint64_t n_rows) const {
    const double missing = static_cast<double>(n_rows) - level(now);
    if (missing <= 0.0) return now;
    return now + std::chrono::ceil<duration>(seconds_f64(std::min(missing / rows_per_second_, longest_wait_s)));
}

void row_pace::begin(time_point when, std::uint64_t n_rows) {
    // A request larger than the bucket has been filling it beyond its brim: that part goes straight to it.
    const double filled = level_ + std::max(0.0, seconds_f64(when - level_at_).count()) * rows_per_second_;
    const double brim = std::max(burst_rows_, static_cast<double>(n_rows));
    level_ = std::max(0.0, std::min(filled, brim) - static_cast<double>(n_rows));
    level_at_ = when;
}

}  // namespace kvasir::node
