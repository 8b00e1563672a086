#include "wire/messages.hpp"

#include <limits>

#include "wire/text.hpp"

namespace kvasir::wire {
namespace {

constexpr std::uint64_t pair_bytes = 8;

error bad(frame_type type, std::string what) {
    return {errc::invalid_input, std::string(name_of(type)) + " is malformed: " + std::move(what)};
}

std::string counted(std::uint64_t count, std::string_view noun) {
    return std::to_string(count) + " " + std::string(noun);
}

/// What COMPUTE's rows take; empty when the encoding cannot hold such rows. Cannot overflow: rows are at most 4 MiB.
std::optional<std::uint64_t> rows_bytes(row_encoding encoding, std::uint32_t n_rows, std::uint32_t n_values) {
    if (n_values > max_values_per_row) return std::nullopt;
    const auto one = row_size_bytes(encoding, n_values);
    if (!one) return std::nullopt;
    return *one * n_rows;
}

}  // namespace

std::optional<std::uint64_t> result_payload_bytes(std::uint64_t n_pairs, std::uint64_t n_values) {
    constexpr std::uint64_t most = (std::numeric_limits<std::uint64_t>::max() - result_head_bytes) / sizeof(float);
    if (n_values != 0 && n_pairs > most / n_values) return std::nullopt;
    return result_head_bytes + n_pairs * n_values * sizeof(float);
}

std::uint64_t compute_request::payload_bytes() const {
    return compute_head_bytes + rows.bytes.size() + pairs.size() * pair_bytes;
}

result<payload_pieces> encode(const compute_request& message) {
    const auto expected = rows_bytes(message.encoding, message.n_rows, message.n_values);
    if (!expected) {
        return error(errc::invalid_input, "a row in " + std::string(name_of(message.encoding)) + " cannot have " +
                                              counted(message.n_values, "values"));
    }
    if (message.rows.bytes.size() != *expected) {
        return error(errc::invalid_input, counted(message.n_rows, "rows take ") +
                                              counted(*expected, "bytes, given were ") +
                                              std::to_string(message.rows.bytes.size()));
    }
    if (message.pairs.size() > std::numeric_limits<std::uint32_t>::max()) {
        return error(errc::limit_exceeded, "too many pairs for one COMPUTE");
    }
    std::vector<std::byte> head;
    head.reserve(compute_head_bytes);
    byte_writer out(head);
    out.write(static_cast<std::uint8_t>(message.act.kind));
    out.write(static_cast<std::uint8_t>(message.encoding));
    out.write(message.companions);
    out.write_f32(message.act.p0);
    out.write_f32(message.act.p1);
    out.write(message.n_rows);
    out.write(static_cast<std::uint32_t>(message.pairs.size()));
    out.write(message.n_values);

    std::vector<std::byte> tail;
    tail.reserve(message.pairs.size() * pair_bytes);
    byte_writer pairs(tail);
    for (const row_expert_pair& pair : message.pairs) {
        if (pair.row >= message.n_rows) {
            return error(errc::invalid_input,
                         "a pair names row " + std::to_string(pair.row) + " of " + std::to_string(message.n_rows));
        }
        pairs.write(pair.row);
        pairs.write(pair.expert);
    }
    return payload_pieces{shared_bytes::own(std::move(head)), message.rows, shared_bytes::own(std::move(tail))};
}

result<received_compute> decode_compute(layer_id layer, payload_buffer payload) {
    byte_reader in(payload.bytes());
    const auto kind = in.read<std::uint8_t>();
    const auto encoding = in.read<std::uint8_t>();
    const auto companions = in.read<std::uint16_t>();
    const auto p0 = in.read_f32();
    const auto p1 = in.read_f32();
    const auto n_rows = in.read<std::uint32_t>();
    const auto n_pairs = in.read<std::uint32_t>();
    const auto n_values = in.read<std::uint32_t>();
    if (!n_values) return bad(frame_type::compute, "it ends before its rows");
    if ((*companions & ~all_companions) != 0) return bad(frame_type::compute, "a reserved bit is not zero");
    const auto known_kind = activation_kind_from(*kind);
    if (!known_kind) return bad(frame_type::compute, "activation " + std::to_string(*kind) + " does not exist");
    const auto known_encoding = row_encoding_from(*encoding);
    if (!known_encoding)
        return bad(frame_type::compute, "row encoding " + std::to_string(*encoding) + " does not exist");
    const auto expected_rows = rows_bytes(*known_encoding, *n_rows, *n_values);
    if (!expected_rows) {
        return bad(frame_type::compute, "a row in " + std::string(name_of(*known_encoding)) + " cannot have " +
                                            counted(*n_values, "values"));
    }
    const std::uint64_t expected = *expected_rows + *n_pairs * pair_bytes;
    if (in.remaining() != expected) {
        return bad(frame_type::compute, counted(*n_rows, "rows and ") + counted(*n_pairs, "pairs take ") +
                                            counted(expected, "bytes, it has ") + std::to_string(in.remaining()));
    }
    received_compute message{.layer = layer,
                             .act = {*known_kind, *p0, *p1},
                             .companions = *companions,
                             .encoding = *known_encoding,
                             .n_rows = *n_rows,
                             .n_values = *n_values};
    message.rows = *in.take(*expected_rows);
    message.pairs.reserve(*n_pairs);
    for (std::uint32_t i = 0; i < *n_pairs; ++i) {
        const row_expert_pair pair{.row = *in.read<std::uint32_t>(), .expert = *in.read<std::uint32_t>()};
        if (pair.row >= *n_rows) {
            return bad(frame_type::compute, "pair " + std::to_string(i) + " names row " + std::to_string(pair.row) +
                                                " of " + std::to_string(*n_rows));
        }
        message.pairs.push_back(pair);
    }
    message.payload = std::move(payload);
    return message;
}

result<payload_pieces> encode(const compute_result& message) {
    const auto expected = result_payload_bytes(message.n_pairs, message.n_values);
    if (!expected || message.rows.bytes.size() != *expected - result_head_bytes) {
        return error(errc::invalid_input, counted(message.n_pairs, "rows of ") +
                                              counted(message.n_values, "values do not take ") +
                                              counted(message.rows.bytes.size(), "bytes"));
    }
    std::vector<std::byte> head;
    head.reserve(result_head_bytes);
    byte_writer out(head);
    out.write(static_cast<std::uint8_t>(message.status));
    out.write(std::uint8_t{0});
    out.write(message.queue_depth);
    out.write(message.n_pairs);
    out.write(message.n_values);
    out.write(message.compute_time_us);
    out.write(message.queue_time_us);
    out.write(std::uint32_t{0});
    return payload_pieces{shared_bytes::own(std::move(head)), message.rows};
}

result<received_result> decode_result(layer_id layer, payload_buffer payload) {
    byte_reader in(payload.bytes());
    const auto status = in.read<std::uint8_t>();
    const auto reserved_8 = in.read<std::uint8_t>();
    const auto queue_depth = in.read<std::uint16_t>();
    const auto n_pairs = in.read<std::uint32_t>();
    const auto n_values = in.read<std::uint32_t>();
    const auto compute_time_us = in.read<std::uint32_t>();
    const auto queue_time_us = in.read<std::uint32_t>();
    const auto reserved_32 = in.read<std::uint32_t>();
    if (!reserved_32) return bad(frame_type::result, "it ends before its rows");
    if (*reserved_8 != 0 || *reserved_32 != 0) return bad(frame_type::result, "a reserved field is not zero");
    const auto known_status = result_status_from(*status);
    if (!known_status) return bad(frame_type::result, "status " + std::to_string(*status) + " does not exist");
    const auto expected = result_payload_bytes(*n_pairs, *n_values);
    if (!expected || payload.size() != *expected) {
        return bad(frame_type::result, counted(*n_pairs, "rows of ") + counted(*n_values, "values do not take ") +
                                           counted(in.remaining(), "bytes"));
    }
    return received_result{.layer = layer,
                           .status = *known_status,
                           .queue_depth = *queue_depth,
                           .n_pairs = *n_pairs,
                           .n_values = *n_values,
                           .compute_time_us = *compute_time_us,
                           .queue_time_us = *queue_time_us,
                           .payload = std::move(payload)};
}

std::span<const float> received_result::values() const {
    static_assert(result_head_bytes % alignof(float) == 0);
    const byte_span rows = payload.bytes().subspan(result_head_bytes);
    return {reinterpret_cast<const float*>(rows.data()), rows.size() / sizeof(float)};
}

std::vector<std::byte> encode(const error_message& message) {
    std::vector<std::byte> payload;
    payload.reserve(128);
    byte_writer out(payload);
    out.write(static_cast<std::uint16_t>(message.code));
    write_text16(out, message.text, max_text_bytes);
    return payload;
}

result<error_message> decode_error(byte_span payload) {
    byte_reader in(payload);
    const auto code = in.read<std::uint16_t>();
    auto text = code ? read_text16(in, max_text_bytes) : std::nullopt;
    if (!text || in.remaining() != 0) return bad(frame_type::error, "its text is cut off or too long");
    return error_message{.code = error_code_from(*code).value_or(error_code::internal), .text = *std::move(text)};
}

}  // namespace kvasir::wire
