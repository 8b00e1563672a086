#include "swarm/dispatch.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace kvasir::swarm {
namespace {

constexpr std::uint32_t max_trial_pairs = 64;

// How long an answer may take from the network thread's hands to the inbox.
constexpr duration arrival_pause = std::chrono::milliseconds(1);

time_point now() {
    return steady_clock_source().now();
}

}  // namespace

dispatch::dispatch(const layer_call& call, const surroundings& around, expert::engine& local)
    : call_(call), around_(around), local_(local) {}

result<outcome> dispatch::run() {
    if (!place()) {
        counts_.local_pairs += call_.pairs.size();
        return outcome::all_local;
    }
    if (auto encoded = encode_rows(); !encoded) return encoded.error();
    n_unfilled_ = call_.pairs.size();
    filled_by_.assign(call_.pairs.size(), nobody);
    n_awaited_.assign(call_.pairs.size(), 0);
    send_all();
    counts_.layer_calls = sent_.empty() ? 0 : 1;
    counts_.local_pairs += here_.size();
    if (auto computed = replace(here_); !computed) return computed.error();
    if (auto collected = collect(); !collected) return collected.error();
    leave_the_rest();
    if (auto audited = audit(); !audited) return audited.error();
    credit_all();
    return outcome::computed;
}

std::vector<std::uint32_t> dispatch::rows_of_experts() const {
    std::vector<std::uint32_t> n_rows(static_cast<std::size_t>(call_.weights->n_experts));
    for (const row_expert_pair& pair : call_.pairs)
        ++n_rows[pair.expert];
    return n_rows;
}

std::vector<expert_load> dispatch::loads() const {
    const std::vector<std::uint32_t> n_rows = rows_of_experts();
    std::vector<expert_load> found;
    for (std::uint32_t expert = 0; expert < n_rows.size(); ++expert)
        if (n_rows[expert] > 0) found.push_back({.expert = expert, .n_rows = n_rows[expert]});
    return found;
}

std::vector<worker_estimate> dispatch::estimates() const {
    const time_point when = now();
    const auto bytes_per_pair = static_cast<double>(call_.weights->n_out()) * sizeof(float);
    std::vector<worker_estimate> made;
    for (const auto& worker : around_.workers)
        made.push_back(worker->estimate(when, bytes_per_pair));
    return made;
}

/// Fills positions_by_worker_ and here_. False when nothing would be sent.
bool dispatch::place() {
    std::vector<bool> hot;
    if (around_.count_for_hot) hot = around_.count_for_hot(call_, rows_of_experts());
    if (!around_.who_holds.covers_any_of(call_.layer)) return false;
    auto experts = loads();
    for (expert_load& load : experts)
        if (load.expert < hot.size() && hot[load.expert]) load.here_us = around_.here_us_per_pair * load.n_rows;
    const auto places = choose_places(call_.layer, experts, around_.who_holds, estimates());
    std::vector<std::optional<worker_index>> place_of_expert(static_cast<std::size_t>(call_.weights->n_experts));
    for (std::size_t i = 0; i < experts.size(); ++i)
        place_of_expert[experts[i].expert] = places[i];
    positions_by_worker_.resize(around_.workers.size());
    for (std::uint32_t position = 0; position < call_.pairs.size(); ++position) {
        const auto& where = place_of_expert[call_.pairs[position].expert];
        (where ? positions_by_worker_[*where] : here_).push_back(position);
    }
    const time_point when = now();
    return here_.size() < call_.pairs.size() ||
           std::ranges::any_of(around_.workers, [&](const auto& worker) { return worker->wants_trial(when); });
}

result<void> dispatch::encode_rows() {
    const std::int64_t n_values = call_.weights->n_in();
    encoding_ = expert::lossless_encoding(*call_.weights);
    const auto row_bytes = row_size_bytes(encoding_, static_cast<std::uint32_t>(n_values));
    if (!row_bytes) return error(errc::internal, "the layer's rows cannot be encoded");
    row_bytes_ = static_cast<std::size_t>(*row_bytes);
    auto encoded = std::make_shared<std::vector<std::byte>>(row_bytes_ * call_.n_rows);
    if (auto done =
            expert::encode_rows(encoding_, call_.rows, call_.row_stride_bytes, n_values, call_.n_rows, *encoded);
        !done)
        return done;
    encoded_ = std::move(encoded);
    return {};
}

