// How long a worker takes, learned from its answers, and how long to wait for the next one. Pure: times go in.
//
// What a request takes is taken for a sum:
//
//     fixed + bytes * per_byte + pairs * per_pair
//
// `fixed` is the round trip of an empty request: the least that remained of recent answers when the worker's own
// computing and queueing time was taken off. What remained above it was spent on bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"

namespace kvasir::swarm {

struct request_size {
    std::uint32_t n_pairs = 0;
    std::uint64_t bytes = 0;  ///< of the request and its result
};

struct answer_time {
    request_size size;
    duration elapsed{};  ///< from sending to the answer, by our clock
    duration compute{};  ///< the worker's word
    duration queue{};    ///< the worker's word
};

/// Below this a hiccup of the scheduler decides, and computing twice costs more than waiting.
inline constexpr duration default_min_hedge = std::chrono::milliseconds(20);

/// Exponentially weighted estimates of one worker, and how far its answers stray from them.
class service_time {
  public:
    /// Nothing is hedged before `min_hedge`.
    explicit service_time(duration min_hedge = default_min_hedge) : min_hedge_(min_hedge) {}

    void record(const answer_time& answer);
    /// A request that was cancelled unanswered after `elapsed`: it would have taken at least this long. A worker that
    /// stalls is thereby remembered as slow, though no answer ever said so.
    void record_unanswered(const request_size& size, duration elapsed);

    bool measured() const { return n_answers_ > 0; }
    double fixed_us() const { return fixed_us_; }
    double per_pair_us() const { return per_pair_us_; }
    double per_byte_us() const { return per_byte_us_; }
    double expected_us(const request_size& size) const;

    /// After this long an answer is later than nearly all that this worker gave: time to ask elsewhere as well. It is
    /// `hedge_quantile` of the worker's own recent answers, measured against what was expected of each.
    duration hedge_after(const request_size& size) const;
    /// After this long the request counts as failed. Never below `hedge_after`, bounded on both sides.
    duration patience(const request_size& size) const;

    static constexpr double hedge_quantile = 0.95;

  private:
    static constexpr std::size_t n_kept = 64;
    template <std::size_t size>
    struct ring {
        std::array<double, size> values{};
        std::size_t count = 0;
        std::size_t next = 0;

        void push(double value) {
            values[next] = value;
            next = (next + 1) % size;
            count = count < size ? count + 1 : size;
        }
    };

    duration min_hedge_;
    // Before the first answer: a phone far away. Too high costs a slow start, too low a needless hedge.
    double fixed_us_ = 100'000.0;
    double per_pair_us_ = 5'000.0;
    double per_byte_us_ = 0.1;
    std::uint64_t n_answers_ = 0;
    ring<16> overheads_us_;   ///< what the network took of recent answers, in all
    ring<n_kept> strayings_;  ///< elapsed / expected of recent answers
};

}  // namespace kvasir::swarm
