#include "wire/conversation.hpp"

#include <algorithm>
#include <stdexcept>

namespace kvasir::wire {
namespace {

std::vector<std::byte> encoded_hello(const hello& ours) {
    auto payload = encode(ours);
    if (!payload) throw std::runtime_error(payload.error().message);
    return *std::move(payload);
}

/// One round of SplitMix64: distinct inputs give distinct, unrelated-looking tokens.
std::uint64_t mixed(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15ULL;
    value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27U)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31U);
}

errc kind_of(error_code code) {
    switch (code) {
        case error_code::limit_exceeded:
            return errc::limit_exceeded;
        case error_code::busy:
            return errc::busy;
        case error_code::draining:
            return errc::closed;
        case error_code::cancelled:
            return errc::cancelled;
        case error_code::timeout:
            return errc::timeout;
        case error_code::internal:
            return errc::internal;
        default:
            return errc::invalid_input;
    }
}

errc kind_of(refusal_code code) {
    const bool may_change = code == refusal_code::capacity || code == refusal_code::leaving;
    return may_change ? errc::busy : errc::mismatch;
}

std::string seconds_text(duration span) {
    return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(span).count()) + " s";
}

/// Frames that may come before the peer's HELLO is accepted.
bool may_come_first(frame_type type) {
    return type == frame_type::hello || type == frame_type::refuse || type == frame_type::error ||
           type == frame_type::goodbye;
}

bool must_be_empty(frame_type type) {
    return type == frame_type::cancel || type == frame_type::drain || type == frame_type::goodbye;
}

/// Who may send a frame of this type; empty where both may.
std::optional<node_role> only_sender_of(frame_type type) {
    switch (type) {
        case frame_type::compute:
        case frame_type::cancel:
            return node_role::backbone;
        case frame_type::result:
        case frame_type::drain:
            return node_role::worker;
        default:
            return std::nullopt;
    }
}

}  // namespace

conversation::conversation(hello ours, conversation_options options, time_point now)
    : ours_(std::move(ours)),
      options_(std::move(options)),
      incoming_(ours_.accepts, options_.budget),
      handshake_deadline_(now + options_.handshake_timeout),
      last_received_(now),
      next_ping_(now) {
    if (options_.turn_away) {
        refuse(*options_.turn_away);
    } else {
        outgoing_.push_control(frame_type::hello, {}, encoded_hello(ours_));
    }
}

bool conversation::wants_input() const {
    return ours_.role == node_role::backbone || outgoing_.pending_bytes() <= options_.pause_reading_above_bytes;
}

void conversation::receive(byte_span bytes, time_point now) {
    if (closed_ || bytes.empty()) return;
    last_received_ = now;
    pull(bytes, now);
}

void conversation::commit_direct(std::size_t count, time_point now) {
    if (closed_ || count == 0) return;
    last_received_ = now;
    incoming_.commit_direct(count, now);
    pull({}, now);
}

void conversation::pull(byte_span bytes, time_point now) {
    while (!closed_) {
        auto step = incoming_.next(bytes, now);
        if (std::holds_alternative<reassembler::need_more>(step)) return;
        if (const auto* header = std::get_if<frame_header>(&step)) {
            judge(*header);
        } else if (auto* message = std::get_if<raw_message>(&step)) {
            handle(std::move(*message), now);
        } else {
            const auto& fault = std::get<framing_fault>(step);
            fail(fault.code, fault.text);
        }
    }
}

void conversation::judge(const frame_header& header) {
    const auto type = static_cast<frame_type>(header.type);
    const std::string name(name_of(type));
    if (!peer_ && !may_come_first(type)) return fail(error_code::unexpected, name + " came before HELLO");
    if (peer_ && type == frame_type::hello) return fail(error_code::unexpected, "HELLO came twice");
    if (const auto sender = only_sender_of(type); sender && *sender == ours_.role) {
        return fail(error_code::unexpected, "only a " + std::string(name_of(*sender)) + " may send " + name);
    }
    std::optional<error_code> discarded;
    if (type == frame_type::compute) discarded = judge_compute(header);
    if (type == frame_type::result) discarded = judge_result(header);
    if (closed_) return;
    if (discarded) {
        incoming_.discard(*discarded);
    } else {
        incoming_.keep();
    }
}

