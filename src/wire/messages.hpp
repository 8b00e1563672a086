// COMPUTE, RESULT and ERROR: value types and codecs.
//
// What leaves refers to its rows (shared_bytes) and is written from where they are; what arrives owns its payload and
// points into it: no row is copied between the socket and the engine or the combine. A decoded message satisfies
// everything that can be known without the layer: counts against length, rows of pairs against n_rows, known encodings
// and kinds. Whether the layer and the experts are held is the node's to check.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/error.hpp"
#include "base/expert_call.hpp"
#include "base/ids.hpp"
#include "wire/payload.hpp"
#include "wire/protocol.hpp"

namespace kvasir::wire {

inline constexpr std::size_t compute_head_bytes = 24;
inline constexpr std::size_t result_head_bytes = 24;

/// A payload in pieces, in order.
using payload_pieces = std::vector<shared_bytes>;

/// A COMPUTE to send. `rows` has n_rows * row_size_bytes(encoding, n_values) bytes.
struct compute_request {
    layer_id layer{};
    activation act{};
    std::uint16_t companions = 0;  ///< `companion` bits: the biases and scales to use
    row_encoding encoding = row_encoding::f32;
    std::uint32_t n_rows = 0;
    std::uint32_t n_values = 0;
    shared_bytes rows{};
    std::vector<row_expert_pair> pairs{};  ///< experts are local ids (held_layer::local_of)

    std::uint64_t payload_bytes() const;
};

/// A COMPUTE that arrived. Move-only: `rows` points into `payload`.
struct received_compute {
    layer_id layer{};
    activation act{};
    std::uint16_t companions = 0;  ///< `companion` bits: the biases and scales to use
    row_encoding encoding = row_encoding::f32;
    std::uint32_t n_rows = 0;
    std::uint32_t n_values = 0;
    byte_span rows{};
    std::vector<row_expert_pair> pairs{};
    payload_buffer payload{};
};

/// A RESULT to send. `rows` has n_pairs * n_values f32.
struct compute_result {
    result_status status = result_status::exact;
    std::uint16_t queue_depth = 0;
    std::uint32_t n_pairs = 0;
    std::uint32_t n_values = 0;
    std::uint32_t compute_time_us = 0;
    std::uint32_t queue_time_us = 0;
    shared_bytes rows{};
};

/// A RESULT that arrived. Move-only: it owns its bytes, `values()` points into them.
struct received_result {
    layer_id layer{};
    result_status status = result_status::exact;
    std::uint16_t queue_depth = 0;
    std::uint32_t n_pairs = 0;
    std::uint32_t n_values = 0;  ///< per row
    std::uint32_t compute_time_us = 0;
    std::uint32_t queue_time_us = 0;
    payload_buffer payload{};

    /// n_pairs rows of n_values, in the order of the request's pairs.
    std::span<const float> values() const;
    std::span<const float> row(std::size_t pair) const { return values().subspan(pair * n_values, n_values); }
};

/// An ERROR frame's content.
struct error_message {
    error_code code = error_code::internal;
    std::string text{};

    friend bool operator==(const error_message&, const error_message&) = default;
};

/// Fails with errc::invalid_input when counts and bytes do not fit each other, or pairs name rows that are not there.
result<payload_pieces> encode(const compute_request& message);
result<received_compute> decode_compute(layer_id layer, payload_buffer payload);

result<payload_pieces> encode(const compute_result& message);
result<received_result> decode_result(layer_id layer, payload_buffer payload);

/// A text longer than max_text_bytes is cut; control characters become spaces.
std::vector<std::byte> encode(const error_message& message);
result<error_message> decode_error(byte_span payload);

/// Bytes of a RESULT's payload for this many rows; empty when that overflows 64 bits.
std::optional<std::uint64_t> result_payload_bytes(std::uint64_t n_pairs, std::uint64_t n_values);

}  // namespace kvasir::wire
