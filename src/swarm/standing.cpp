#include "swarm/standing.hpp"

#include <algorithm>

namespace kvasir::swarm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr duration first_pause = milliseconds(500);
constexpr duration max_pause = seconds(30);
constexpr std::uint32_t misses_until_suspect = 3;
constexpr std::uint32_t proofs_until_trusted = 3;
constexpr duration trial_interval = milliseconds(250);
// Networks change within minutes; a few rows computed twice every five seconds are no burden.
constexpr duration stale_after = seconds(5);

}  // namespace

void backoff::failed(time_point now) {
    // What fails during the pause was asked before it: the same trouble, not a new one.
    if (!allows(now)) return;
    constexpr std::uint32_t max_doublings = 10;
    const duration pause = first_pause * (1U << std::min(consecutive_, max_doublings));
    until_ = now + std::min(pause, max_pause);
    ++consecutive_;
}

void standing::answered(bool in_time, time_point now) {
    pause_.succeeded();
    if (!in_time) return missed(now);
    misses_ = 0;
    if (suspect_ && ++proofs_ >= proofs_until_trusted) suspect_ = false;
}

void standing::missed(time_point) {
    proofs_ = 0;
    if (++misses_ >= misses_until_suspect) suspect_ = true;
}

void standing::failed(time_point now) {
    pause_.failed(now);
    missed(now);
}

bool standing::wants_trial(time_point now) const {
    if (!pause_.allows(now) || now - last_trial_ < trial_interval) return false;
    return suspect_ || now - last_asked_ >= stale_after;
}

}  // namespace kvasir::swarm