void conversation::handle(raw_message message, time_point now) {
    if (message.discarded && message.type != frame_type::compute && message.type != frame_type::result) {
        return fail(error_code::busy, "no memory is left for a " + std::string(name_of(message.type)));
    }
    if (must_be_empty(message.type) && message.payload.size() != 0) {
        return fail(error_code::malformed, "a " + std::string(name_of(message.type)) + " is not empty");
    }
    switch (message.type) {
        case frame_type::hello:
            return handle_hello(message, now);
        case frame_type::refuse:
            return handle_refusal(message);
        case frame_type::compute:
            return handle_compute(std::move(message));
        case frame_type::result:
            return handle_result(std::move(message));
        case frame_type::error:
            return handle_error(message);
        case frame_type::ping:
            return handle_ping(message);
        case frame_type::pong:
            return handle_pong(message, now);
        case frame_type::cancel:
            return handle_cancel(message);
        case frame_type::drain:
            if (!std::exchange(draining_, true)) events_.emplace_back(drain_event{});
            return;
        case frame_type::goodbye:
            return close(error(errc::closed, "the other side said goodbye"));
    }
}

void conversation::handle_hello(const raw_message& message, time_point now) {
    const byte_span payload = message.payload.bytes();
    const auto major = hello_major_version(payload);
    if (major && *major != protocol_major) return refuse(refuse_version(std::to_string(*major) + ".x"));
    auto theirs = decode_hello(payload);
    if (!theirs) return fail(error_code::malformed, theirs.error().message);
    if (const auto reason = check_peer(ours_, *theirs, options_.policy)) return refuse(*reason);
    peer_ = *std::move(theirs);
    outgoing_.set_limits(peer_->accepts);
    events_.emplace_back(established_event{});
    if (draining_) outgoing_.push_control(frame_type::drain, {}, {});
    send_ping(now);
}

void conversation::refuse(const refusal& reason) {
    if (closed_) return;
    outgoing_.push_control(frame_type::refuse, {}, encode(reason));
    std::string text = "the other side does not fit: its " + reason.field + " is \"" + reason.theirs +
                       "\", here is \"" + reason.ours + "\"";
    if (!reason.remedy.empty()) text += "; " + reason.remedy;
    close(error(reason.code == refusal_code::capacity ? errc::busy : errc::mismatch, std::move(text)));
}

void conversation::handle_refusal(const raw_message& message) {
    const auto reason = decode_refusal(message.payload.bytes());
    if (!reason) return fail(error_code::malformed, reason.error().message);
    close(error(kind_of(reason->code), "the other side " + reason->sentence()));
}

void conversation::handle_error(const raw_message& message) {
    auto failure = decode_error(message.payload.bytes());
    if (!failure) return fail(error_code::malformed, failure.error().message);
    if (message.request.value == 0) {
        return close(error(kind_of(failure->code), "the other side ended the connection: " + failure->text));
    }
    const auto at = requests_.find(message.request);
    if (ours_.role != node_role::backbone || at == requests_.end()) {
        return fail(error_code::unexpected, "ERROR names a request that is not in flight");
    }
    const bool wanted = !at->second.cancelled;
    requests_.erase(at);
    // A RESULT may have been cut off by the worker's own trouble.
    incoming_.discard_open(frame_type::result, message.request, failure->code);
    if (wanted) events_.emplace_back(request_failed_event{message.request, *std::move(failure)});
}