/// All sends leave before anything is waited for or computed.
void dispatch::send_all() {
    for (worker_index i = 0; i < around_.workers.size(); ++i) {
        if (positions_by_worker_[i].empty()) continue;
        const auto left_over = send_to(i, positions_by_worker_[i], worker_link::purpose::work);
        here_.insert(here_.end(), left_over.begin(), left_over.end());
    }
    send_trial();
}

/// At most one a call: one expert's rows that somebody else computes as well.
void dispatch::send_trial() {
    const time_point when = now();
    for (const expert_load& load : loads()) {
        if (load.n_rows > max_trial_pairs) continue;
        for (const worker_index worker : around_.who_holds.holders_of(call_.layer, load.expert)) {
            if (worker >= around_.workers.size() || !positions_by_worker_[worker].empty()) continue;
            if (!around_.workers[worker]->wants_trial(when)) continue;
            std::vector<std::uint32_t> positions;
            for (std::uint32_t position = 0; position < call_.pairs.size(); ++position)
                if (call_.pairs[position].expert == load.expert) positions.push_back(position);
            send_to(worker, positions, worker_link::purpose::trial);
            return;
        }
    }
}

/// Returns the positions that could not be sent.
std::vector<std::uint32_t> dispatch::send_to(worker_index index, std::span<const std::uint32_t> positions,
                                             worker_link::purpose why) {
    std::vector<std::uint32_t> all(positions.begin(), positions.end());
    const net::peer_connection::ptr peer = around_.workers[index]->usable_peer();
    if (!peer) return all;
    const wire::held_layer* held = peer->hello().find(call_.layer);
    const bool fits = held != nullptr && held->n_in == static_cast<std::uint32_t>(call_.weights->n_in()) &&
                      held->n_out == static_cast<std::uint32_t>(call_.weights->n_out()) && held->accepts(encoding_);
    if (!fits) return all;

    // The request must fit the worker, the result must fit us (our HELLO states the default limits).
    const std::uint64_t max_message_bytes =
        std::min(peer->hello().accepts.max_message_bytes, wire::limits{}.max_message_bytes);
    const partition_limits limits{max_message_bytes, row_bytes_,
                                  static_cast<std::uint64_t>(call_.weights->n_out()) * sizeof(float),
                                  expert::batch_sensitive(*call_.weights)};
    partition cut = cut_into_requests(call_.pairs, positions, *held, limits);
    std::vector<std::uint32_t> left_over = std::move(cut.left_over);
    for (request_part& part : cut.requests) {
        const std::vector<std::uint32_t> of_part = part.positions;
        if (!send_part(index, peer, std::move(part), why))
            left_over.insert(left_over.end(), of_part.begin(), of_part.end());
    }
    return left_over;
}

bool dispatch::send_part(worker_index index, const net::peer_connection::ptr& peer, request_part part,
                         worker_link::purpose why) {
    wire::compute_request request;
    request.layer = call_.layer;
    request.act = call_.act;
    request.companions = expert::companions_of(*call_.weights);
    request.encoding = encoding_;
    request.n_rows = static_cast<std::uint32_t>(part.rows.size());
    request.n_values = static_cast<std::uint32_t>(call_.weights->n_in());
    request.rows = rows_of(part);
    request.pairs = part.pairs;

    const auto& worker = around_.workers[index];
    const auto number = static_cast<std::uint32_t>(sent_.size());
    const std::uint64_t result_bytes =
        part.pairs.size() * static_cast<std::uint64_t>(call_.weights->n_out()) * sizeof(float);
    const auto sent = worker->send(peer, std::move(request), result_bytes, inbox_, number, why);
    if (!sent) return false;
    for (const std::uint32_t position : part.positions)
        ++n_awaited_[position];
    const time_point when = now();
    sent_.push_back({.worker = worker,
                     .index = index,
                     .id = sent->id,
                     .part = std::move(part),
                     .hedge_at = when + sent->hedge_after,
                     .deadline = when + sent->patience,
                     .trial = why == worker_link::purpose::trial});
    return true;
}

