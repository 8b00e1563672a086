#include "wire/frame.hpp"

#include <cstring>

namespace kvasir::wire {
namespace {

template <class T>
void put(frame_header_array& out, std::size_t at, T value) {
    std::memcpy(out.data() + at, &value, sizeof value);
}

template <class T>
T get(std::span<const std::byte, frame_header_bytes> bytes, std::size_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

}  // namespace

frame_header_array encode(const frame_header& header) {
    frame_header_array out;
    put(out, 0, header.version);
    put(out, 1, header.type);
    put(out, 2, header.flags);
    put(out, 4, header.layer.value);
    put(out, 8, header.request.value);
    put(out, 16, header.payload_bytes);
    return out;
}

frame_header decode_frame_header(std::span<const std::byte, frame_header_bytes> bytes) {
    return {.version = get<std::uint8_t>(bytes, 0),
            .type = get<std::uint8_t>(bytes, 1),
            .flags = get<std::uint16_t>(bytes, 2),
            .layer = {get<std::uint32_t>(bytes, 4)},
            .request = {get<std::uint64_t>(bytes, 8)},
            .payload_bytes = get<std::uint64_t>(bytes, 16)};
}

}  // namespace kvasir::wire
