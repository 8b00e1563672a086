// The life of a request, on both sides: asked, answered, cancelled.
#include "wire/conversation.hpp"

namespace kvasir::wire {

result<void> conversation::check_request(const compute_request& request, const held_layer& held) const {
    const std::string layer = "layer " + std::to_string(request.layer.value);
    if (request.n_values != held.n_in) {
        return error(errc::invalid_input, layer + " takes rows of " + std::to_string(held.n_in) + " values, not " +
                                              std::to_string(request.n_values));
    }
    if (!held.accepts(request.encoding)) {
        return error(errc::invalid_input,
                     "the worker does not accept " + std::string(name_of(request.encoding)) + " rows for " + layer);
    }
    const std::uint32_t n_experts = held.n_experts();
    for (const row_expert_pair& pair : request.pairs) {
        if (pair.expert < n_experts) continue;
        return error(errc::invalid_input, "local expert " + std::to_string(pair.expert) + " of " + layer +
                                              " does not exist: the worker holds " + std::to_string(n_experts));
    }
    const auto result_bytes = result_payload_bytes(request.pairs.size(), held.n_out);
    if (request.payload_bytes() > peer_->accepts.max_message_bytes || !result_bytes ||
        *result_bytes > ours_.accepts.max_message_bytes) {
        return error(errc::limit_exceeded, "a request of " + std::to_string(request.payload_bytes()) +
                                               " bytes or its result is larger than the maximum message size; cut it");
    }
    return {};
}

result<void> conversation::begin_compute(request_id id, compute_request request) {
    if (ours_.role != node_role::backbone) return error(errc::internal, "only a backbone asks");
    if (!established()) return error(errc::closed, "the connection is closed");
    if (draining_) return error(errc::closed, "the worker is leaving");
    if (id.value == 0 || requests_.contains(id)) {
        return error(errc::invalid_input, "request id " + std::to_string(id.value) + " is zero or in flight already");
    }
    if (requests_.size() >= peer_->accepts.max_requests_in_flight) {
        return error(errc::busy, "the worker takes " + std::to_string(peer_->accepts.max_requests_in_flight) +
                                     " requests at a time");
    }
    const held_layer* held = peer_->find(request.layer);
    if (held == nullptr) {
        return error(errc::invalid_input, "the worker does not hold layer " + std::to_string(request.layer.value));
    }
    if (auto fits = check_request(request, *held); !fits) return fits.error();
    auto pieces = encode(request);
    if (!pieces) return pieces.error();
    requests_.emplace(id, request_state{.layer = request.layer,
                                        .n_pairs = static_cast<std::uint32_t>(request.pairs.size()),
                                        .n_values = held->n_out});
    outgoing_.push_message(frame_type::compute, request.layer, id, *std::move(pieces));
    return {};
}

bool conversation::cancel(request_id id) {
    const auto at = requests_.find(id);
    if (closed_ || ours_.role != node_role::backbone || at == requests_.end() || at->second.cancelled) return false;
    if (outgoing_.withdraw(frame_type::compute, id) == chunker::withdrawal::dropped) {
        requests_.erase(at);
        return true;
    }
    at->second.cancelled = true;
    outgoing_.push_control(frame_type::cancel, id, {});
    return true;
}

std::optional<error_code> conversation::judge_result(const frame_header& header) {
    const auto at = requests_.find(header.request);
    if (at == requests_.end() || at->second.layer != header.layer) {
        fail(error_code::unexpected, "RESULT names a request that is not in flight");
        return std::nullopt;
    }
    if (at->second.cancelled) return error_code::cancelled;
    return std::nullopt;
}

void conversation::handle_result(raw_message message) {
    const auto at = requests_.find(message.request);
    if (at == requests_.end()) return fail(error_code::unexpected, "RESULT names a request that is not in flight");
    const request_state asked = at->second;
    requests_.erase(at);
    if (asked.cancelled) return;
    if (message.discarded) {
        events_.emplace_back(request_failed_event{
            message.request, {*message.discarded, "no memory was left for the result; ask for less at a time"}});
        return;
    }
    auto decoded = decode_result(message.layer, std::move(message.payload));
    if (!decoded) return fail(error_code::malformed, decoded.error().message);
    if (decoded->n_pairs != asked.n_pairs || decoded->n_values != asked.n_values) {
        return fail(error_code::malformed, "RESULT has " + std::to_string(decoded->n_pairs) + " rows of " +
                                               std::to_string(decoded->n_values) + " values, asked were " +
                                               std::to_string(asked.n_pairs) + " of " + std::to_string(asked.n_values));
    }
    events_.emplace_back(result_event{message.request, *std::move(decoded)});
}

std::optional<error_code> conversation::judge_compute(const frame_header& header) {
    if (incoming_.is_open(frame_type::compute, header.request)) return std::nullopt;
    if (header.request.value == 0 || requests_.contains(header.request)) {
        fail(error_code::unexpected, "COMPUTE has a request id that is zero or in flight already");
        return std::nullopt;
    }
    if (draining_) return error_code::draining;
    if (requests_.size() + incoming_.n_open(frame_type::compute) >= ours_.accepts.max_requests_in_flight) {
        return error_code::busy;
    }
    return std::nullopt;
}

void conversation::handle_compute(raw_message message) {
    if (message.discarded) {
        const error_code reason = *message.discarded;
        const bool leaving = reason == error_code::draining;
        return send_error(message.request, reason,
                          leaving                           ? "the worker is leaving; ask another"
                          : reason == error_code::cancelled ? "cancelled before it was begun"
                                                            : "too much is in flight; ask later or elsewhere");
    }
    auto decoded = decode_compute(message.layer, std::move(message.payload));
    if (!decoded) return send_error(message.request, error_code::malformed, decoded.error().message);
    requests_.emplace(message.request, request_state{.layer = message.layer});
    events_.emplace_back(compute_event{message.request, *std::move(decoded)});
}

void conversation::handle_cancel(const raw_message& message) {
    const request_id id = message.request;
    if (const auto at = requests_.find(id); at != requests_.end()) {
        if (!std::exchange(at->second.cancelled, true)) events_.emplace_back(cancel_event{id});
        return;
    }
    if (incoming_.discard_open(frame_type::compute, id, error_code::cancelled)) return;
    if (outgoing_.withdraw(frame_type::result, id) == chunker::withdrawal::dropped) {
        send_error(id, error_code::cancelled, "cancelled before it was sent");
    }
}

void conversation::finish_result(request_id id, compute_result result) {
    const auto at = requests_.find(id);
    if (ours_.role != node_role::worker || at == requests_.end()) return;
    const request_state asked = at->second;
    requests_.erase(at);
    if (asked.cancelled) return send_error(id, error_code::cancelled, "cancelled while it was computed");
    auto pieces = encode(result);
    if (!pieces) return send_error(id, error_code::internal, pieces.error().message);
    const auto bytes = result_payload_bytes(result.n_pairs, result.n_values);
    if (!bytes || *bytes > peer_->accepts.max_message_bytes) {
        return send_error(id, error_code::limit_exceeded,
                          "the result is larger than the maximum message size of who asked; ask for less at a time");
    }
    outgoing_.push_message(frame_type::result, asked.layer, id, *std::move(pieces));
}

void conversation::finish_error(request_id id, error_code code, std::string text) {
    if (ours_.role != node_role::worker || requests_.erase(id) == 0) return;
    send_error(id, code, text);
}

void conversation::drain() {
    if (ours_.role != node_role::worker || closed_ || std::exchange(draining_, true)) return;
    if (peer_) outgoing_.push_control(frame_type::drain, {}, {});
}

}  // namespace kvasir::wire
