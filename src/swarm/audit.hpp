// Audits: which results of untrusted workers are computed again, and how likely that finds a liar. Pure.
//
// Exactness makes an audit a comparison of bytes. Each (row, expert) result is drawn independently with the same
// probability `share`, so a worker cannot know which of its results will be looked at.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace kvasir::swarm {

class audit_sampler {
  public:
    /// `share` of all results, 0 to 1.
    audit_sampler(double share, std::uint64_t seed);

    /// Those of the next `n_results` results that are to be audited, ascending. Costs follow the number drawn.
    std::vector<std::uint32_t> draw(std::uint32_t n_results);

  private:
    double share_;
    std::mt19937_64 random_;
    std::uint64_t until_next_ = 0;  ///< results that pass before the next audit
    void skip();
};

/// The probability that a worker that corrupts `corrupt_share` of its results has been caught after `n_results` of
/// them: 1 - (1 - audit_share * corrupt_share)^n_results.
double detection_probability(double audit_share, double corrupt_share, std::uint64_t n_results);

}  // namespace kvasir::swarm
