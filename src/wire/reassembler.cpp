#include "wire/reassembler.hpp"

#include <algorithm>
#include <cstring>

namespace kvasir::wire {
namespace {

std::uint64_t max_payload_bytes(frame_type type, const limits& accepts) {
    switch (type) {
        case frame_type::hello:
            return max_hello_bytes;
        case frame_type::compute:
        case frame_type::result:
            return accepts.max_chunk_bytes;
        default:
            return max_control_bytes;
    }
}

bool may_be_cut(frame_type type) {
    return type == frame_type::compute || type == frame_type::result;
}

std::string in_hex(std::uint8_t number) {
    constexpr std::string_view digits = "0123456789abcdef";
    return {'0', 'x', digits[number >> 4U], digits[number & 0xFU]};
}

framing_fault too_long(std::string what, std::uint64_t bytes, std::uint64_t most) {
    return {error_code::limit_exceeded, std::move(what) + " of " + std::to_string(bytes) +
                                            " bytes is above the maximum of " + std::to_string(most)};
}

}  // namespace

reassembler::reassembler(const limits& accepts, std::shared_ptr<byte_budget> budget)
    : accepts_(accepts), budget_(std::move(budget)) {}

reassembler::step reassembler::next(byte_span& bytes, time_point now) {
    for (;;) {
        if (phase_ == phase::header) {
            const std::size_t count = std::min(bytes.size(), header_bytes_.size() - header_filled_);
            if (count > 0) std::memcpy(header_bytes_.data() + header_filled_, bytes.data(), count);
            bytes = bytes.subspan(count);
            header_filled_ += count;
            if (header_filled_ < header_bytes_.size()) return need_more{};
            header_filled_ = 0;
            header_ = decode_frame_header(header_bytes_);
            header_time_ = now;
            if (auto fault = check_frame()) return *std::move(fault);
            rest_bytes_ = header_.payload_bytes;
            target_ = {};
            skip_unknown_ = !frame_type_from(header_.type);
            if (skip_unknown_) {
                phase_ = phase::payload;
                continue;
            }
            phase_ = phase::verdict;
            return header_;
        }
        if (phase_ == phase::verdict) {
            return framing_fault{error_code::internal, "a frame was neither kept nor discarded"};
        }
        eat_payload(bytes, now);
        if (rest_bytes_ > 0) return need_more{};
        phase_ = phase::header;
        if (auto message = finish_frame(now)) return *std::move(message);
    }
}

std::optional<framing_fault> reassembler::check_frame() const {
    const auto malformed = [](std::string text) { return framing_fault{error_code::malformed, std::move(text)}; };
    if (header_.version != frame_version) {
        return malformed("frame version " + std::to_string(header_.version) + " is not " +
                         std::to_string(frame_version) + "; is the other side a kvasir node?");
    }
    if ((header_.flags & ~flag_more_chunks) != 0) return malformed("a frame has unknown flags");
    const auto type = frame_type_from(header_.type);
    if (!type) {
        if (!is_optional_type(header_.type)) {
            return framing_fault{
                error_code::unknown_type,
                "frame type " + in_hex(header_.type) + " is unknown here; update the side with the older build"};
        }
        if (header_.payload_bytes > accepts_.max_chunk_bytes) {
            return too_long("an optional frame", header_.payload_bytes, accepts_.max_chunk_bytes);
        }
        return std::nullopt;
    }
    const std::uint64_t most = max_payload_bytes(*type, accepts_);
    if (header_.payload_bytes > most) {
        return too_long("a " + std::string(name_of(*type)) + " frame", header_.payload_bytes, most);
    }
    if (!may_be_cut(*type)) {
        if (header_.more_chunks()) return malformed("a " + std::string(name_of(*type)) + " is cut into chunks");
        return std::nullopt;
    }
    const partial* earlier = find(*type, header_.request);
    if (earlier != nullptr && earlier->layer != header_.layer)
        return malformed("chunks of one message name two layers");
    if (header_.more_chunks() && header_.payload_bytes == 0) return malformed("a chunk that is not the last is empty");
    const std::uint64_t held = earlier == nullptr ? 0 : earlier->payload.size();
    return check_data_frame(held);
}

std::optional<framing_fault> reassembler::check_data_frame(std::uint64_t held_bytes) const {
    const std::uint64_t most = accepts_.max_message_bytes;
    if (header_.payload_bytes > most - held_bytes) {
        return too_long("a message", held_bytes + header_.payload_bytes, most);
    }
    if (!header_.more_chunks()) return std::nullopt;
    const bool begins = find(static_cast<frame_type>(header_.type), header_.request) == nullptr;
    if (begins && open_.size() >= max_open_messages) {
        return framing_fault{error_code::limit_exceeded,
                             "more than " + std::to_string(max_open_messages) + " messages are begun and not finished"};
    }
    std::uint64_t sum = header_.payload_bytes;
    for (const partial& message : open_)
        sum += message.payload.size();
    if (sum > most) return too_long("what is begun and not finished", sum, most);
    return std::nullopt;
}

void reassembler::keep() {
    begin_payload(std::nullopt);
}
void reassembler::discard(error_code reason) {
    begin_payload(reason);
}

void reassembler::begin_payload(std::optional<error_code> discarded) {
    const auto type = static_cast<frame_type>(header_.type);
    if (partial* earlier = find(type, header_.request)) {
        current_ = std::move(*earlier);
        open_.erase(open_.begin() + (earlier - open_.data()));
    } else {
        current_ = partial{
            .type = type, .layer = header_.layer, .request = header_.request, .payload = payload_buffer(budget_)};
    }
    current_->progress = header_time_;
    if (discarded && !current_->discarded) current_->discarded = discarded;
    if (!current_->discarded) {
        const auto room = current_->payload.try_extend(static_cast<std::size_t>(rest_bytes_));
        if (room) {
            target_ = *room;
        } else {
            current_->discarded = error_code::busy;
        }
    }
    if (current_->discarded) current_->payload = payload_buffer();
    phase_ = phase::payload;
}

void reassembler::eat_payload(byte_span& bytes, time_point now) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), rest_bytes_));
    if (count == 0) return;
    if (!target_.empty()) {
        std::memcpy(target_.data(), bytes.data(), count);
        target_ = target_.subspan(count);
    }
    bytes = bytes.subspan(count);
    rest_bytes_ -= count;
    if (current_) current_->progress = now;
}

