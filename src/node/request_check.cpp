#include "node/request_check.hpp"

#include <fmt/core.h>

namespace kvasir::node {

std::optional<wire::error_message> find_fault(const wire::received_compute& request, const wire::held_layer& held,
                                              const expert::layer_weights& weights, std::uint64_t max_result_bytes) {
    using wire::error_code;
    const std::uint32_t layer = held.layer.value;
    if (request.n_values != held.n_in) {
        return wire::error_message{error_code::shape_mismatch, fmt::format("layer {} takes rows of {} values, not {}",
                                                                           layer, held.n_in, request.n_values)};
    }
    if (!held.accepts(request.encoding)) {
        return wire::error_message{error_code::encoding_not_accepted,
                                   fmt::format("layer {} does not take {} rows; send one of the encodings in HELLO",
                                               layer, name_of(request.encoding))};
    }
    if (const auto valid = expert::validate(weights, request.act); !valid) {
        return wire::error_message{error_code::activation_not_accepted, valid.error().message};
    }
    const std::uint32_t n_experts = held.n_experts();
    for (const row_expert_pair& pair : request.pairs) {
        if (pair.expert < n_experts) continue;
        return wire::error_message{
            error_code::expert_not_held,
            fmt::format("local expert {} of layer {} does not exist, {} are held", pair.expert, layer, n_experts)};
    }
    const auto result_bytes = wire::result_payload_bytes(request.pairs.size(), held.n_out);
    if (!result_bytes || *result_bytes > max_result_bytes) {
        return wire::error_message{error_code::limit_exceeded,
                                   fmt::format("the result of {} pairs is larger than a message may be ({} bytes); ask "
                                               "for less at a time",
                                               request.pairs.size(), max_result_bytes)};
    }
    return std::nullopt;
}

}  // namespace kvasir::node
