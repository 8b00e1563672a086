#include "wire/hello.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/hex.hpp"
#include "wire/text.hpp"

namespace kvasir::wire {
namespace {

constexpr std::uint16_t tag_name = 1;
/// The encodings a bit mask can name.
constexpr unsigned n_encoding_bits = 32;

error bad_hello(std::string what) {
    return {errc::invalid_input, "HELLO is malformed: " + std::move(what)};
}

template <std::size_t N>
bool read_array(byte_reader& in, std::array<std::byte, N>& out) {
    const auto bytes = in.take(N);
    if (!bytes) return false;
    std::memcpy(out.data(), bytes->data(), N);
    return true;
}

/// Names what breaks the invariant of held_layer, or is empty.
std::string fault_of(const held_layer& held) {
    const std::string where = "layer " + std::to_string(held.layer.value);
    if (held.n_in == 0 || held.n_in > max_values_per_row || held.n_out == 0 || held.n_out > max_values_per_row) {
        return where + " has an impossible row width";
    }
    if (held.ranges.empty()) return where + " holds no experts";
    std::uint64_t next_free = 0;
    for (const expert_range& range : held.ranges) {
        const std::uint64_t first = range.first.value;
        const std::uint64_t end = first + range.count;
        if (range.count == 0) return where + " has an empty expert range";
        if (first < next_free) return where + " has expert ranges that are not ascending and apart";
        if (end > max_experts_per_layer) return where + " has experts beyond " + std::to_string(max_experts_per_layer);
        next_free = end;
    }
    return {};
}

std::uint32_t encoding_bits(const held_layer& held) {
    std::uint32_t bits = 0;
    for (const row_encoding encoding : held.encodings)
        bits |= 1U << static_cast<unsigned>(encoding);
    return bits;
}

result<held_layer> read_layer(byte_reader& in) {
    const auto layer = in.read<std::uint32_t>();
    const auto n_in = in.read<std::uint32_t>();
    const auto n_out = in.read<std::uint32_t>();
    const auto encodings = in.read<std::uint32_t>();
    const auto n_ranges = in.read<std::uint32_t>();
    if (!n_ranges) return bad_hello("it ends inside a layer");
    if (*n_ranges > in.remaining() / 8) return bad_hello("it states more expert ranges than it has");
    held_layer held{.layer = {*layer}, .n_in = *n_in, .n_out = *n_out};
    for (unsigned bit = 0; bit < n_encoding_bits; ++bit) {
        if ((*encodings & (1U << bit)) == 0) continue;
        // An encoding this build does not know is one it will not use.
        if (const auto known = row_encoding_from(static_cast<std::uint8_t>(bit))) held.encodings.push_back(*known);
    }
    held.ranges.reserve(*n_ranges);
    for (std::uint32_t i = 0; i < *n_ranges; ++i) {
        const auto first = in.read<std::uint32_t>();
        const auto count = in.read<std::uint32_t>();
        held.ranges.push_back({.first = {*first}, .count = *count});
    }
    if (std::string fault = fault_of(held); !fault.empty()) return bad_hello(std::move(fault));
    return held;
}

result<void> read_tagged_fields(byte_reader& in, hello& message) {
    while (in.remaining() > 0) {
        const auto tag = in.read<std::uint16_t>();
        const auto length = in.read<std::uint32_t>();
        const auto value = length ? in.take(*length) : std::nullopt;
        if (!tag || !value) return bad_hello("it ends inside a tagged field");
        if (*tag == tag_name) {
            if (value->size() > max_name_bytes) return bad_hello("the name is too long");
            message.name = one_line({reinterpret_cast<const char*>(value->data()), value->size()});
        }
    }
    return {};
}

std::string version_text(const hello& message) {
    return std::to_string(message.major) + "." + std::to_string(message.minor);
}

std::string limits_text(const limits& stated) {
    return std::to_string(stated.max_message_bytes) + " message bytes, " + std::to_string(stated.max_chunk_bytes) +
           " chunk bytes, " + std::to_string(stated.max_requests_in_flight) + " requests";
}

bool workable(const limits& stated) {
    return stated.max_message_bytes >= min_max_message_bytes && stated.max_message_bytes <= max_max_message_bytes &&
           stated.max_chunk_bytes >= min_max_chunk_bytes && stated.max_chunk_bytes <= max_max_chunk_bytes &&
           stated.max_requests_in_flight >= 1 && stated.max_requests_in_flight <= max_max_requests_in_flight;
}

}  // namespace

std::string node_id::hex() const {
    return to_hex(bytes);
}

node_id node_id::random() {
    node_id id;
    std::size_t filled = 0;
    while (filled < id.bytes.size()) {
        const ssize_t got = ::getrandom(id.bytes.data() + filled, id.bytes.size() - filled, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) throw std::runtime_error(system_error("drawing a random node id").message);
        filled += static_cast<std::size_t>(got);
    }
    return id;
}

std::uint32_t held_layer::n_experts() const {
    std::uint32_t sum = 0;
    for (const expert_range& range : ranges)
        sum += range.count;
    return sum;
}

std::optional<local_expert_id> held_layer::local_of(expert_id expert) const {
    std::uint32_t before = 0;
    for (const expert_range& range : ranges) {
        if (expert.value < range.first.value) return std::nullopt;
        if (expert.value - range.first.value < range.count) {
            return local_expert_id{before + (expert.value - range.first.value)};
        }
        before += range.count;
    }
    return std::nullopt;
}

std::optional<expert_id> held_layer::global_of(local_expert_id local) const {
    std::uint32_t before = 0;
    for (const expert_range& range : ranges) {
        if (local.value - before < range.count) return expert_id{range.first.value + (local.value - before)};
        before += range.count;
    }
    return std::nullopt;
}

bool held_layer::accepts(row_encoding encoding) const {
    return std::find(encodings.begin(), encodings.end(), encoding) != encodings.end();
}

const held_layer* hello::find(layer_id layer) const {
    const auto at = std::lower_bound(layers.begin(), layers.end(), layer,
                                     [](const held_layer& held, layer_id id) { return held.layer < id; });
    return at != layers.end() && at->layer == layer ? &*at : nullptr;
}

result<std::vector<std::byte>> encode(const hello& message) {
    if (message.layers.size() > max_layers) {
        return error(errc::limit_exceeded, "a HELLO can name at most " + std::to_string(max_layers) + " layers");
    }
    std::vector<std::byte> payload;
    payload.reserve(4096);
    byte_writer out(payload);
    out.write(message.major);
    out.write(message.minor);
    out.write(static_cast<std::uint8_t>(message.role));
    out.write(std::uint8_t{0});
    out.write(std::uint16_t{0});
    out.write_bytes(message.model.bytes);
    out.write_bytes(message.node.bytes);
    out.write(message.accepts.max_message_bytes);
    out.write(message.accepts.max_chunk_bytes);
    out.write(message.accepts.max_requests_in_flight);
    write_text16(out, message.numerics, max_text_bytes);
    write_text16(out, message.build, max_text_bytes);
    out.write(static_cast<std::uint32_t>(message.layers.size()));
    const held_layer* previous = nullptr;
    for (const held_layer& held : message.layers) {
        std::string fault = fault_of(held);
        if (previous != nullptr && previous->layer >= held.layer) fault = "layers are not ascending";
        if (!fault.empty()) return error(errc::invalid_input, "a HELLO cannot say what is held: " + fault);
        previous = &held;
        out.write(held.layer.value);
        out.write(held.n_in);
        out.write(held.n_out);
        out.write(encoding_bits(held));
        out.write(static_cast<std::uint32_t>(held.ranges.size()));
        for (const expert_range& range : held.ranges) {
            out.write(range.first.value);
            out.write(range.count);
        }
    }
    if (!message.name.empty()) {
        const std::string line = one_line(message.name);
        const std::string_view name = cut_text(line, max_name_bytes);
        out.write(tag_name);
        out.write(static_cast<std::uint32_t>(name.size()));
        out.write_text(name);
    }
    if (payload.size() > max_hello_bytes) {
        return error(errc::limit_exceeded, "what is held takes " + std::to_string(payload.size()) +
                                               " bytes to say, a HELLO has at most " + std::to_string(max_hello_bytes) +
                                               "; hold fewer, longer expert ranges");
    }
    return payload;
}

std::optional<std::uint16_t> hello_major_version(byte_span payload) {
    return byte_reader(payload).read<std::uint16_t>();
}

result<hello> decode_hello(byte_span payload) {
    if (payload.size() > max_hello_bytes) return error(errc::limit_exceeded, "HELLO is longer than it may be");
    byte_reader in(payload);
    hello message;
    const auto major = in.read<std::uint16_t>();
    const auto minor = in.read<std::uint16_t>();
    if (!major || !minor) return bad_hello("it ends before its version");
    message.major = *major;
    message.minor = *minor;
    if (*major != protocol_major) {
        return error(errc::unsupported, "HELLO is of protocol version " + version_text(message) + ", this is " +
                                            std::to_string(protocol_major) + "." + std::to_string(protocol_minor));
    }
    const auto role = in.read<std::uint8_t>();
    const auto reserved_8 = in.read<std::uint8_t>();
    const auto reserved_16 = in.read<std::uint16_t>();
    if (!role || !reserved_8 || !reserved_16) return bad_hello("it ends before its role");
    const auto known_role = node_role_from(*role);
    if (!known_role) return bad_hello("role " + std::to_string(*role) + " does not exist");
    message.role = *known_role;
    if (!read_array(in, message.model.bytes) || !read_array(in, message.node.bytes)) {
        return bad_hello("it ends inside a digest or node id");
    }
    const auto max_message_bytes = in.read<std::uint64_t>();
    const auto max_chunk_bytes = in.read<std::uint32_t>();
    const auto max_requests = in.read<std::uint32_t>();
    if (!max_message_bytes || !max_chunk_bytes || !max_requests) return bad_hello("it ends inside its limits");
    message.accepts = {*max_message_bytes, *max_chunk_bytes, *max_requests};
    auto numerics = read_text16(in, max_text_bytes);
    if (!numerics) return bad_hello("the numerics fingerprint is cut off or too long");
    message.numerics = *std::move(numerics);
    auto build = read_text16(in, max_text_bytes);
    if (!build) return bad_hello("the build id is cut off or too long");
    message.build = *std::move(build);
    const auto n_layers = in.read<std::uint32_t>();
    if (!n_layers) return bad_hello("it ends before its layers");
    if (*n_layers > max_layers) return bad_hello("it names more than " + std::to_string(max_layers) + " layers");
    for (std::uint32_t i = 0; i < *n_layers; ++i) {
        auto held = read_layer(in);
        if (!held) return held.error();
        if (!message.layers.empty() && message.layers.back().layer >= held->layer) {
            return bad_hello("layers are not ascending");
        }
        message.layers.push_back(*std::move(held));
    }
    if (auto read = read_tagged_fields(in, message); !read) return read.error();
    return message;
}

std::string refusal::sentence() const {
    std::string line = "refused because of the " + field;
    if (!ours.empty() || !theirs.empty()) line += ": it has \"" + ours + "\", here is \"" + theirs + "\"";
    if (!remedy.empty()) line += "; " + remedy;
    return line;
}

std::vector<std::byte> encode(const refusal& message) {
    std::vector<std::byte> payload;
    payload.reserve(512);
    byte_writer out(payload);
    out.write(static_cast<std::uint16_t>(message.code));
    write_text16(out, message.field, max_text_bytes);
    write_text16(out, message.ours, max_text_bytes);
    write_text16(out, message.theirs, max_text_bytes);
    write_text16(out, message.remedy, max_text_bytes);
    return payload;
}

result<refusal> decode_refusal(byte_span payload) {
    const error malformed(errc::invalid_input, "REFUSE is malformed: it is cut off or a text in it is too long");
    byte_reader in(payload);
    const auto code = in.read<std::uint16_t>();
    if (!code) return malformed;
    // A reason of a later version is still a refusal; its texts say what it is about.
    refusal message{.code = refusal_code_from(*code).value_or(refusal_code::protocol_version)};
    for (std::string* text : {&message.field, &message.ours, &message.theirs, &message.remedy}) {
        auto read = read_text16(in, max_text_bytes);
        if (!read) return malformed;
        *text = *std::move(read);
    }
    return message;
}

refusal refuse_version(const std::string& theirs) {
    return {.code = refusal_code::protocol_version,
            .field = "protocol version",
            .ours = std::to_string(protocol_major) + "." + std::to_string(protocol_minor),
            .theirs = theirs,
            .remedy = "update the side with the lower version"};
}

std::optional<refusal> check_peer(const hello& ours, const hello& theirs, const peer_policy& policy) {
    if (theirs.major != ours.major) return refuse_version(version_text(theirs));
    if (theirs.role == ours.role) {
        return refusal{.code = refusal_code::role,
                       .field = "role",
                       .ours = std::string(name_of(ours.role)),
                       .theirs = std::string(name_of(theirs.role)),
                       .remedy = "a backbone talks to workers and a worker to backbones; check the address"};
    }
    if (theirs.model != ours.model) {
        return refusal{.code = refusal_code::model,
                       .field = "model digest",
                       .ours = ours.model.hex(),
                       .theirs = theirs.model.hex(),
                       .remedy = "cut the worker's slice from the very model file that the backbone runs"};
    }
    if (policy.demand_equal_numerics && theirs.numerics != ours.numerics) {
        return refusal{.code = refusal_code::numerics,
                       .field = "numerics fingerprint",
                       .ours = ours.numerics,
                       .theirs = theirs.numerics,
                       .remedy = "run the same build at the same instruction-set level, or allow approximate workers"};
    }
    if (!workable(theirs.accepts)) {
        return refusal{.code = refusal_code::limits,
                       .field = "limits",
                       .ours = limits_text(ours.accepts),
                       .theirs = limits_text(theirs.accepts),
                       .remedy = "state limits between the protocol's floors and ceilings"};
    }
    return std::nullopt;
}

}  // namespace kvasir::wire
