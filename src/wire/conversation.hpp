// One side of one connection, as a state machine: bytes and a time in, bytes and events out. No I/O, no clock, no
// threads.
//
// How it is driven (net does it, tests do it):
//
//     conversation talk(role's hello, options, now);      // its HELLO is waiting to be written already
//     loop:
//       read bytes  -> talk.receive(bytes, now)           // or straight into talk.direct_buffer(), then
//       commit_direct() end of file -> talk.stream_ended() now and then, at the latest at talk.next_deadline():
//       talk.tick(now) talk.take_events() -> act on them talk.output().gather(…), write, consume(…) talk.finished():
//       nothing left to write or expect: close the stream
//
// Invariants, for the backbone: every request that begin_compute() accepted ends in exactly one result or
// request_failed event, or in cancel() returning true, or in the closed event. For the worker: every compute event
// wants exactly one finish_*(); compute messages that are no good, too many or too late are answered here and never
// become events. After the closed event nothing more comes, and it comes exactly once.
//
// Not thread-safe: who drives it serialises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/ids.hpp"
#include "wire/byte_budget.hpp"
#include "wire/chunker.hpp"
#include "wire/hello.hpp"
#include "wire/messages.hpp"
#include "wire/protocol.hpp"
#include "wire/reassembler.hpp"

namespace kvasir::wire {

struct conversation_options {
    duration handshake_timeout = std::chrono::seconds(10);
    /// Between two PINGs of ours.
    duration ping_interval = std::chrono::seconds(5);
    /// Silence after which the peer counts as gone.
    duration dead_peer_timeout = std::chrono::seconds(20);
    /// Silence inside an unfinished message after which the peer counts as gone.
    duration message_stall_timeout = std::chrono::seconds(30);
    /// A worker reads no more while this much waits to be written: a backbone that asks and does not read is made to
    /// wait. A backbone always reads, so the two cannot wait for each other.
    std::uint64_t pause_reading_above_bytes = 4ULL * 1024U * 1024U;
    /// Control frames waiting to be written, beyond which the peer is one that asks and never reads.
    std::size_t max_waiting_control_frames = 4096;
    /// Makes PING tokens hard to guess, so that a peer cannot answer before it was asked.
    std::uint64_t token_seed = 0;
    peer_policy policy{};
    /// Says this instead of HELLO, and is closed from the start: for who has no place for another peer.
    std::optional<refusal> turn_away;
    /// Bounds the payload bytes held for arriving COMPUTEs, over all conversations that share it. Null: unbounded.
    std::shared_ptr<byte_budget> budget{};
};

/// The other side's HELLO is accepted; see peer().
struct established_event {};
struct compute_event {
    request_id id{};
    received_compute request{};
};
/// The backbone no longer wants this one. It still is to be finished; finish_error(cancelled) will do.
struct cancel_event {
    request_id id{};
};
struct result_event {
    request_id id{};
    received_result result{};
};
struct request_failed_event {
    request_id id{};
    error_message failure{};
};
struct drain_event {};
struct closed_event {
    error reason{};
};
using conversation_event = std::variant<established_event, compute_event, cancel_event, result_event,
                                        request_failed_event, drain_event, closed_event>;

class conversation {
  public:
    /// The role is ours.role. Throws std::runtime_error when `ours` cannot be encoded (start-up: encode it once to
    /// know).
    conversation(hello ours, conversation_options options, time_point now);

    // Input.

    void receive(byte_span bytes, time_point now);
    /// Where the next bytes belong, if that is known; may be empty. Stays valid until the next receive() or
    /// commit_direct(), whatever else is called meanwhile.
    std::span<std::byte> direct_buffer() { return closed_ ? std::span<std::byte>() : incoming_.direct_buffer(); }
    void commit_direct(std::size_t count, time_point now);
    /// False while the peer should be made to wait.
    bool wants_input() const;
    /// The stream ended or failed. Empty: an orderly end of the stream.
    void stream_ended(std::optional<error> cause = std::nullopt);
    void tick(time_point now);
    /// When tick() has something to do at the latest.
    time_point next_deadline() const;

    // Output.

    std::vector<conversation_event> take_events() { return std::exchange(events_, {}); }
    bool has_events() const { return !events_.empty(); }
    chunker& output() { return outgoing_; }
    /// Closed, and the last words are written (or are not worth waiting for).
    bool finished() const { return closed_ && outgoing_.pending_bytes() == 0; }

    // The backbone's side.

    /// See net::peer_connection::send_compute for the errors.
    result<void> begin_compute(request_id id, compute_request request);
    /// True when the request was in flight; no event will come for it.
    bool cancel(request_id id);

    // The worker's side. Unknown ids (the peer is gone, …) are ignored.

    /// `rows` are kept alive until they are written.
    void finish_result(request_id id, compute_result result);
    void finish_error(request_id id, error_code code, std::string text);
    /// Announces that we leave. What arrives from now on is answered by `draining`.
    void drain();

    // Both.

    /// Says goodbye; closed_event with errc::closed.
    void goodbye();
    const hello& ours() const { return ours_; }
    /// After established_event.
    const hello& peer() const { return *peer_; }
    bool established() const { return peer_.has_value() && !closed_; }
    bool closed() const { return closed_; }
    bool draining() const { return draining_; }
    std::size_t n_in_flight() const { return requests_.size(); }
    /// Smoothed; empty before the first PONG.
    std::optional<duration> round_trip_time() const { return round_trip_; }

  private:
    struct request_state {
        layer_id layer{};
        std::uint32_t n_pairs = 0;
        std::uint32_t n_values = 0;  ///< of a result row
        bool cancelled = false;
    };

    void pull(byte_span bytes, time_point now);
    /// What becomes of a frame: kept (true), discarded (false), or the end of the conversation (then closed_).
    void judge(const frame_header& header);
    std::optional<error_code> judge_compute(const frame_header& header);
    std::optional<error_code> judge_result(const frame_header& header);
    void handle(raw_message message, time_point now);
    void handle_hello(const raw_message& message, time_point now);
    void handle_refusal(const raw_message& message);
    void refuse(const refusal& reason);
    void handle_compute(raw_message message);
    void handle_result(raw_message message);
    void handle_error(const raw_message& message);
    void handle_ping(const raw_message& message);
    void handle_pong(const raw_message& message, time_point now);
    void handle_cancel(const raw_message& message);
    void send_ping(time_point now);
    void send_error(request_id id, error_code code, const std::string& text);

    result<void> check_request(const compute_request& request, const held_layer& held) const;
    /// The peer broke the protocol (or a deadline): tell it, and close.
    void fail(error_code code, const std::string& text);
    void close(error reason);

    hello ours_;
    conversation_options options_;
    std::optional<hello> peer_;
    bool closed_ = false;
    bool draining_ = false;

    reassembler incoming_;
    chunker outgoing_;
    std::vector<conversation_event> events_;
    std::unordered_map<request_id, request_state> requests_;

    time_point handshake_deadline_;
    time_point last_received_;
    time_point next_ping_;
    std::optional<std::pair<std::uint64_t, time_point>> ping_under_way_;
    std::uint64_t n_pings_ = 0;
    std::optional<duration> round_trip_;
};

}  // namespace kvasir::wire
