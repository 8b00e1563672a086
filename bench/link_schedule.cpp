#include "bench/link_schedule.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace kvasir::bench {
namespace {

using seconds_f64 = std::chrono::duration<double>;

/// What may be due and not yet written because the process was not scheduled in time.
constexpr std::uint64_t late_bytes = 256U * 1024U;

constexpr duration longest_time = std::chrono::hours(1);

duration sending_time(std::size_t n_bytes, std::uint64_t bytes_per_second) {
    if (bytes_per_second == 0) return duration::zero();
    return std::chrono::ceil<duration>(
        seconds_f64(static_cast<double>(n_bytes) / static_cast<double>(bytes_per_second)));
}

}  // namespace

std::uint64_t line_capacity_bytes(const link_options& options) {
    if (options.bytes_per_second == 0) return uncapped_line_bytes;
    const double longest_s = seconds_f64(options.delay + options.jitter + options.stall_for).count();
    const double bytes = longest_s * static_cast<double>(options.bytes_per_second);
    return late_bytes + static_cast<std::uint64_t>(std::min(bytes, 2.0 * static_cast<double>(max_line_bytes)));
}

result<void> check(const link_options& options) {
    for (const duration one : {options.delay, options.jitter, options.stall_every, options.stall_for})
        if (one < duration::zero() || one > longest_time)
            return error(errc::invalid_input, "a link's times lie between zero and one hour");
    if ((options.stall_every > duration::zero()) != (options.stall_for > duration::zero()))
        return error(errc::invalid_input, "stalls need both how often they come and how long they last");
    if (const std::uint64_t bytes = line_capacity_bytes(options); bytes > max_line_bytes)
        return error(errc::limit_exceeded,
                     fmt::format("this link would hold more than {} MiB on its way; choose less delay or bandwidth",
                                 max_line_bytes >> 20U));
    return {};
}

link_schedule::link_schedule(const link_options& options, std::uint64_t seed) : options_(options), random_(seed) {}

time_point link_schedule::arrival(time_point now, std::size_t n_bytes) {
    free_at_ = std::max(free_at_, now) + sending_time(n_bytes, options_.bytes_per_second);
    time_point arrives = free_at_ + options_.delay;
    if (options_.jitter > duration::zero())
        arrives += duration(std::uniform_int_distribution<duration::rep>(0, options_.jitter.count())(random_));
    if (options_.stall_every > duration::zero()) {
        if (!begun_) next_stall_ = now;
        arrives = after_stalls(arrives);
    }
    begun_ = true;
    last_arrival_ = std::max(last_arrival_, arrives);
    return last_arrival_;
}

time_point link_schedule::after_stalls(time_point arrival) {
    const auto pause = [this] {
        const double mean_s = seconds_f64(options_.stall_every).count();
        return std::chrono::ceil<duration>(seconds_f64(std::exponential_distribution<double>(1.0 / mean_s)(random_)));
    };
    if (!begun_) next_stall_ += pause();
    while (next_stall_ + options_.stall_for <= arrival)
        next_stall_ += std::max(pause(), options_.stall_for);
    return arrival < next_stall_ ? arrival : next_stall_ + options_.stall_for;
}

}  // namespace kvasir::bench
