#include "wire/protocol.hpp"

namespace kvasir::wire {

std::optional<frame_type> frame_type_from(std::uint8_t number) {
    if (number >= 0x01 && number <= 0x0a) return static_cast<frame_type>(number);
    return std::nullopt;
}

std::string_view name_of(frame_type type) {
    switch (type) {
        case frame_type::hello:
            return "HELLO";
        case frame_type::refuse:
            return "REFUSE";
        case frame_type::compute:
            return "COMPUTE";
        case frame_type::result:
            return "RESULT";
        case frame_type::error:
            return "ERROR";
        case frame_type::ping:
            return "PING";
        case frame_type::pong:
            return "PONG";
        case frame_type::cancel:
            return "CANCEL";
        case frame_type::drain:
            return "DRAIN";
        case frame_type::goodbye:
            return "GOODBYE";
    }
    return "unknown";
}

std::optional<node_role> node_role_from(std::uint8_t number) {
    if (number == 1 || number == 2) return static_cast<node_role>(number);
    return std::nullopt;
}

std::string_view name_of(node_role role) {
    return role == node_role::backbone ? "backbone" : "worker";
}

std::optional<refusal_code> refusal_code_from(std::uint16_t number) {
    if (number >= 1 && number <= 7) return static_cast<refusal_code>(number);
    return std::nullopt;
}

std::optional<error_code> error_code_from(std::uint16_t number) {
    if (number >= 1 && number <= 14) return static_cast<error_code>(number);
    return std::nullopt;
}

std::string_view name_of(error_code code) {
    switch (code) {
        case error_code::malformed:
            return "malformed";
        case error_code::unknown_type:
            return "unknown type";
        case error_code::limit_exceeded:
            return "limit exceeded";
        case error_code::unexpected:
            return "unexpected";
        case error_code::layer_not_held:
            return "layer not held";
        case error_code::expert_not_held:
            return "expert not held";
        case error_code::shape_mismatch:
            return "shape mismatch";
        case error_code::encoding_not_accepted:
            return "encoding not accepted";
        case error_code::activation_not_accepted:
            return "activation not accepted";
        case error_code::busy:
            return "busy";
        case error_code::draining:
            return "draining";
        case error_code::cancelled:
            return "cancelled";
        case error_code::timeout:
            return "timeout";
        case error_code::internal:
            return "internal error";
    }
    return "unknown";
}

std::optional<result_status> result_status_from(std::uint8_t number) {
    if (number == 0) return result_status::exact;
    return std::nullopt;
}

}  // namespace kvasir::wire