/// The call's own rows where the request wants all of them, a gathered copy otherwise.
wire::shared_bytes dispatch::rows_of(const request_part& part) const {
    if (part.rows.size() == call_.n_rows) return {*encoded_, encoded_};
    std::vector<std::byte> gathered(part.rows.size() * row_bytes_);
    for (std::size_t i = 0; i < part.rows.size(); ++i)
        std::memcpy(gathered.data() + i * row_bytes_, encoded_->data() + part.rows[i] * row_bytes_, row_bytes_);
    return wire::shared_bytes::own(std::move(gathered));
}

result<void> dispatch::collect() {
    while (n_unfilled_ > 0) {
        // What has arrived meanwhile need not be computed here.
        if (auto one = inbox_->wait_until(fallback_.empty() ? next_event() : time_point{})) {
            take(std::move(*one));
        } else if (!fallback_.empty()) {
            if (auto computed = compute_one_fallen_expert(); !computed) return computed;
        } else {
            look_at_the_clock(now());
        }
    }
    return {};
}

time_point dispatch::next_event() const {
    time_point earliest = time_point::max();
    for (const sent_request& request : sent_)
        if (request.open) earliest = std::min(earliest, request.late ? request.deadline : request.hedge_at);
    return earliest;
}

void dispatch::take(arrival one) {
    if (one.request >= sent_.size() || !sent_[one.request].open) return;
    sent_request& request = sent_[one.request];
    close(request);
    if (!one.result) return fall_back(request, one.failure);
    request.answered = accept(request, one.request, *one.result);
    if (request.answered) return;
    const std::string why =
        fmt::format("answered {} rows of {} values where {} rows of {} were asked for", one.result->n_pairs,
                    one.result->n_values, request.part.pairs.size(), call_.weights->n_out());
    request.worker->distrust(why);
    fall_back(request, why);
}

void dispatch::close(sent_request& request) {
    request.open = false;
    for (const std::uint32_t position : request.part.positions)
        --n_awaited_[position];
}

/// Writes an answer to its places, if it has the shape that was asked for; what somebody else was quicker with stays.
bool dispatch::accept(sent_request& request, std::uint32_t number, const wire::received_result& answer) {
    const auto n_out = static_cast<std::size_t>(call_.weights->n_out());
    if (answer.n_pairs != request.part.pairs.size() || answer.n_values != n_out || answer.layer != call_.layer)
        return false;
    for (std::size_t i = 0; i < request.part.positions.size(); ++i) {
        const std::uint32_t position = request.part.positions[i];
        if (filled_by_[position] != nobody) continue;
        std::ranges::copy(answer.row(i), out_row(position).begin());
        filled_by_[position] = number;
        --n_unfilled_;
        ++request.n_taken;
    }
    return true;
}

/// What nobody has answered and nobody else was asked.
void dispatch::fall_back(const sent_request& request, const std::string& why) {
    for (const std::uint32_t position : unfilled(request.part.positions))
        if (n_awaited_[position] == 0) fallback_.push_back(position);
    around_.warn(*request.worker, why);
}

std::vector<std::uint32_t> dispatch::unfilled(std::span<const std::uint32_t> positions) const {
    std::vector<std::uint32_t> left;
    std::ranges::copy_if(positions, std::back_inserter(left),
                         [this](std::uint32_t position) { return filled_by_[position] == nobody; });
    return left;
}

void dispatch::look_at_the_clock(time_point when) {
    // By number: hedging adds to sent_.
    for (std::size_t number = 0; number < sent_.size(); ++number) {
        if (!sent_[number].open) continue;
        if (sent_[number].deadline <= when) {
            if (!sent_[number].worker->give_up(sent_[number].id)) {
                // It has just come after all.
                sent_[number].deadline = when + arrival_pause;
                continue;
            }
            close(sent_[number]);
            fall_back(sent_[number], "late");
        } else if (!sent_[number].late && sent_[number].hedge_at <= when) {
            sent_[number].late = true;
            if (!sent_[number].trial) hedge(number);
        }
    }
}

