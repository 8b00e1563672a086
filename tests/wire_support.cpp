#include "wire_support.hpp"

namespace kvasir::wire {

byte_vector frame(std::uint8_t type, std::uint16_t flags, std::uint32_t layer, std::uint64_t request,
                  byte_span payload) {
    const auto header = encode(frame_header{
        .type = type, .flags = flags, .layer = {layer}, .request = {request}, .payload_bytes = payload.size()});
    byte_vector bytes(header.size() + payload.size());
    std::copy(payload.begin(), payload.end(), std::copy(header.begin(), header.end(), bytes.begin()));
    return bytes;
}

}  // namespace kvasir::wire
