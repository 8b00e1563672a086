#include "backend/session.hpp"

#include <utility>

namespace kvasir::backend {
session::session(swarm::options workers) : options_(std::move(workers)) {}

void session::start() {
    if (!has_workers()) return;
    std::call_once(started_, [this] {
        swarm::options options = options_;
        if (options.numerics.empty()) options.numerics = expert::numerics_fingerprint();
        const auto made = std::make_shared<swarm::expert_swarm>(std::move(options));
        {
            const std::lock_guard lock(mutex_);
            if (stopped_) return;
            swarm_ = made;
        }
        made->connect();
    });
}

void session::stop() {
    std::shared_ptr<swarm::expert_swarm> last;
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
        last = std::move(swarm_);
        if (last) last_statistics_ = last->statistics();
    }
}

void session::count_unrecognised(const ggml_tensor* last_node) {
    ++unrecognised_;
    std::call_once(told_unrecognised_, [&] {
        if (!options_.on_event) return;
        const std::string name = last_node == nullptr ? "an empty graph" : ggml_get_name(last_node);
        options_.on_event(
            {swarm::event::severity::warning, "an expert graph (up to " + name +
                                                  ") has a form that cannot be sent out; it and others like "
                                                  "it are computed here"});
    });
}

bool session::dispatch(const expert_graph& graph, std::vector<row_expert_pair>& pairs, expert::engine& local) {
    if (!read_pairs(graph, pairs)) {
        count_unrecognised(graph.result);
        return false;
    }
    const auto swarm = [this] {
        const std::lock_guard lock(mutex_);
        return swarm_;
    }();
    if (!swarm) {
        ++all_local_;
        return false;
    }
    swarm::layer_call call;
    call.layer = graph.layer;
    call.act = graph.act;
    call.rows = static_cast<const std::byte*>(graph.rows->data);
    call.row_stride_bytes = graph.rows->nb[1];
    call.n_rows = graph.n_rows();
    call.pairs = pairs;
    call.weights = &graph.weights;
    call.out = std::span(static_cast<float*>(graph.result->data),
                         pairs.size() * static_cast<std::size_t>(graph.weights.n_out()));
    const auto done = swarm->compute(call, local);
    const bool computed = done && *done == swarm::outcome::computed;
    ++(computed ? dispatched_ : all_local_);
    return computed;
}

graph_counts session::counts() const {
    return {dispatched_, all_local_, unrecognised_};
}

swarm::statistics session::swarm_statistics() const {
    const std::lock_guard lock(mutex_);
    return swarm_ ? swarm_->statistics() : last_statistics_;
}

}  // namespace kvasir::backend
