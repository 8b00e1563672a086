// What all instances of the backend share: the swarm, and counts of what went where. Internal.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.hpp"
#include "backend/graph_reader.hpp"
#include "expert/expert.hpp"
#include "swarm/swarm.hpp"

namespace kvasir::backend {

/// Any thread may call any member.
class session {
  public:
    explicit session(swarm::options workers);

    bool has_workers() const { return !options_.workers.empty(); }
    /// Computes the numerics fingerprint and connects, once. Throws as expert::engine does.
    void start();
    /// Ends the connections, or sees to it that there never are any; the counts stay.
    void stop();

    /// False when nothing was computed: leave the graph to ggml's CPU backend.
    bool dispatch(const expert_graph& graph, std::vector<row_expert_pair>& pairs, expert::engine& local);
    /// The first one is told to people: a layer of this kind stays here.
    void count_unrecognised(const ggml_tensor* last_node);

    graph_counts counts() const;
    swarm::statistics swarm_statistics() const;

  private:
    const swarm::options options_;
    std::once_flag started_;
    std::once_flag told_unrecognised_;
    mutable std::mutex mutex_;  // the three below; not what the pointer points to
    bool stopped_ = false;
    std::shared_ptr<swarm::expert_swarm> swarm_;
    swarm::statistics last_statistics_;  ///< when it was stopped
    std::atomic<std::uint64_t> dispatched_ = 0;
    std::atomic<std::uint64_t> all_local_ = 0;
    std::atomic<std::uint64_t> unrecognised_ = 0;
};

}  // namespace kvasir::backend
