// Cuts what one worker has to do in a layer call into requests that fit its limits. Pure.
//
// A request names each row once however many of the worker's experts want it, and its pairs by local ids.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/expert_call.hpp"
#include "base/ids.hpp"
#include "wire/hello.hpp"

namespace kvasir::swarm {

struct request_part {
    /// Positions in the layer call's pairs, one for each of `pairs`.
    std::vector<std::uint32_t> positions;
    /// What travels: `row` counts within `rows`, `expert` is the worker's local id.
    std::vector<row_expert_pair> pairs;
    /// The call's rows that the request carries, ascending.
    std::vector<std::uint32_t> rows;
};

struct partition_limits {
    std::uint64_t max_message_bytes = 0;  ///< for the request as for its result
    std::uint64_t row_in_bytes = 0;       ///< one encoded row
    std::uint64_t row_out_bytes = 0;      ///< one result row
    bool keep_experts_whole = false;      ///< expert::batch_sensitive
};

struct partition {
    std::vector<request_part> requests;
    /// Positions of pairs that fit no request: an expert that must stay whole and is too large, or one that the worker
    /// does not hold. They are computed on this machine.
    std::vector<std::uint32_t> left_over;
};

/// `positions` are those of the call's pairs that go to this worker.
partition cut_into_requests(std::span<const row_expert_pair> pairs, std::span<const std::uint32_t> positions,
                            const wire::held_layer& held, const partition_limits& limits);

}  // namespace kvasir::swarm
