#include "swarm/audit.hpp"

#include <cmath>
#include <limits>

namespace kvasir::swarm {

audit_sampler::audit_sampler(double share, std::uint64_t seed) : share_(share), random_(seed) {
    skip();
}

/// The gap between independent draws is geometric: one random number per audit, not per result.
void audit_sampler::skip() {
    if (share_ <= 0.0) {
        until_next_ = std::numeric_limits<std::uint64_t>::max();
    } else if (share_ >= 1.0) {
        until_next_ = 0;
    } else {
        until_next_ = std::geometric_distribution<std::uint64_t>(share_)(random_);
    }
}

std::vector<std::uint32_t> audit_sampler::draw(std::uint32_t n_results) {
    std::vector<std::uint32_t> drawn;
    if (share_ <= 0.0) return drawn;
    std::uint64_t at = 0;
    while (until_next_ < n_results - at) {
        at += until_next_;
        drawn.push_back(static_cast<std::uint32_t>(at));
        ++at;
        skip();
    }
    until_next_ -= n_results - at;
    return drawn;
}

double detection_probability(double audit_share, double corrupt_share, std::uint64_t n_results) {
    const double per_result = audit_share * corrupt_share;
    if (per_result >= 1.0) return n_results > 0 ? 1.0 : 0.0;
    // log1p and expm1 keep the digits of small shares.
    return -std::expm1(static_cast<double>(n_results) * std::log1p(-per_result));
}

}  // namespace kvasir::swarm