/// Asks other holders, or this machine, for what a late request has not brought yet: whoever would finish sooner.
void dispatch::hedge(std::size_t number) {
    sent_[number].worker->count_hedge();
    const std::vector<std::uint32_t> late = unfilled(sent_[number].part.positions);
    std::vector<std::uint32_t> rows_of_expert(static_cast<std::size_t>(call_.weights->n_experts));
    for (const std::uint32_t position : late)
        ++rows_of_expert[call_.pairs[position].expert];
    std::vector<expert_load> experts;
    for (std::uint32_t expert = 0; expert < rows_of_expert.size(); ++expert)
        if (const std::uint32_t n_rows = rows_of_expert[expert]; n_rows > 0)
            experts.push_back({expert, n_rows, around_.here_us_per_pair * n_rows});

    auto others = estimates();
    for (const sent_request& request : sent_)
        if (request.late) others[request.index].available = false;
    const auto places = choose_places(call_.layer, experts, around_.who_holds, others);
    std::vector<std::optional<worker_index>> place_of_expert(rows_of_expert.size());
    for (std::size_t i = 0; i < experts.size(); ++i)
        place_of_expert[experts[i].expert] = places[i];
    std::vector<std::vector<std::uint32_t>> by_worker(others.size());
    for (const std::uint32_t position : late) {
        const auto& where = place_of_expert[call_.pairs[position].expert];
        (where ? by_worker[*where] : fallback_).push_back(position);
    }
    for (worker_index i = 0; i < by_worker.size(); ++i) {
        if (by_worker[i].empty()) continue;
        const auto left_over = send_to(i, by_worker[i], worker_link::purpose::work);
        fallback_.insert(fallback_.end(), left_over.begin(), left_over.end());
    }
}

/// Everything is filled: the losers are cancelled; trials go on by themselves, to be measured.
void dispatch::leave_the_rest() {
    while (auto one = inbox_->wait_until(time_point{}))
        take(std::move(*one));
    for (sent_request& request : sent_) {
        if (!request.open) continue;
        close(request);
        if (request.trial) {
            request.worker->leave(request.id);
        } else {
            request.worker->outrun(request.id, request.late);
        }
    }
}

/// Recomputes some of the workers' rows. A worker whose rows differ is quarantined, and all it gave to this call is
/// replaced.
result<void> dispatch::audit() {
    const std::vector<std::uint32_t> chosen = positions_to_audit();
    if (chosen.empty()) return {};
    auto recomputed = compute(chosen);
    if (!recomputed) return recomputed.error();
    return compare(chosen, *recomputed);
}

/// Drawn at random, and rows with values that are not finite, ascending. Where bits depend on how many rows come to an
/// expert at once, all rows of the expert.
std::vector<std::uint32_t> dispatch::positions_to_audit() const {
    std::vector<std::uint32_t> from_workers;
    for (std::uint32_t position = 0; position < filled_by_.size(); ++position)
        if (filled_by_[position] < sent_.size()) from_workers.push_back(position);
    std::vector<bool> chosen(filled_by_.size());
    for (const std::uint32_t i : around_.draw_audits(static_cast<std::uint32_t>(from_workers.size())))
        chosen[from_workers[i]] = true;
    for (const std::uint32_t position : from_workers)
        if (!std::ranges::all_of(out_row(position), [](float value) { return std::isfinite(value); }))
            chosen[position] = true;

    if (expert::batch_sensitive(*call_.weights)) {
        std::vector<bool> experts(static_cast<std::size_t>(call_.weights->n_experts));
        for (std::uint32_t position = 0; position < chosen.size(); ++position)
            if (chosen[position]) experts[call_.pairs[position].expert] = true;
        for (std::uint32_t position = 0; position < chosen.size(); ++position)
            chosen[position] = experts[call_.pairs[position].expert];
    }
    std::vector<std::uint32_t> positions;
    for (std::uint32_t position = 0; position < chosen.size(); ++position)
        if (chosen[position]) positions.push_back(position);
    return positions;
}

