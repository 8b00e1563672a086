// The protocol between a backbone and its workers, on any ordered byte stream (TCP, TLS, WebSocket, relayed).
//
// Purpose: a backbone sends hidden rows and the experts that want them; a worker sends one row back per pair. Many
// requests are in flight at once; nothing is answered twice and nothing is left unanswered.
//
// Protocol flow:
//
//  Login
//    * both sides send HELLO as soon as the stream is open, without waiting for the other's
//    * each side checks the other's: if something must be equal and is not, it sends REFUSE and closes
//    * a side is established once it has accepted the other's HELLO; it may send at once
//
//  Steady state
//    * the backbone sends COMPUTE under a request id that it has not in flight
//    * the worker answers every COMPUTE exactly once: RESULT, or ERROR with that request id
//    * the backbone may send CANCEL; the answer still comes: ERROR `cancelled`, or the RESULT that was under way
//    * either side sends PING now and then; PONG returns the token at once
//    * a worker that leaves sends DRAIN; it answers what it has, and a COMPUTE that crossed with DRAIN by ERROR
//    `draining`
//    * GOODBYE says that the sender closes on purpose; an ERROR with request id 0 says that it closes because of a
//    fault
//
// Frames. Everything travels in frames: a header of 24 bytes, then the payload. All numbers are little-endian.
//
//     offset size
//          0    1  frame version, 1
//          1    1  type (frame_type)
//          2    2  flags; bit 0: more chunks of this message follow; the others are zero
//          4    4  layer; zero where the type has none
//          8    8  request id; zero where the type has none
//         16    8  payload length of this frame in bytes
//
// A message whose payload is longer than the receiver's chunk size is cut into chunks: frames of the same type and
// request id, all but the last with the more-chunks flag. Frames of other messages may come between two chunks, and
// control frames overtake: a PING or CANCEL never waits behind megabytes. Only COMPUTE, RESULT and optional types may
// be cut. A sender has at most `max_open_messages` messages begun and not finished, and the sum of their whole sizes
// stays within the receiver's maximum message size (one alone may have exactly that size): what a connection can make
// its receiver hold is bounded. A COMPUTE whose CANCEL was sent, and a RESULT whose CANCEL was received, may be ended
// early by its sender: the last chunk simply comes sooner (it may be empty). The receiver knows the request as
// cancelled and decodes nothing.
//
// Growth. Types 0x01 to 0x3f are critical: a receiver that does not know one ends the connection with an ERROR that
// names it. Types 0x40 to 0x7f are optional: an unknown one is skipped. 0x00 and 0x80 to 0xff are reserved and treated
// as unknown critical ones. HELLO ends in tagged fields, of which unknown ones are skipped. A different major version
// is refused; a higher minor version only adds optional types and tagged fields.
//
// This header names things and states limits; docs/protocol.md has the byte tables. Codecs are in frame.hpp and
// messages.hpp, the behaviour in conversation.hpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir::wire {

inline constexpr std::uint8_t frame_version = 1;
inline constexpr std::uint16_t protocol_major = 1;
inline constexpr std::uint16_t protocol_minor = 0;

inline constexpr std::uint32_t frame_header_bytes = 24;
inline constexpr std::uint16_t flag_more_chunks = 1U << 0U;

enum class frame_type : std::uint8_t {
    /// Who I am, what I speak, what I hold, what I accept. First frame both ways, exactly once, never cut. Request id
    /// and
    /// layer zero.
    ///   protocol major u16, protocol minor u16, role u8, reserved 3 bytes zero,
    ///   model digest 32 bytes, node id 32 bytes,
    ///   max message bytes u64, max chunk bytes u32, max requests in flight u32  (what the sender of this HELLO
    ///   accepts),
    ///   numerics fingerprint: length u16, UTF-8 text; build id: length u16, UTF-8 text,
    ///   n_layers u32, then per layer, ascending: layer u32, n_in u32, n_out u32, encodings u32 (bit n: row_encoding n
    ///   is
    ///     accepted), n_ranges u32, then per range, ascending and apart: first expert u32, count u32,
    ///   tagged fields to the end: tag u16, length u32, value. Tag 1: the node's display name, UTF-8.
    hello = 0x01,

    /// I will not talk to you, and why. Instead of HELLO or after it. The sender closes afterwards.
    ///   code u16 (refusal_code), then four texts of length u16 + UTF-8: field, the refuser's value, the refused one's
    ///   value, remedy.
    refuse = 0x02,

    /// Backbone to worker: compute these pairs. Request id non-zero; layer is the header's.
    ///   activation kind u8, row encoding u8, companions u16 (bits: companion in base/expert_call.hpp), p0 f32, p1 f32,
    ///   n_rows u32, n_pairs u32, n_values u32,
    ///   n_rows rows of row_size_bytes(encoding, n_values), n_pairs pairs: row u32, local expert id u32.
    compute = 0x03,

