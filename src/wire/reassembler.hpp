// Bytes in, messages out: finds frames in a byte stream and puts chunks together again.
//
// Invariant: what it holds is bounded by its limits whatever arrives. A length is checked before anything is allocated
// for it, and nothing is allocated beyond the chunk that is arriving.
//
// It is pulled: next() eats from the given bytes until there is something to decide or to hand over. Between a
// frame_header and the following next() the caller says by keep() or discard() what is to become of the frame. It
// judges only framing; which message may come when is the conversation's concern.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/bytes.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "wire/byte_budget.hpp"
#include "wire/frame.hpp"
#include "wire/hello.hpp"
#include "wire/payload.hpp"
#include "wire/protocol.hpp"

namespace kvasir::wire {

/// What one violation of the framing is called, for the ERROR that ends the connection.
struct framing_fault {
    error_code code = error_code::malformed;
    std::string text{};
};

/// A whole message. Of a discarded one only the reason is left.
struct raw_message {
    frame_type type{};
    layer_id layer{};
    request_id request{};
    payload_buffer payload{};
    std::optional<error_code> discarded{};
};

class reassembler {
  public:
    /// Payloads are counted against `budget` (null: unbounded); a message for which it does not suffice is discarded as
    /// busy.
    reassembler(const limits& accepts, std::shared_ptr<byte_budget> budget);

    struct need_more {};
    /// need_more: all bytes are eaten. frame_header: say keep() or discard() before the next call; never of an unknown
    /// optional type (those are skipped here) nor with a length beyond the limits. framing_fault: the stream is useless
    /// from here on.
    using step = std::variant<need_more, frame_header, raw_message, framing_fault>;
    step next(byte_span& bytes, time_point now);

    /// The frame whose header came last is wanted, or is not because of `reason`. A message that was discarded once
    /// stays so.
    void keep();
    void discard(error_code reason);

    /// Where the next payload bytes belong, so that they can be read from the socket to their place. May be empty.
    /// Valid until the next call of next() or commit_direct().
    std::span<std::byte> direct_buffer();
    void commit_direct(std::size_t count, time_point now);

    /// True when a message of this type and id is begun and not finished.
    bool is_open(frame_type type, request_id request) const;
    std::size_t n_open(frame_type type) const;
    /// Forgets what there is of an unfinished message; the rest is skipped. False when there is none.
    bool discard_open(frame_type type, request_id request, error_code reason);

    /// When the unfinished message that has waited longest for its next chunk last grew; empty when none is unfinished.
    std::optional<time_point> oldest_progress() const;
    void touch(time_point now);  ///< as if all unfinished messages had just grown

  private:
    struct partial {
        frame_type type{};
        layer_id layer{};
        request_id request{};
        payload_buffer payload{};
        std::optional<error_code> discarded{};
        time_point progress{};
    };
    enum class phase { header, verdict, payload };

    std::optional<framing_fault> check_frame() const;
    std::optional<framing_fault> check_data_frame(std::uint64_t held_bytes) const;
    void begin_payload(std::optional<error_code> discarded);
    void eat_payload(byte_span& bytes, time_point now);
    std::optional<raw_message> finish_frame(time_point now);
    partial* find(frame_type type, request_id request);
    const partial* find(frame_type type, request_id request) const;

    limits accepts_;
    std::shared_ptr<byte_budget> budget_;

    phase phase_ = phase::header;
    frame_header_array header_bytes_{};
    std::size_t header_filled_ = 0;
    frame_header header_;
    time_point header_time_{};
    bool skip_unknown_ = false;
    std::uint64_t rest_bytes_ = 0;    ///< of the payload of the frame that is arriving
    std::span<std::byte> target_;     ///< where they go; empty when they are skipped
    std::optional<partial> current_;  ///< the message the arriving frame belongs to
    std::vector<partial> open_;       ///< begun, not finished, and not the current one
};

}  // namespace kvasir::wire
