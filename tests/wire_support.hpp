// What the wire tests share: sample values, bytes as hexadecimal text, and two conversations joined by a string.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/hex.hpp"
#include "wire/conversation.hpp"

namespace kvasir::wire {

using byte_vector = std::vector<std::byte>;

/// Hexadecimal digits with any spaces between them.
inline byte_vector from_hex_text(std::string_view text) {
    std::string digits;
    std::copy_if(text.begin(), text.end(), std::back_inserter(digits), [](char c) { return c != ' ' && c != '\n'; });
    byte_vector bytes(digits.size() / 2);
    EXPECT_TRUE(from_hex(digits, bytes)) << text;
    return bytes;
}

inline byte_vector joined(const payload_pieces& pieces) {
    byte_vector all;
    for (const shared_bytes& piece : pieces)
        all.insert(all.end(), piece.bytes.begin(), piece.bytes.end());
    return all;
}

inline byte_vector random_bytes(std::size_t count, std::mt19937_64& random) {
    byte_vector bytes(count);
    for (std::byte& byte : bytes)
        byte = static_cast<std::byte>(random());
    return bytes;
}

/// Everything there is to write, taken.
inline byte_vector drain(chunker& out) {
    byte_vector all;
    for (;;) {
        std::vector<byte_span> spans;
        out.gather(spans, 64 * 1024, 16);
        if (spans.empty()) return all;
        std::size_t count = 0;
        for (const byte_span span : spans) {
            all.insert(all.end(), span.begin(), span.end());
            count += span.size();
        }
        out.consume(count);
    }
}

byte_vector frame(std::uint8_t type, std::uint16_t flags, std::uint32_t layer, std::uint64_t request,
                  byte_span payload);

inline byte_vector frame(frame_type type, std::uint64_t request, byte_span payload, std::uint32_t layer = 0,
                         std::uint16_t flags = 0) {
    return frame(static_cast<std::uint8_t>(type), flags, layer, request, payload);
}

inline hello backbone_hello() {
    hello made;
    made.role = node_role::backbone;
    made.model.bytes.fill(std::byte{0x11});
    made.numerics = "kernels 1; x86-64; probe 0123456789abcdef";
    made.build = "test 1.0";
    made.node.bytes.fill(std::byte{0x22});
    return made;
}

/// Holds experts 4, 5, 6 and 9 of layer 3 (8 values in, 4 out) and expert 0 of layer 7 (256 in, 256 out).
inline hello worker_hello() {
    hello made = backbone_hello();
    made.role = node_role::worker;
    made.node.bytes.fill(std::byte{0x33});
    made.layers = {{.layer = {3},
                    .n_in = 8,
                    .n_out = 4,
                    .encodings = {row_encoding::f32},
                    .ranges = {{.first = {4}, .count = 3}, {.first = {9}, .count = 1}}},
                   {.layer = {7},
                    .n_in = 256,
                    .n_out = 256,
                    .encodings = {row_encoding::f32, row_encoding::q8_k},
                    .ranges = {{.first = {0}, .count = 1}}}};
    return made;
}

/// `n_rows` rows for layer 3, one pair each for local expert 1.
inline compute_request small_request(std::uint32_t n_rows = 1) {
    compute_request request;
    request.layer = {3};
    request.n_rows = n_rows;
    request.n_values = 8;
    std::vector<float> rows(std::size_t{n_rows} * 8);
    for (std::size_t i = 0; i < rows.size(); ++i)
        rows[i] = static_cast<float>(i);
    request.rows = shared_bytes::own(std::move(rows));
    for (std::uint32_t row = 0; row < n_rows; ++row)
        request.pairs.push_back({row, 1});
    return request;
}

inline compute_result result_for(const received_compute& request, std::uint32_t n_out) {
    std::vector<float> rows(request.pairs.size() * n_out, 1.5F);
    compute_result result;
    result.n_pairs = static_cast<std::uint32_t>(request.pairs.size());
    result.n_values = n_out;
    result.rows = shared_bytes::own(std::move(rows));
    return result;
}

/// One side with the events it had.
struct side {
    side(hello ours, conversation_options options, time_point now) : talk(std::move(ours), std::move(options), now) {}

    conversation talk;
    std::vector<conversation_event> events;

    void collect() {
        for (auto& event : talk.take_events())
            events.push_back(std::move(event));
    }
    template <class Event>
    std::size_t count() const {
        return static_cast<std::size_t>(
            std::count_if(events.begin(), events.end(),
                          [](const conversation_event& event) { return std::holds_alternative<Event>(event); }));
    }
    template <class Event>
    Event* last() {
        for (auto at = events.rbegin(); at != events.rend(); ++at)
            if (auto* found = std::get_if<Event>(&*at)) return found;
        return nullptr;
    }
};

/// A backbone and a worker; bytes travel when told to.
struct talking_pair {
    explicit talking_pair(conversation_options options = {}, hello backbone_says = backbone_hello(),
                          hello worker_says = worker_hello())
        : backbone(std::move(backbone_says), options, clock.now()),
          worker(std::move(worker_says), options, clock.now()) {}

    manual_clock_source clock;
    side backbone;
    side worker;

    static void carry(side& from, side& to, time_point now) {
        const byte_vector bytes = drain(from.talk.output());
        to.talk.receive(bytes, now);
        to.collect();
        from.collect();
    }
    /// Until nobody has anything more to say.
    void settle() {
        for (int round = 0; round < 100; ++round) {
            carry(backbone, worker, clock.now());
            carry(worker, backbone, clock.now());
            if (backbone.talk.output().pending_bytes() == 0 && worker.talk.output().pending_bytes() == 0) return;
        }
        FAIL() << "the two do not come to rest";
    }
};

}  // namespace kvasir::wire
