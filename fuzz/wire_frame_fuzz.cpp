// The reassembler: any bytes are messages or a fault, in whatever pieces they come, and what is held stays bounded.
//
// The first byte seeds how the rest is cut; the same bytes in one piece must give the same messages.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "wire/reassembler.hpp"

namespace {

using namespace kvasir;
using namespace kvasir::wire;

// Small, so that a fuzzer's inputs reach all of them.
constexpr limits small{.max_message_bytes = 300, .max_chunk_bytes = 100, .max_requests_in_flight = 4};

void require(bool condition) {
    if (!condition) __builtin_trap();
}

struct outcome {
    std::vector<std::string> messages;
    std::string fault;

    friend bool operator==(const outcome&, const outcome&) = default;
};

/// False when the stream ended by a fault.
bool pull(reassembler& in, byte_span bytes, outcome& seen) {
    for (;;) {
        auto step = in.next(bytes, {});
        if (std::holds_alternative<reassembler::need_more>(step)) {
            require(bytes.empty());
            return true;
        }
        if (const auto* fault = std::get_if<framing_fault>(&step)) {
            require(!fault->text.empty());
            seen.fault = fault->text;
            return false;
        }
        if (const auto* header = std::get_if<frame_header>(&step)) {
            require(frame_type_from(header->type).has_value());
            require(header->payload_bytes <= max_hello_bytes);
            // Odd request ids above 100 are not wanted.
            if (header->request.value > 100 && header->request.value % 2 == 1) {
                in.discard(error_code::busy);
            } else {
                in.keep();
            }
            continue;
        }
        const auto& message = std::get<raw_message>(step);
        const byte_span payload = message.payload.bytes();
        require(payload.size() <= max_hello_bytes);
        require(!message.discarded || payload.empty());
        seen.messages.push_back(std::to_string(static_cast<int>(message.type)) + "/" +
                                std::to_string(message.layer.value) + "/" + std::to_string(message.request.value) +
                                (message.discarded ? "/discarded/" : "/") +
                                std::string(reinterpret_cast<const char*>(payload.data()), payload.size()));
    }
}

outcome in_one_piece(byte_span bytes) {
    const auto budget = std::make_shared<byte_budget>(1U << 20U);
    outcome seen;
    {
        reassembler in(small, budget);
        pull(in, bytes, seen);
    }
    require(budget->used_bytes() == 0);
    return seen;
}

outcome in_pieces(byte_span bytes, std::uint8_t seed) {
    const auto budget = std::make_shared<byte_budget>(1U << 20U);
    outcome seen;
    reassembler in(small, budget);
    std::uint32_t state = seed;
    while (!bytes.empty()) {
        state = state * 1664525U + 1013904223U;
        byte_span piece = bytes.first(std::min<std::size_t>(bytes.size(), 1 + (state >> 24U) % 40));
        bytes = bytes.subspan(piece.size());
        if (const auto direct = in.direct_buffer(); !direct.empty() && (state & 0x10000U) != 0) {
            const std::size_t count = std::min(direct.size(), piece.size());
            std::memcpy(direct.data(), piece.data(), count);
            in.commit_direct(count, {});
            piece = piece.subspan(count);
        }
        if (!pull(in, piece, seen)) break;
        // Unfinished messages, and the chunk that is arriving.
        require(budget->used_bytes() <= small.max_message_bytes + max_hello_bytes);
    }
    return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const byte_span bytes = std::as_bytes(std::span<const std::uint8_t>(data + 1, size - 1));
    require(in_one_piece(bytes) == in_pieces(bytes, data[0]));
    return 0;
}
