// Where the answers to one layer call arrive: filled by network threads, emptied by the thread that waits.
//
// Invariant: results are only handed over here; the thread that asked writes them to their place. When it has stopped
// asking (a deadline passed), a late answer finds an inbox nobody reads and vanishes with it: nothing is written twice.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "wire/messages.hpp"

namespace kvasir::swarm {

struct arrival {
    std::uint32_t request = 0;  ///< its position in the layer call
    std::optional<wire::received_result> result;
    std::string failure;  ///< one line, when there is no result
};

class call_inbox {
  public:
    void put(arrival one) {
        {
            const std::lock_guard lock(mutex_);
            arrivals_.push_back(std::move(one));
        }
        arrived_.notify_one();
    }

    /// The next arrival; empty when `deadline` passes first.
    std::optional<arrival> wait_until(time_point deadline) {
        std::unique_lock lock(mutex_);
        if (!arrived_.wait_until(lock, deadline, [this] { return !arrivals_.empty(); })) return std::nullopt;
        arrival first = std::move(arrivals_.front());
        arrivals_.pop_front();
        return first;
    }

  private:
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<arrival> arrivals_;
};

}  // namespace kvasir::swarm
