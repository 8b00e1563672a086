// Messages in, bytes out: cuts messages into frames and decides whose frame is next.
//
// Order: control frames first; then one chunk of each begun message in turn. A message that fits one frame is always
// begun at once; one of several chunks waits until the receiver's bounds on unfinished messages allow it
// (protocol.hpp).
//
// Nothing is copied: frames are written from the bytes that the messages refer to. gather() commits a bounded amount,
// so that what comes later and is urgent waits for little; committed bytes stay where they are until consume() says
// that they are written, so a write may go on while more is queued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/bytes.hpp"
#include "base/ids.hpp"
#include "wire/frame.hpp"
#include "wire/hello.hpp"
#include "wire/messages.hpp"
#include "wire/payload.hpp"
#include "wire/protocol.hpp"

namespace kvasir::wire {

class chunker {
  public:
    /// What the receiver accepts. Before this is known only control frames may be pushed.
    void set_limits(const limits& receiver) { receiver_ = receiver; }

    void push_control(frame_type type, request_id request, std::vector<std::byte> payload);
    /// The message must not be larger than the receiver's maximum.
    void push_message(frame_type type, layer_id layer, request_id request, payload_pieces pieces);

    enum class withdrawal { not_there, dropped, cut_short };
    /// Takes a message back. `dropped`: nothing of it was committed and nothing will be. `cut_short`: it is begun and
    /// will end early. `not_there`: it is unknown or committed to its end.
    withdrawal withdraw(frame_type type, request_id request);
    /// Forgets all messages and control frames that are not committed, even in mid-message: before the last words.
    void drop_uncommitted();

    /// Payload and header bytes that are queued and not consumed.
    std::uint64_t pending_bytes() const { return committed_bytes_ + queued_bytes_; }
    std::size_t n_control() const { return control_.size(); }

    /// Appends spans of what is to be written next: what is committed and, while that is less than `target_bytes`, more
    /// frames. At most `max_spans` spans.
    void gather(std::vector<byte_span>& out, std::uint64_t target_bytes, std::size_t max_spans);
    /// The first `count` bytes of what gather() returned are written.
    void consume(std::size_t count);

  private:
    struct control_frame {
        frame_type type{};
        request_id request{};
        std::vector<std::byte> payload{};
    };
    struct message {
        frame_type type{};
        layer_id layer{};
        request_id request{};
        payload_pieces pieces{};
        std::size_t piece = 0;  ///< where the next chunk starts: piece and offset in it
        std::size_t piece_offset = 0;
        std::uint64_t total_bytes = 0;
        std::uint64_t rest_bytes = 0;  ///< not yet committed
        bool counted = false;          ///< takes part in the bounds on unfinished messages
        bool begun() const { return rest_bytes != total_bytes; }
    };
    /// A stretch of committed bytes: a header held here, or a body that somebody keeps alive.
    struct stretch {
        frame_header_array header{};
        bool is_header = false;
        byte_span body{};
        std::shared_ptr<const void> owner{};

        byte_span bytes() const { return is_header ? byte_span(header) : body; }
    };

    void admit_waiting();
    bool commit_next_frame();
    void commit_header(const frame_header& header);
    void commit_body(shared_bytes body);
    void commit_chunk(message& from);
    void close_message(const message& finished);

    limits receiver_;
    std::deque<control_frame> control_;
    std::deque<message> active_;   ///< round robin
    std::deque<message> waiting_;  ///< longer than one chunk, not begun, in order of arrival
    std::uint64_t queued_bytes_ = 0;

    std::uint32_t n_counted_ = 0;
    std::uint64_t counted_bytes_ = 0;

    std::deque<stretch> committed_;
    std::size_t first_offset_ = 0;  ///< consumed of the first stretch
    std::uint64_t committed_bytes_ = 0;
};

}  // namespace kvasir::wire
