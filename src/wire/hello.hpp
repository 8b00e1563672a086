// HELLO and REFUSE: who is there, what it holds, and why it is not wanted.
//
// Value types and their codecs. A decoded value satisfies every limit in protocol.hpp and its own invariants.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/error.hpp"
#include "base/expert_call.hpp"
#include "base/ids.hpp"
#include "base/sha256.hpp"
#include "wire/protocol.hpp"

namespace kvasir::wire {

struct node_id {
    std::array<std::byte, 32> bytes{};

    friend constexpr auto operator<=>(const node_id&, const node_id&) = default;
    std::string hex() const;
    /// From the operating system's random generator.
    static node_id random();
};

/// What one receiver accepts; the other side keeps to it.
struct limits {
    std::uint64_t max_message_bytes = default_max_message_bytes;
    std::uint32_t max_chunk_bytes = default_max_chunk_bytes;
    std::uint32_t max_requests_in_flight = default_max_requests_in_flight;

    friend bool operator==(const limits&, const limits&) = default;
};

/// Experts `first … first + count - 1` of a layer, by their index in the whole model.
struct expert_range {
    expert_id first{};
    std::uint32_t count = 0;

    friend bool operator==(const expert_range&, const expert_range&) = default;
};

/// What a worker holds of one layer. Ranges are ascending, apart and not empty. A local expert id is a position in
/// their concatenation.
struct held_layer {
    layer_id layer{};
    std::uint32_t n_in = 0;
    std::uint32_t n_out = 0;
    std::vector<row_encoding> encodings{};  ///< that the worker accepts for this layer; ascending
    std::vector<expert_range> ranges{};

    std::uint32_t n_experts() const;
    std::optional<local_expert_id> local_of(expert_id expert) const;
    std::optional<expert_id> global_of(local_expert_id local) const;
    bool accepts(row_encoding encoding) const;

    friend bool operator==(const held_layer&, const held_layer&) = default;
};

struct hello {
    std::uint16_t major = protocol_major;
    std::uint16_t minor = protocol_minor;
    node_role role = node_role::backbone;
    sha256_digest model{};   ///< the model manifest's digest
    std::string numerics{};  ///< expert::numerics_fingerprint()
    std::string build{};     ///< program and version, for people
    std::string name{};      ///< display name, for people; may be empty
    node_id node{};
    limits accepts{};
    std::vector<held_layer> layers{};  ///< ascending; empty for a backbone

    const held_layer* find(layer_id layer) const;

    friend bool operator==(const hello&, const hello&) = default;
};

struct refusal {
    refusal_code code{};
    std::string field{};
    std::string ours{};    ///< the refusing side's value
    std::string theirs{};  ///< the refused side's value
    std::string remedy{};

    /// One line for a person.
    std::string sentence() const;
    friend bool operator==(const refusal&, const refusal&) = default;
};

/// Fails with errc::limit_exceeded when texts or lists are longer than protocol.hpp allows, errc::invalid_input when
/// ranges are not ascending.
result<std::vector<std::byte>> encode(const hello& message);
/// Errors: errc::unsupported for another major version (whose HELLO may look otherwise), errc::invalid_input.
result<hello> decode_hello(byte_span payload);
/// What stands first in a HELLO of every version; empty when not even that is there.
std::optional<std::uint16_t> hello_major_version(byte_span payload);

/// Texts longer than max_text_bytes are cut.
std::vector<std::byte> encode(const refusal& message);
result<refusal> decode_refusal(byte_span payload);

/// What a side demands of the other's HELLO.
struct peer_policy {
    /// Workers leave this false: whether results must be exact is the backbone's concern.
    bool demand_equal_numerics = true;
};

/// The refusal of a HELLO of another major version, given as text.
refusal refuse_version(const std::string& theirs);

/// The reason to refuse `theirs`, if there is one.
std::optional<refusal> check_peer(const hello& ours, const hello& theirs, const peer_policy& policy);

}  // namespace kvasir::wire
