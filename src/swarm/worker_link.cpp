#include "swarm/worker_link.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace kvasir::swarm {
namespace {

// Beyond this the estimate is out of all reason anyway.
constexpr std::uint64_t max_queued_pairs = 1U << 20U;

time_point now() {
    return steady_clock_source().now();
}

/// Connected and not leaving.
bool is_serving(worker_state state) {
    return state == worker_state::live || state == worker_state::suspect;
}

}  // namespace

const char* name_of(worker_state state) {
    switch (state) {
        case worker_state::joining:
            return "joining";
        case worker_state::live:
            return "live";
        case worker_state::suspect:
            return "suspect";
        case worker_state::draining:
            return "draining";
        case worker_state::gone:
            return "gone";
        case worker_state::refused:
            return "refused";
        case worker_state::quarantined:
            return "quarantined";
    }
    return "unknown";
}

worker_link::worker_link(net::endpoint where, duration min_hedge, connect_function connect, change_function changed)
    : endpoint_(std::move(where)), connect_(std::move(connect)), changed_(std::move(changed)), service_(min_hedge) {}

std::optional<time_point> worker_link::maintain(time_point when) {
    std::uint64_t attempt = 0;
    give_up_what_was_left(when);
    {
        const std::lock_guard lock(mutex_);
        if (shut_down_ || connecting_ || peer_ || state_ == worker_state::quarantined) return std::nullopt;
        if (!reconnect_.allows(when)) return reconnect_.until();
        connecting_ = true;
        attempt = ++attempt_;
    }
    connect_(endpoint_, make_handlers(attempt),
             [weak = weak_from_this(), attempt](result<net::peer_connection::ptr> outcome) {
                 if (const auto self = weak.lock()) self->connected(attempt, std::move(outcome));
             });
    return std::nullopt;
}

net::peer_handlers worker_link::make_handlers(std::uint64_t attempt) {
    const auto weak = weak_from_this();
    return {
        .on_result =
            [weak](request_id id, wire::received_result answer) {
                if (const auto self = weak.lock()) self->answered(id, std::move(answer));
            },
        .on_request_error =
            [weak](request_id id, const wire::error_message& why) {
                if (const auto self = weak.lock()) self->failed(id, why);
            },
        .on_drain =
            [weak, attempt] {
                if (const auto self = weak.lock()) self->draining(attempt);
            },
        .on_closed =
            [weak, attempt](const error& why) {
                if (const auto self = weak.lock()) self->closed(attempt, why);
            },
    };
}

void worker_link::connected(std::uint64_t attempt, result<net::peer_connection::ptr> outcome) {
    net::peer_connection::ptr unwanted;
    {
        const std::lock_guard lock(mutex_);
        if (attempt != attempt_ || !connecting_) {
            // Closed again before this was told, or shut down meanwhile.
            if (outcome) unwanted = *outcome;
        } else {
            connecting_ = false;
            if (!outcome) {
                state_ = outcome.error().code == errc::mismatch ? worker_state::refused : worker_state::gone;
                reason_ = outcome.error().message;
                reconnect_.failed(now());
            } else if (shut_down_) {
                unwanted = *outcome;
            } else {
                peer_ = *outcome;
                hello_ = std::make_shared<const wire::hello>(peer_->hello());
                state_ = worker_state::live;
                reason_.clear();
                set_standing();
            }
        }
    }
    if (unwanted) {
        unwanted->close();
        return;
    }
    changed_(*this);
}

void worker_link::keep_byte_counts() {
    if (!peer_) return;
    const net::connection_statistics counts = peer_->statistics();
    past_bytes_in_ += counts.bytes_in;
    past_bytes_out_ += counts.bytes_out;
}

void worker_link::closed(std::uint64_t attempt, const error& why) {
    std::vector<pending_request> cut_off;
    net::peer_connection::ptr last_reference;
    {
        const std::lock_guard lock(mutex_);
        if (attempt != attempt_) return;
        keep_byte_counts();
        last_reference = std::exchange(peer_, nullptr);
        connecting_ = false;
        if (state_ != worker_state::refused && state_ != worker_state::quarantined) {
            state_ = worker_state::gone;
            reason_ = why.message;
        }
        reconnect_.failed(now());
        for (auto& [id, request] : pending_)
            cut_off.push_back(std::move(request));
        pending_.clear();
        pairs_in_flight_ = 0;
        failures_ += cut_off.size();
    }
    for (const pending_request& request : cut_off)
        request.inbox->put({request.position, std::nullopt, "the connection ended: " + why.message});
    changed_(*this);
}