std::span<std::byte> reassembler::direct_buffer() {
    return phase_ == phase::payload ? target_ : std::span<std::byte>();
}

void reassembler::commit_direct(std::size_t count, time_point now) {
    target_ = target_.subspan(count);
    rest_bytes_ -= count;
    if (current_) current_->progress = now;
}

std::optional<raw_message> reassembler::finish_frame(time_point now) {
    if (skip_unknown_) return std::nullopt;
    partial message = *std::move(current_);
    current_.reset();
    if (header_.more_chunks()) {
        message.progress = now;
        open_.push_back(std::move(message));
        return std::nullopt;
    }
    return raw_message{.type = message.type,
                       .layer = message.layer,
                       .request = message.request,
                       .payload = std::move(message.payload),
                       .discarded = message.discarded};
}

const reassembler::partial* reassembler::find(frame_type type, request_id request) const {
    const auto at = std::find_if(open_.begin(), open_.end(), [&](const partial& message) {
        return message.type == type && message.request == request;
    });
    return at == open_.end() ? nullptr : &*at;
}

reassembler::partial* reassembler::find(frame_type type, request_id request) {
    return const_cast<partial*>(std::as_const(*this).find(type, request));
}

bool reassembler::is_open(frame_type type, request_id request) const {
    return find(type, request) != nullptr;
}

std::size_t reassembler::n_open(frame_type type) const {
    return static_cast<std::size_t>(
        std::count_if(open_.begin(), open_.end(), [type](const partial& message) { return message.type == type; }));
}

bool reassembler::discard_open(frame_type type, request_id request, error_code reason) {
    partial* message = find(type, request);
    if (message == nullptr) return false;
    if (!message->discarded) message->discarded = reason;
    message->payload = payload_buffer();
    return true;
}

std::optional<time_point> reassembler::oldest_progress() const {
    std::optional<time_point> oldest;
    const auto consider = [&oldest](const partial& message) {
        if (!oldest || message.progress < *oldest) oldest = message.progress;
    };
    for (const partial& message : open_)
        consider(message);
    if (current_ && phase_ == phase::payload) consider(*current_);
    return oldest;
}

void reassembler::touch(time_point now) {
    for (partial& message : open_)
        message.progress = now;
    if (current_) current_->progress = now;
}

}  // namespace kvasir::wire
