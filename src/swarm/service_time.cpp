#include "swarm/service_time.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace kvasir::swarm {
namespace {

using std::chrono::seconds;

// One answer counts for an eighth: some ten answers forget a change of the network.
constexpr double weight_of_newest = 0.125;
// Fewer answers than this say little about their spread.
constexpr std::size_t min_answers_for_a_quantile = 8;
constexpr double first_hedge_factor = 3.0;
// Even the quantile is exceeded by every twentieth answer of a healthy worker: a little beyond it.
constexpr double hedge_margin = 1.25;
// A worker that says nothing for this long has failed; hedging has long taken care of its work.
constexpr duration min_patience = seconds(1);
// Above this a person thinks the answer has stopped.
constexpr duration max_patience = seconds(15);
constexpr double patience_factor = 4.0;

double to_us(duration value) {
    return std::chrono::duration<double, std::micro>(value).count();
}

duration from_us(double value_us) {
    return std::chrono::duration_cast<duration>(
        std::chrono::duration<double, std::micro>(std::min(value_us, to_us(max_patience))));
}

double quantile(std::span<const double> values, double share) {
    std::vector<double> sorted(values.begin(), values.end());
    const auto at = static_cast<std::size_t>(std::floor(share * static_cast<double>(sorted.size() - 1) + 0.5));
    std::ranges::nth_element(sorted, sorted.begin() + static_cast<std::ptrdiff_t>(at));
    return sorted[at];
}

}  // namespace

double service_time::expected_us(const request_size& size) const {
    return fixed_us_ + per_byte_us_ * static_cast<double>(size.bytes) + per_pair_us_ * size.n_pairs;
}

void service_time::record(const answer_time& answer) {
    const double elapsed_us = std::max(1.0, to_us(answer.elapsed));
    if (measured()) strayings_.push(elapsed_us / std::max(1.0, expected_us(answer.size)));

    // The worker's word about itself only divides what our own clock measured.
    const double compute_us = std::clamp(to_us(answer.compute), 0.0, elapsed_us);
    const double queue_us = std::clamp(to_us(answer.queue), 0.0, elapsed_us - compute_us);
    const double overhead_us = elapsed_us - compute_us - queue_us;
    overheads_us_.push(overhead_us);
    fixed_us_ = *std::min_element(overheads_us_.values.begin(),
                                  overheads_us_.values.begin() + static_cast<std::ptrdiff_t>(overheads_us_.count));

    const double weight = measured() ? weight_of_newest : 1.0;
    const double per_pair_us = compute_us / std::max<std::uint32_t>(1, answer.size.n_pairs);
    const double per_byte_us =
        (overhead_us - fixed_us_) / static_cast<double>(std::max<std::uint64_t>(1, answer.size.bytes));
    per_pair_us_ += weight * (per_pair_us - per_pair_us_);
    per_byte_us_ += weight * (per_byte_us - per_byte_us_);
    ++n_answers_;
}

void service_time::record_unanswered(const request_size& size, duration elapsed) {
    const double expected = expected_us(size);
    const double excess_us = to_us(elapsed) - expected;
    if (excess_us <= 0.0) return;
    // Nobody knows whether the network or the worker was slow. Booked as slow computing it fades with answers, as
    // all estimates do; it is no answer, so the quantile does not learn to be patient from it.
    per_pair_us_ += weight_of_newest * excess_us / std::max<std::uint32_t>(1, size.n_pairs);
}

duration service_time::hedge_after(const request_size& size) const {
    double factor = first_hedge_factor;
    if (strayings_.count >= min_answers_for_a_quantile)
        factor = hedge_margin *
                 std::max(1.0, quantile(std::span(strayings_.values).first(strayings_.count), hedge_quantile));
    return std::max(min_hedge_, std::min(from_us(factor * expected_us(size)), max_patience));
}

duration service_time::patience(const request_size& size) const {
    const duration wait = std::clamp(from_us(patience_factor * expected_us(size)), min_patience, max_patience);
    return std::max(wait, hedge_after(size));
}

}  // namespace kvasir::swarm