void worker_link::draining(std::uint64_t attempt) {
    {
        const std::lock_guard lock(mutex_);
        if (attempt != attempt_ || !is_serving(state_)) return;
        state_ = worker_state::draining;
        reason_ = "the worker is leaving";
    }
    changed_(*this);
}

void worker_link::refuse(const std::string& reason) {
    net::peer_connection::ptr peer;
    {
        const std::lock_guard lock(mutex_);
        if (state_ == worker_state::quarantined) return;
        state_ = worker_state::refused;
        reason_ = reason;
        peer = peer_;
    }
    if (peer) peer->close();
}

void worker_link::quarantine(const std::string& reason) {
    net::peer_connection::ptr peer;
    {
        const std::lock_guard lock(mutex_);
        state_ = worker_state::quarantined;
        reason_ = reason;
        peer = peer_;
    }
    if (peer) peer->close();
    changed_(*this);
}

void worker_link::shut_down() {
    net::peer_connection::ptr peer;
    {
        const std::lock_guard lock(mutex_);
        shut_down_ = true;
        peer = peer_;
    }
    if (peer) peer->close();
}

net::peer_connection::ptr worker_link::usable_peer() const {
    const std::lock_guard lock(mutex_);
    if (!is_serving(state_) || !peer_ || !peer_->usable()) return nullptr;
    return peer_;
}

std::shared_ptr<const wire::hello> worker_link::hello() const {
    const std::lock_guard lock(mutex_);
    return is_serving(state_) ? hello_ : nullptr;
}

worker_estimate worker_link::estimate(time_point when, double bytes_per_pair) const {
    const std::lock_guard lock(mutex_);
    const bool available = is_serving(state_) && peer_ && peer_->usable() && standing_.may_work(when);
    const double per_pair_us = service_.per_pair_us() + service_.per_byte_us() * bytes_per_pair;
    const double queued_us = service_.per_pair_us() * static_cast<double>(pairs_in_flight_);
    return {available, service_.fixed_us() + queued_us, per_pair_us};
}

bool worker_link::wants_trial(time_point when) const {
    const std::lock_guard lock(mutex_);
    // One at a time: what it still owes says more about it than another question would.
    return is_serving(state_) && peer_ && peer_->usable() && pending_.empty() && standing_.wants_trial(when);
}

result<worker_link::sent> worker_link::send(const net::peer_connection::ptr& peer, wire::compute_request request,
                                            std::uint64_t result_bytes, std::shared_ptr<call_inbox> inbox,
                                            std::uint32_t position, purpose why) {
    pending_request asked;
    asked.inbox = std::move(inbox);
    asked.position = position;
    asked.size = {static_cast<std::uint32_t>(request.pairs.size()), request.payload_bytes() + result_bytes};
    asked.sent_at = now();
    sent made;
    {
        const std::lock_guard lock(mutex_);
        if (peer != peer_) return error(errc::closed, "the connection has ended");
        // What it already has to do comes first.
        request_size with_queue = asked.size;
        with_queue.n_pairs += static_cast<std::uint32_t>(std::min<std::uint64_t>(pairs_in_flight_, max_queued_pairs));
        made = {{next_request_++}, service_.hedge_after(with_queue), service_.patience(with_queue)};
        asked.hedge_after = made.hedge_after;
        asked.patience = made.patience;
        pairs_in_flight_ += asked.size.n_pairs;
        standing_.asked(asked.sent_at);
        if (why == purpose::trial) standing_.trial_sent(asked.sent_at);
        pending_.emplace(made.id, std::move(asked));
    }
    if (auto done = peer->send_compute(made.id, std::move(request)); !done) {
        // Closing may have answered it already; then its arrival stands and is told apart by the caller's bookkeeping.
        if (!take(made.id)) return made;
        return done.error();
    }
    if (why == purpose::trial) {
        const std::lock_guard lock(mutex_);
        ++trials_;
    }
    return made;
}

std::optional<worker_link::pending_request> worker_link::take(request_id id) {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(id);
    if (found == pending_.end()) return std::nullopt;
    pending_request request = std::move(found->second);
    pending_.erase(found);
    pairs_in_flight_ -= request.size.n_pairs;
    return request;
}

/// With the lock held, after a change of standing_.
void worker_link::set_standing() {
    if (state_ == worker_state::live && standing_.is_suspect()) state_ = worker_state::suspect;
    if (state_ == worker_state::suspect && !standing_.is_suspect()) state_ = worker_state::live;
}

