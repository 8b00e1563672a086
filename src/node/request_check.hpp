// Whether a request is one that the engine can be given. Pure; what is wrong becomes the ERROR of that request.
#pragma once

#include <cstdint>
#include <optional>

#include "expert/expert.hpp"
#include "wire/hello.hpp"
#include "wire/messages.hpp"

namespace kvasir::node {

/// `max_result_bytes`: the largest message that both sides allow. Everything the wire has already checked (counts
/// against length, rows of pairs) is taken for granted.
std::optional<wire::error_message> find_fault(const wire::received_compute& request, const wire::held_layer& held,
                                              const expert::layer_weights& weights, std::uint64_t max_result_bytes);

}  // namespace kvasir::node
