// Time is passed in: production reads the steady clock, tests and the simulator turn their own.
#pragma once

#include <chrono>

namespace kvasir {

using duration = std::chrono::nanoseconds;
using time_point = std::chrono::time_point<std::chrono::steady_clock, duration>;

class clock_source {
  public:
    virtual ~clock_source() = default;
    virtual time_point now() const = 0;
};

class steady_clock_source final : public clock_source {
  public:
    time_point now() const override { return std::chrono::time_point_cast<duration>(std::chrono::steady_clock::now()); }
};

/// A clock that stands still until it is told to move.
class manual_clock_source final : public clock_source {
  public:
    time_point now() const override { return now_; }
    void advance(duration by) { now_ += by; }

  private:
    time_point now_{};
};

}  // namespace kvasir