result<void> dispatch::compare(std::span<const std::uint32_t> positions, std::span<const float> recomputed) {
    const auto n_out = static_cast<std::size_t>(call_.weights->n_out());
    struct finding {
        std::uint64_t n_audited = 0;
        std::uint64_t n_wrong = 0;
        std::string first;
    };
    std::vector<finding> findings(sent_.size());
    for (std::size_t i = 0; i < positions.size(); ++i) {
        const std::uint32_t by = filled_by_[positions[i]];
        if (by >= sent_.size()) continue;
        const auto theirs = std::as_bytes(std::span<const float>(out_row(positions[i])));
        const auto ours = std::as_bytes(recomputed.subspan(i * n_out, n_out));
        ++findings[by].n_audited;
        if (std::ranges::equal(theirs, ours)) continue;
        if (findings[by].n_wrong++ == 0)
            findings[by].first =
                fmt::format("a wrong result for layer {}, expert {}: SHA-256 {} where {} is right", call_.layer.value,
                            call_.pairs[positions[i]].expert, sha256::of(theirs).hex(), sha256::of(ours).hex());
    }
    std::vector<std::uint32_t> liars;
    for (std::uint32_t number = 0; number < findings.size(); ++number) {
        const finding& found = findings[number];
        counts_.audited_pairs += found.n_audited;
        if (found.n_audited > 0) sent_[number].worker->count_audit(found.n_audited, found.n_wrong);
        if (found.n_wrong == 0) continue;
        sent_[number].worker->quarantine(found.first);
        liars.push_back(sent_[number].index);
    }
    std::vector<std::uint32_t> doubtful;
    for (std::uint32_t position = 0; position < filled_by_.size(); ++position) {
        const std::uint32_t by = filled_by_[position];
        if (by >= sent_.size() || std::ranges::find(liars, sent_[by].index) == liars.end()) continue;
        --sent_[by].n_taken;
        doubtful.push_back(position);
    }
    counts_.fallback_pairs += doubtful.size();
    return replace(std::move(doubtful));
}

void dispatch::credit_all() {
    for (const sent_request& request : sent_)
        if (request.answered) request.worker->credit(request.n_taken, !request.late);
}

/// The rows of these positions, which are ascending: every expert sees its rows as the monolithic graph brings them.
result<std::vector<float>> dispatch::compute(std::span<const std::uint32_t> ordered) {
    std::vector<row_expert_pair> pairs;
    for (const std::uint32_t position : ordered)
        pairs.push_back(call_.pairs[position]);
    std::vector<float> results(pairs.size() * static_cast<std::size_t>(call_.weights->n_out()));
    const expert::row_batch rows{encoding_, call_.weights->n_in(), call_.n_rows, *encoded_};
    const time_point begun = now();
    if (auto computed = local_.compute(*call_.weights, call_.act, rows, pairs, results); !computed)
        return computed.error();
    computed_for_ += now() - begun;
    n_computed_ += pairs.size();
    return results;
}

/// Computes positions and writes them, whoever has filled them.
result<void> dispatch::replace(std::vector<std::uint32_t> positions) {
    if (positions.empty()) return {};
    std::ranges::sort(positions);
    const auto results = compute(positions);
    if (!results) return results.error();
    const auto n_out = static_cast<std::size_t>(call_.weights->n_out());
    for (std::size_t i = 0; i < positions.size(); ++i) {
        std::ranges::copy(std::span(*results).subspan(i * n_out, n_out), out_row(positions[i]).begin());
        if (filled_by_[positions[i]] == nobody) --n_unfilled_;
        filled_by_[positions[i]] = this_machine;
    }
    return {};
}

/// One expert at a time, so that what arrives meanwhile is used.
result<void> dispatch::compute_one_fallen_expert() {
    const std::uint32_t expert = call_.pairs[fallback_.back()].expert;
    std::vector<std::uint32_t> positions;
    std::erase_if(fallback_, [&](std::uint32_t position) {
        if (call_.pairs[position].expert != expert) return false;
        if (filled_by_[position] == nobody) positions.push_back(position);
        return true;
    });
    std::ranges::sort(positions);
    positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
    counts_.fallback_pairs += positions.size();
    return replace(std::move(positions));
}

std::span<float> dispatch::out_row(std::uint32_t position) const {
    const auto n_out = static_cast<std::size_t>(call_.weights->n_out());
    return call_.out.subspan(position * n_out, n_out);
}

std::optional<double> dispatch::measured_here_us_per_pair() const {
    if (n_computed_ == 0) return std::nullopt;
    return std::chrono::duration<double, std::micro>(computed_for_).count() / static_cast<double>(n_computed_);
}

}  // namespace kvasir::swarm
