// A worker's standing: whether it is given work, and of what kind. Pure: time goes in.
//
// It begins trusted. Misses in a row (its work was done elsewhere because it was late) make it suspect: it then gets
// trials only, requests whose rows are computed elsewhere as well, until it has answered some of them in time. A
// failure (an error, a broken connection, silence) earns a pause that doubles from one failure to the next.
#pragma once

#include <cstdint>

#include "base/clock.hpp"

namespace kvasir::swarm {

/// A worker that failed or could not be reached: how long it is left alone. Doubles from one failure to the next;
/// failures during a pause change nothing.
class backoff {
  public:
    void failed(time_point now);
    void succeeded() { consecutive_ = 0; }
    bool allows(time_point now) const { return consecutive_ == 0 || now >= until_; }
    time_point until() const { return until_; }

  private:
    std::uint32_t consecutive_ = 0;
    time_point until_{};
};

class standing {
  public:
    /// It answered: in time, or later than its hedge.
    void answered(bool in_time, time_point now);
    /// Its rows were taken from elsewhere, because it was late.
    void missed(time_point now);
    /// An error, silence beyond all patience, or a lost connection.
    void failed(time_point now);

    bool is_suspect() const { return suspect_; }
    /// It may be given work that is asked of nobody else.
    bool may_work(time_point now) const { return !suspect_ && pause_.allows(now); }
    /// It should be given work that somebody else does as well: a suspect that wants to prove itself, or a worker that
    /// was idle for so long that what is known of it is stale.
    bool wants_trial(time_point now) const;
    void trial_sent(time_point now) { last_trial_ = now; }
    /// It was asked something, trial or not.
    void asked(time_point now) { last_asked_ = now; }

  private:
    backoff pause_;
    bool suspect_ = false;
    std::uint32_t misses_ = 0;  ///< in a row
    std::uint32_t proofs_ = 0;  ///< trials answered in time, in a row
    time_point last_trial_{};
    time_point last_asked_{};
};

}  // namespace kvasir::swarm
