#include "wire/chunker.hpp"

#include <algorithm>

namespace kvasir::wire {

void chunker::push_control(frame_type type, request_id request, std::vector<std::byte> payload) {
    queued_bytes_ += frame_header_bytes + payload.size();
    control_.push_back({.type = type, .request = request, .payload = std::move(payload)});
}

void chunker::push_message(frame_type type, layer_id layer, request_id request, payload_pieces pieces) {
    message added{.type = type, .layer = layer, .request = request, .pieces = std::move(pieces)};
    for (const shared_bytes& piece : added.pieces)
        added.total_bytes += piece.bytes.size();
    added.rest_bytes = added.total_bytes;
    queued_bytes_ += added.total_bytes;
    if (added.total_bytes <= receiver_.max_chunk_bytes) {
        active_.push_back(std::move(added));
    } else {
        waiting_.push_back(std::move(added));
    }
}

chunker::withdrawal chunker::withdraw(frame_type type, request_id request) {
    const auto is_it = [&](const message& candidate) { return candidate.type == type && candidate.request == request; };
    if (const auto at = std::find_if(waiting_.begin(), waiting_.end(), is_it); at != waiting_.end()) {
        queued_bytes_ -= at->rest_bytes;
        waiting_.erase(at);
        return withdrawal::dropped;
    }
    const auto at = std::find_if(active_.begin(), active_.end(), is_it);
    if (at == active_.end()) return withdrawal::not_there;
    queued_bytes_ -= at->rest_bytes;
    if (!at->begun()) {
        close_message(*at);
        active_.erase(at);
        return withdrawal::dropped;
    }
    // The next chunk is the last, and empty.
    at->rest_bytes = 0;
    at->pieces.clear();
    return withdrawal::cut_short;
}

void chunker::drop_uncommitted() {
    control_.clear();
    active_.clear();
    waiting_.clear();
    queued_bytes_ = 0;
    n_counted_ = 0;
    counted_bytes_ = 0;
}

void chunker::gather(std::vector<byte_span>& out, std::uint64_t target_bytes, std::size_t max_spans) {
    while (committed_bytes_ < target_bytes && committed_.size() < max_spans && commit_next_frame()) {
    }
    std::size_t offset = first_offset_;
    std::size_t spans = 0;
    for (const stretch& part : committed_) {
        if (spans == max_spans) return;
        out.push_back(part.bytes().subspan(offset));
        offset = 0;
        ++spans;
    }
}

void chunker::consume(std::size_t count) {
    committed_bytes_ -= count;
    while (count > 0) {
        const std::size_t rest = committed_.front().bytes().size() - first_offset_;
        if (count < rest) {
            first_offset_ += count;
            return;
        }
        count -= rest;
        first_offset_ = 0;
        committed_.pop_front();
    }
}

void chunker::admit_waiting() {
    while (!waiting_.empty()) {
        message& next = waiting_.front();
        const bool fits = n_counted_ == 0 || (n_counted_ < max_open_messages &&
                                              next.total_bytes <= receiver_.max_message_bytes - counted_bytes_);
        if (!fits) return;
        next.counted = true;
        ++n_counted_;
        counted_bytes_ += next.total_bytes;
        active_.push_back(std::move(next));
        waiting_.pop_front();
    }
}

void chunker::close_message(const message& finished) {
    if (!finished.counted) return;
    --n_counted_;
    counted_bytes_ -= finished.total_bytes;
}

bool chunker::commit_next_frame() {
    if (!control_.empty()) {
        control_frame next = std::move(control_.front());
        control_.pop_front();
        queued_bytes_ -= frame_header_bytes + next.payload.size();
        commit_header({.type = static_cast<std::uint8_t>(next.type),
                       .request = next.request,
                       .payload_bytes = next.payload.size()});
        if (!next.payload.empty()) commit_body(shared_bytes::own(std::move(next.payload)));
        return true;
    }
    admit_waiting();
    if (active_.empty()) return false;
    message next = std::move(active_.front());
    active_.pop_front();
    commit_chunk(next);
    if (next.rest_bytes > 0) {
        active_.push_back(std::move(next));
    } else {
        close_message(next);
    }
    return true;
}

void chunker::commit_header(const frame_header& header) {
    committed_.push_back({.header = encode(header), .is_header = true});
    committed_bytes_ += frame_header_bytes;
}

void chunker::commit_body(shared_bytes body) {
    committed_bytes_ += body.bytes.size();
    committed_.push_back({.body = body.bytes, .owner = std::move(body.owner)});
}

void chunker::commit_chunk(message& from) {
    std::uint64_t chunk_bytes = std::min<std::uint64_t>(from.rest_bytes, receiver_.max_chunk_bytes);
    from.rest_bytes -= chunk_bytes;
    queued_bytes_ -= chunk_bytes;
    commit_header({.type = static_cast<std::uint8_t>(from.type),
                   .flags = from.rest_bytes > 0 ? flag_more_chunks : std::uint16_t{0},
                   .layer = from.layer,
                   .request = from.request,
                   .payload_bytes = chunk_bytes});
    while (chunk_bytes > 0) {
        const shared_bytes& piece = from.pieces[from.piece];
        const byte_span rest = piece.bytes.subspan(from.piece_offset);
        const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(rest.size(), chunk_bytes));
        if (count > 0) commit_body({.bytes = rest.first(count), .owner = piece.owner});
        chunk_bytes -= count;
        from.piece_offset += count;
        if (count == rest.size()) {
            ++from.piece;
            from.piece_offset = 0;
        }
    }
}

}  // namespace kvasir::wire