    /// Worker to backbone: the rows of a COMPUTE, in the order of its pairs. Same request id and layer.
    ///   status u8 (result_status), reserved u8 zero, queue depth u16 (requests the worker still has waiting,
    ///   saturating),
    ///   n_pairs u32, n_values u32, compute time us u32, queue time us u32 (both saturating), reserved u32 zero,
    ///   n_pairs rows of n_values f32.
    result = 0x04,

    /// A request failed (its id), or with request id 0 the connection did, and the sender closes.
    ///   code u16 (error_code), text: length u16, UTF-8, one line.
    error = 0x05,

    /// Are you there? token 8 bytes, opaque.
    ping = 0x06,
    /// Yes. The PING's token.
    pong = 0x07,

    /// Backbone to worker: the answer to this request id is not wanted any more. Empty. Unknown ids are ignored: the
    /// answer
    /// may have crossed.
    cancel = 0x08,

    /// Worker to backbone: I am leaving, send nothing new. Empty.
    drain = 0x09,

    /// I close this connection on purpose. Empty.
    goodbye = 0x0a,
};

/// Which fate an unknown frame type has.
constexpr bool is_optional_type(std::uint8_t type) {
    return type >= 0x40 && type <= 0x7f;
}
std::optional<frame_type> frame_type_from(std::uint8_t number);
std::string_view name_of(frame_type type);

enum class node_role : std::uint8_t { backbone = 1, worker = 2 };
std::optional<node_role> node_role_from(std::uint8_t number);
std::string_view name_of(node_role role);

/// Why a peer was refused at HELLO. The numbers are the wire's: never reuse one.
enum class refusal_code : std::uint16_t {
    protocol_version = 1,
    role = 2,
    model = 3,
    numerics = 4,
    limits = 5,    ///< the stated limits are too small to work with
    capacity = 6,  ///< too many connections
    leaving = 7,   ///< the worker is draining
};
std::optional<refusal_code> refusal_code_from(std::uint16_t number);

/// Why a request, or with request id 0 a connection, failed. The numbers are the wire's: never reuse one. A number that
/// a receiver does not know counts as `internal`.
enum class error_code : std::uint16_t {
    malformed = 1,       ///< bytes that are no valid frame or message
    unknown_type = 2,    ///< a critical frame type the receiver does not know
    limit_exceeded = 3,  ///< above a stated maximum
    unexpected = 4,      ///< a valid message at the wrong time, in the wrong direction or with a used request id
    layer_not_held = 5,
    expert_not_held = 6,
    shape_mismatch = 7,  ///< n_values is not the layer's
    encoding_not_accepted = 8,
    activation_not_accepted = 9,
    busy = 10,      ///< the queue is full; elsewhere or later
    draining = 11,  ///< the worker is leaving
    cancelled = 12,
    timeout = 13,   ///< the peer was silent or stalled past its deadline
    internal = 14,  ///< the sender's own fault
};
std::optional<error_code> error_code_from(std::uint16_t number);
std::string_view name_of(error_code code);

enum class result_status : std::uint8_t {
    exact = 0,  ///< computed by the kernels that HELLO's numerics fingerprint names
};
std::optional<result_status> result_status_from(std::uint8_t number);

// Limits. What a HELLO may state lies between the floors and the ceilings.

/// The largest chunk: 256 KiB is 0.2 ms of a 10 Gbit/s link and 20 ms of a 100 Mbit/s one, which is what a control
/// frame may wait.
inline constexpr std::uint32_t default_max_chunk_bytes = 256U * 1024U;
inline constexpr std::uint32_t min_max_chunk_bytes = 4U * 1024U;
inline constexpr std::uint32_t max_max_chunk_bytes = 16U * 1024U * 1024U;

/// A micro-batch of 512 rows through 8 experts of width 3072 returns 50 MB.
inline constexpr std::uint64_t default_max_message_bytes = 64ULL * 1024U * 1024U;
inline constexpr std::uint64_t min_max_message_bytes = 64ULL * 1024U;
inline constexpr std::uint64_t max_max_message_bytes = 16ULL * 1024U * 1024U * 1024U;

/// Enough to keep a worker busy over a long round trip; small enough that a table of them is nothing.
inline constexpr std::uint32_t default_max_requests_in_flight = 64;
inline constexpr std::uint32_t max_max_requests_in_flight = 65536;

/// Messages in one direction that are begun and not finished. More would only make each of them finish later.
inline constexpr std::uint32_t max_open_messages = 8;

/// A HELLO comes before anything is known about the sender, in one frame: 4096 layers of one range each take 112 KiB.
inline constexpr std::uint64_t max_hello_bytes = 256ULL * 1024U;
/// REFUSE, ERROR and the other control messages are a few lines of text at most.
inline constexpr std::uint64_t max_control_bytes = 16ULL * 1024U;
inline constexpr std::uint32_t max_text_bytes = 1024;
inline constexpr std::uint32_t max_name_bytes = 64;
inline constexpr std::uint32_t max_layers = 4096;
inline constexpr std::uint32_t max_experts_per_layer = 65536;
/// Values of one row: an embedding width or an expert's output width.
inline constexpr std::uint32_t max_values_per_row = 1U << 20U;

}  // namespace kvasir::wire