void worker_link::answered(request_id id, wire::received_result answer) {
    const auto request = take(id);
    if (!request) return;
    const duration elapsed = now() - request->sent_at;
    {
        const std::lock_guard lock(mutex_);
        service_.record({request->size, elapsed, std::chrono::microseconds(answer.compute_time_us),
                         std::chrono::microseconds(answer.queue_time_us)});
        if (request->left && answer.n_pairs == request->size.n_pairs) {
            standing_.answered(elapsed <= request->hedge_after, now());
            set_standing();
        }
    }
    if (!request->left) request->inbox->put({request->position, std::move(answer), {}});
}

void worker_link::failed(request_id id, const wire::error_message& why) {
    const auto request = take(id);
    if (!request) return;
    {
        const std::lock_guard lock(mutex_);
        ++failures_;
        standing_.failed(now());
        set_standing();
    }
    request->inbox->put(
        {request->position, std::nullopt, fmt::format("the worker says: {} ({})", why.text, wire::name_of(why.code))});
}

void worker_link::credit(std::uint32_t n_pairs, bool in_time) {
    const std::lock_guard lock(mutex_);
    ++requests_;
    pairs_ += n_pairs;
    standing_.answered(in_time, now());
    set_standing();
    reconnect_.succeeded();
}

void worker_link::count_hedge() {
    const std::lock_guard lock(mutex_);
    ++hedges_;
}

void worker_link::outrun(request_id id, bool was_late) {
    const auto request = take(id);
    if (!request) return;
    net::peer_connection::ptr peer;
    {
        const std::lock_guard lock(mutex_);
        if (was_late) {
            ++misses_;
            service_.record_unanswered(request->size, now() - request->sent_at);
            standing_.missed(now());
            set_standing();
        }
        peer = peer_;
    }
    if (peer) peer->cancel(id);
}

void worker_link::leave(request_id id) {
    const std::lock_guard lock(mutex_);
    if (const auto found = pending_.find(id); found != pending_.end()) found->second.left = true;
}

bool worker_link::give_up(request_id id) {
    const auto request = take(id);
    if (!request) return false;
    net::peer_connection::ptr peer;
    {
        const std::lock_guard lock(mutex_);
        ++failures_;
        service_.record_unanswered(request->size, now() - request->sent_at);
        standing_.failed(now());
        set_standing();
        peer = peer_;
    }
    if (peer) peer->cancel(id);
    return true;
}

void worker_link::give_up_what_was_left(time_point when) {
    std::vector<request_id> overdue;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [id, request] : pending_)
            if (request.left && request.sent_at + request.patience <= when) overdue.push_back(id);
    }
    for (const request_id id : overdue)
        give_up(id);
}

void worker_link::distrust(const std::string& reason) {
    {
        const std::lock_guard lock(mutex_);
        ++failures_;
        standing_.failed(now());
    }
    refuse(reason);
}

void worker_link::count_audit(std::uint64_t n_pairs, std::uint64_t n_wrong) {
    const std::lock_guard lock(mutex_);
    audited_pairs_ += n_pairs;
    wrong_pairs_ += n_wrong;
}

worker_state worker_link::state() const {
    const std::lock_guard lock(mutex_);
    return state_;
}

worker_statistics worker_link::statistics() const {
    const std::lock_guard lock(mutex_);
    worker_statistics copy;
    copy.endpoint = endpoint_.text();
    copy.state = state_;
    copy.reason = reason_;
    copy.pairs = pairs_;
    copy.requests = requests_;
    copy.failures = failures_;
    copy.hedges = hedges_;
    copy.misses = misses_;
    copy.trials = trials_;
    copy.audited_pairs = audited_pairs_;
    copy.wrong_pairs = wrong_pairs_;
    copy.pairs_in_flight = pairs_in_flight_;
    if (service_.measured() && service_.per_pair_us() > 0.0) copy.pairs_per_second = 1e6 / service_.per_pair_us();
    if (service_.measured() && service_.per_byte_us() > 0.0) copy.bytes_per_second = 1e6 / service_.per_byte_us();
    copy.bytes_in = past_bytes_in_;
    copy.bytes_out = past_bytes_out_;
    if (hello_) {
        copy.name = hello_->name;
        for (const wire::held_layer& held : hello_->layers)
            copy.n_experts += held.n_experts();
    }
    if (peer_) {
        const net::connection_statistics counts = peer_->statistics();
        copy.bytes_in += counts.bytes_in;
        copy.bytes_out += counts.bytes_out;
        copy.round_trip_time = counts.round_trip_time.value_or(duration{});
    }
    return copy;
}

}  // namespace kvasir::swarm
