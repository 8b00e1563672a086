// The message codecs: any payload is decoded or refused; what is decoded satisfies what the codec promises and survives
// the way through its own bytes. The first byte chooses the message.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "wire/hello.hpp"
#include "wire/messages.hpp"

namespace {

using namespace kvasir;
using namespace kvasir::wire;

void require(bool condition) {
    if (!condition) __builtin_trap();
}

bool same_bytes(const payload_pieces& pieces, byte_span bytes) {
    for (const shared_bytes& piece : pieces) {
        if (piece.bytes.size() > bytes.size()) return false;
        if (!std::equal(piece.bytes.begin(), piece.bytes.end(), bytes.begin())) return false;
        bytes = bytes.subspan(piece.bytes.size());
    }
    return bytes.empty();
}

void try_hello(byte_span bytes) {
    const auto message = decode_hello(bytes);
    if (!message) return require(!message.error().message.empty());
    require(message->layers.size() <= max_layers && message->name.size() <= max_name_bytes);
    for (const held_layer& held : message->layers) {
        require(held.n_experts() > 0 && held.n_experts() <= max_experts_per_layer);
        const local_expert_id last{held.n_experts() - 1};
        require(held.local_of(held.global_of(last).value()) == last);
        require(!held.global_of({held.n_experts()}));
        require(message->find(held.layer) != nullptr);
    }
    const auto again = encode(*message);
    require(again.has_value());
    require(decode_hello(*again).value() == *message);
    static_cast<void>(check_peer(*message, *message, {}));
}

void try_refusal(byte_span bytes) {
    const auto message = decode_refusal(bytes);
    if (!message) return;
    require(decode_refusal(encode(*message)).value() == *message);
    require(message->sentence().find('\n') == std::string::npos);
}

void try_error(byte_span bytes) {
    const auto message = decode_error(bytes);
    if (!message) return;
    require(decode_error(encode(*message)).value() == *message);
    for (const char c : message->text)
        require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

void try_compute(byte_span bytes) {
    const auto message = decode_compute({1}, payload_buffer::copy_of(bytes));
    if (!message) return require(!message.error().message.empty());
    require(message->rows.size() == message->n_rows * row_size_bytes(message->encoding, message->n_values).value());
    for (const row_expert_pair& pair : message->pairs)
        require(pair.row < message->n_rows);
    const compute_request again{.layer = message->layer,
                                .act = message->act,
                                .companions = message->companions,
                                .encoding = message->encoding,
                                .n_rows = message->n_rows,
                                .n_values = message->n_values,
                                .rows = {message->rows, nullptr},
                                .pairs = message->pairs};
    const auto pieces = encode(again);
    require(pieces.has_value());
    // Byte for byte, not-a-number in a parameter included.
    require(same_bytes(*pieces, bytes));
}

void try_result(byte_span bytes) {
    const auto message = decode_result({1}, payload_buffer::copy_of(bytes));
    if (!message) return require(!message.error().message.empty());
    require(message->values().size() == std::size_t{message->n_pairs} * message->n_values);
    const compute_result again{.status = message->status,
                               .queue_depth = message->queue_depth,
                               .n_pairs = message->n_pairs,
                               .n_values = message->n_values,
                               .compute_time_us = message->compute_time_us,
                               .queue_time_us = message->queue_time_us,
                               .rows = {std::as_bytes(message->values()), nullptr}};
    const auto pieces = encode(again);
    require(pieces.has_value());
    require(same_bytes(*pieces, bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const byte_span bytes = std::as_bytes(std::span<const std::uint8_t>(data + 1, size - 1));
    switch (data[0] % 5) {
        case 0:
            try_hello(bytes);
            break;
        case 1:
            try_refusal(bytes);
            break;
        case 2:
            try_error(bytes);
            break;
        case 3:
            try_compute(bytes);
            break;
        default:
            try_result(bytes);
            break;
    }
    return 0;
}