void conversation::handle_ping(const raw_message& message) {
    const byte_span token = message.payload.bytes();
    if (token.size() != sizeof(std::uint64_t)) return fail(error_code::malformed, "a PING's token has not 8 bytes");
    if (outgoing_.n_control() >= options_.max_waiting_control_frames) {
        return fail(error_code::limit_exceeded, "too many PINGs whose PONGs are not read");
    }
    outgoing_.push_control(frame_type::pong, {}, {token.begin(), token.end()});
}

void conversation::handle_pong(const raw_message& message, time_point now) {
    byte_reader in(message.payload.bytes());
    const auto token = in.read<std::uint64_t>();
    if (!token || in.remaining() != 0) return fail(error_code::malformed, "a PONG's token has not 8 bytes");
    if (!ping_under_way_ || ping_under_way_->first != *token) {
        return fail(error_code::unexpected, "a PONG answers no PING");
    }
    const duration sample = now - ping_under_way_->second;
    ping_under_way_.reset();
    // As in TCP: an eighth of the news.
    round_trip_ = round_trip_ ? *round_trip_ + (sample - *round_trip_) / 8 : sample;
}

void conversation::send_ping(time_point now) {
    next_ping_ = now + options_.ping_interval;
    if (ping_under_way_) return;
    ping_under_way_ = {mixed(options_.token_seed + n_pings_++), now};
    std::vector<std::byte> payload;
    payload.reserve(sizeof(std::uint64_t));
    byte_writer(payload).write(ping_under_way_->first);
    outgoing_.push_control(frame_type::ping, {}, std::move(payload));
}

void conversation::send_error(request_id id, error_code code, const std::string& text) {
    if (outgoing_.n_control() >= options_.max_waiting_control_frames) {
        return fail(error_code::limit_exceeded, "too many requests whose answers are not read");
    }
    outgoing_.push_control(frame_type::error, id, encode(error_message{code, text}));
}

void conversation::tick(time_point now) {
    if (closed_) return;
    if (!peer_) {
        if (now >= handshake_deadline_) {
            fail(error_code::timeout, "no HELLO came within " + seconds_text(options_.handshake_timeout));
        }
        return;
    }
    if (!wants_input()) {
        // Nobody reads: silence is our own doing. Whether the peer takes what we write is watched where it is written.
        last_received_ = now;
        incoming_.touch(now);
    }
    if (now - last_received_ >= options_.dead_peer_timeout) {
        return fail(error_code::timeout, "nothing was heard for " + seconds_text(options_.dead_peer_timeout));
    }
    const auto progress = incoming_.oldest_progress();
    if (progress && now - *progress >= options_.message_stall_timeout) {
        return fail(error_code::timeout,
                    "an unfinished message got no further for " + seconds_text(options_.message_stall_timeout));
    }
    if (now >= next_ping_) send_ping(now);
}

time_point conversation::next_deadline() const {
    if (closed_) return time_point::max();
    if (!peer_) return handshake_deadline_;
    time_point next = std::min(next_ping_, last_received_ + options_.dead_peer_timeout);
    if (const auto progress = incoming_.oldest_progress()) {
        next = std::min(next, *progress + options_.message_stall_timeout);
    }
    return next;
}

void conversation::stream_ended(std::optional<error> cause) {
    outgoing_.drop_uncommitted();
    if (closed_) return;
    close(cause ? *std::move(cause) : error(errc::closed, "the other side closed the connection without a goodbye"));
}

void conversation::goodbye() {
    if (closed_) return;
    outgoing_.drop_uncommitted();
    outgoing_.push_control(frame_type::goodbye, {}, {});
    close(error(errc::closed, "closed on this side"));
}

void conversation::fail(error_code code, const std::string& text) {
    if (closed_) return;
    outgoing_.drop_uncommitted();
    outgoing_.push_control(frame_type::error, {}, encode(error_message{code, text}));
    close(error(kind_of(code), text));
}

void conversation::close(error reason) {
    closed_ = true;
    requests_.clear();
    events_.emplace_back(closed_event{std::move(reason)});
}

}  // namespace kvasir::wire
