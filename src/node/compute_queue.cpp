#include "node/compute_queue.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "node/request_check.hpp"

namespace kvasir::node {
namespace {

time_point now() {
    return steady_clock_source().now();
}

template <class T>
T saturated(std::uint64_t value) {
    return static_cast<T>(std::min<std::uint64_t>(value, std::numeric_limits<T>::max()));
}

std::uint32_t microseconds_of(duration span) {
    const auto count = std::chrono::duration_cast<std::chrono::microseconds>(span).count();
    return count < 0 ? 0 : saturated<std::uint32_t>(static_cast<std::uint64_t>(count));
}

/// Result rows with their part of the budget; not initialised, they are about to be computed.
struct result_rows {
    wire::budget_lease lease;
    std::unique_ptr<float[]> values;
};

}  // namespace

compute_queue::compute_queue(const held_slice& held, options chosen, computed_handler on_computed)
    : held_(held),
      options_(chosen),
      on_computed_(std::move(on_computed)),
      result_budget_(std::make_shared<wire::byte_budget>(chosen.max_result_bytes)),
      engine_(chosen.n_threads),
      pace_(chosen.max_rows_per_second ? std::optional<row_pace>(*chosen.max_rows_per_second) : std::nullopt),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

compute_queue::~compute_queue() {
    thread_.request_stop();
    thread_.join();
}

bool compute_queue::push(queued_request request) {
    {
        const std::scoped_lock lock(mutex_);
        if (waiting_.size() >= options_.max_requests) return false;
        waiting_.push_back({std::move(request), next_number_++});
    }
    changed_.notify_one();
    return true;
}

bool compute_queue::cancel(const net::served_connection& from, request_id id) {
    std::shared_ptr<net::served_connection> connection;
    {
        const std::scoped_lock lock(mutex_);
        const auto at = std::find_if(waiting_.begin(), waiting_.end(), [&](const waiting_request& one) {
            return one.request.from.get() == &from && one.request.id == id;
        });
        if (at == waiting_.end()) return false;
        connection = std::move(at->request.from);
        waiting_.erase(at);
    }
    changed_.notify_one();
    connection->finish_error(id, wire::error_code::cancelled, "cancelled before it was begun");
    return true;
}

void compute_queue::drop(const net::served_connection& from) {
    {
        const std::scoped_lock lock(mutex_);
        std::erase_if(waiting_, [&](const waiting_request& one) { return one.request.from.get() == &from; });
    }
    changed_.notify_one();
}

void compute_queue::run(std::stop_token stop) {
    while (auto taken = pop(stop))
        answer(*std::move(taken));
}

std::optional<compute_queue::taken_request> compute_queue::pop(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (;;) {
        if (!changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) return std::nullopt;
        if (stop.stop_requested()) return std::nullopt;
        const time_point turn = now();
        if (pace_) {
            const std::uint64_t number = waiting_.front().number;
            const std::uint64_t n_rows = waiting_.front().request.request.pairs.size();
            const time_point ready = pace_->ready_at(turn, n_rows);
            const bool front_has_gone = changed_.wait_until(
                lock, stop, ready, [&] { return waiting_.empty() || waiting_.front().number != number; });
            if (stop.stop_requested()) return std::nullopt;
            if (front_has_gone) continue;
            pace_->begin(ready, n_rows);
        }
        taken_request taken{.request = std::move(waiting_.front().request), .turn = turn};
        waiting_.pop_front();
        taken.n_waiting = saturated<std::uint16_t>(waiting_.size());
        return taken;
    }
}

void compute_queue::answer(taken_request taken) {
    const queued_request& next = taken.request;
    const wire::received_compute& request = next.request;
    const auto fail = [&next](wire::error_code code, std::string text) {
        next.from->finish_error(next.id, code, std::move(text));
    };
    const auto at = held_.find(request.layer);
    if (!at) {
        return fail(wire::error_code::layer_not_held,
                    "layer " + std::to_string(request.layer.value) + " is not held; HELLO says which are");
    }
    const wire::held_layer& held = held_.layers()[*at];
    const auto weights = expert::with_companions(held_.weights()[*at], request.companions);
    if (!weights) return fail(wire::error_code::activation_not_accepted, weights.error().message);
    const std::uint64_t max_result_bytes =
        std::min(options_.max_message_bytes, next.from->hello().accepts.max_message_bytes);
    if (auto fault = find_fault(request, held, *weights, max_result_bytes)) {
        return fail(fault->code, std::move(fault->text));
    }

    const std::size_t n_pairs = request.pairs.size();
    const std::size_t n_result_values = n_pairs * held.n_out;
    const auto rows = std::make_shared<result_rows>(result_rows{wire::budget_lease(result_budget_), nullptr});
    if (!rows->lease.grow(n_result_values * sizeof(float))) {
        return fail(wire::error_code::busy, "too many results wait to be read; read faster, or ask elsewhere");
    }
    rows->values = std::make_unique_for_overwrite<float[]>(n_result_values);
    const std::span<float> out(rows->values.get(), n_result_values);

    const expert::row_batch batch{
        .encoding = request.encoding, .n_values = request.n_values, .n_rows = request.n_rows, .bytes = request.rows};
    if (const auto computed = engine_.compute(*weights, request.act, batch, request.pairs, out); !computed) {
        return fail(wire::error_code::internal, computed.error().message);
    }
    const time_point done = now();
    if (on_computed_) on_computed_(*next.from, n_pairs);
    next.from->finish_result(next.id, {.status = wire::result_status::exact,
                                       .queue_depth = taken.n_waiting,
                                       .n_pairs = static_cast<std::uint32_t>(n_pairs),
                                       .n_values = held.n_out,
                                       .compute_time_us = microseconds_of(done - taken.turn),
                                       .queue_time_us = microseconds_of(taken.turn - next.arrived),
                                       .rows = {std::as_bytes(std::span<const float>(out)), rows}});
}

}  // namespace kvasir::node
