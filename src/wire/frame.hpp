// The frame header's codec. Knows no types and no limits; the reassembler does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bytes.hpp"
#include "base/ids.hpp"
#include "wire/protocol.hpp"

namespace kvasir::wire {

using frame_header_array = std::array<std::byte, frame_header_bytes>;

struct frame_header {
    std::uint8_t version = frame_version;
    std::uint8_t type = 0;  ///< a frame_type, or one of a later protocol
    std::uint16_t flags = 0;
    layer_id layer{};
    request_id request{};
    std::uint64_t payload_bytes = 0;

    bool more_chunks() const { return (flags & flag_more_chunks) != 0; }

    friend bool operator==(const frame_header&, const frame_header&) = default;
};

frame_header_array encode(const frame_header& header);
/// Any 24 bytes decode; whether they make sense is another matter.
frame_header decode_frame_header(std::span<const std::byte, frame_header_bytes> bytes);

}  // namespace kvasir::wire
