// The hot experts: kept in this machine's memory, so that computing them here is an option although workers hold them.
// Thread-safe. Internal to this part.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/pages.hpp"
#include "swarm/hot_set.hpp"
#include "swarm/layer_call.hpp"
#include "swarm/options.hpp"

namespace kvasir::swarm {

class hot_experts {
  public:
    explicit hot_experts(std::uint64_t budget_bytes);

    /// Counts what the router chose in a layer call and says which of the layer's experts are hot. Now and then the set
    /// is chosen anew: the system is asked to read what has entered, and may page out what has left.
    std::vector<bool> count(const layer_call& call, std::span<const std::uint32_t> rows_of_expert);

    hot_statistics statistics() const;

  private:
    void learn_layer(const layer_call& call);
    void review();
    void admit(const hot_expert& which);

    const std::uint64_t budget_bytes_;
    mutable std::mutex mutex_;  // everything below
    hot_set set_;
    std::unordered_map<layer_id, expert::layer_weights> weights_;
    /// By layer, then by expert.
    std::unordered_map<layer_id, std::unordered_map<std::uint32_t, std::vector<page_lock>>> locks_;
    std::uint64_t calls_until_review_ = 0;
    hot_statistics counts_;
};

}  // namespace kvasir::swarm
