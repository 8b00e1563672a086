// The numerics fingerprint: what this build computes, told by what it computed.
//
// Instruction sets and versions alone do not decide the bits (a compiler flag or an environment variable can), so the
// text ends with a digest of actual results: one small expert per weight type, with pseudo-random weights, on enough
// rows to reach the kernels for batches and on one row alone.
#include <fmt/core.h>
#include <ggml.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/hex.hpp"
#include "base/sha256.hpp"
#include "expert/expert.hpp"
#include "expert/weight_types.hpp"

namespace kvasir::expert {
namespace {

constexpr std::int64_t probe_width = 256;
constexpr std::int64_t probe_rows = 12;
constexpr std::int64_t probe_experts = 2;

/// SplitMix64 (Steele, Lea, Flood 2014): integers only, so every machine draws the same.
class pseudo_random {
  public:
    std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15U;
        std::uint64_t mixed = state_;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
        return mixed ^ (mixed >> 31);
    }
    /// A multiple of 2^-20 in [-1, 1).
    float next_value() {
        return static_cast<float>(static_cast<std::int32_t>(next() >> 43) - (1 << 20)) / static_cast<float>(1 << 20);
    }

  private:
    std::uint64_t state_ = 0;
};

/// Bytes that are valid weights of any type. Whatever 16-bit word of them is read as a scale, bit 14 is clear, so it is
/// finite and below 2. MXFP4's power-of-two scales would span 2^-127 to 2^64, hence the narrower bytes there.
std::byte weight_byte(ggml_type type, std::uint64_t random) {
    if (type == GGML_TYPE_MXFP4) return static_cast<std::byte>((random & 0x07U) | 0x78U);
    return static_cast<std::byte>(random & 0xbfU);
}

std::vector<std::byte> probe_weights(ggml_type type, pseudo_random& random) {
    std::vector<std::byte> bytes(ggml_row_size(type, probe_width) * probe_width * probe_experts);
    if (type == GGML_TYPE_F32) {
        for (std::size_t i = 0; i < bytes.size(); i += sizeof(float)) {
            const float value = random.next_value();
            std::memcpy(bytes.data() + i, &value, sizeof value);
        }
        return bytes;
    }
    for (std::byte& byte : bytes)
        byte = weight_byte(type, random.next());
    return bytes;
}

std::vector<float> probe_input(pseudo_random& random) {
    std::vector<float> rows(static_cast<std::size_t>(probe_rows * probe_width));
    for (float& value : rows)
        value = random.next_value();
    return rows;
}

layer_weights probe_layer(std::int32_t type, const std::vector<std::byte>& weights) {
    expert_tensor tensor;
    tensor.weight = weights.data();
    tensor.type = type;
    tensor.n_in = probe_width;
    tensor.n_out = probe_width;
    layer_weights layer;
    layer.n_experts = probe_experts;
    layer.gate = layer.up = layer.down = tensor;
    return layer;
}

/// All NaNs count as one: their payload bits carry no result.
void hash_values(sha256& hasher, std::span<float> values) {
    for (float& value : values)
        if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
    hasher.update(std::as_bytes(values));
}

void probe_type(engine& cpu, std::int32_t type, pseudo_random& random, sha256& hasher) {
    const std::vector<std::byte> weights = probe_weights(static_cast<ggml_type>(type), random);
    const std::vector<float> input = probe_input(random);
    const row_batch rows{row_encoding::f32, probe_width, static_cast<std::size_t>(probe_rows),
                         std::as_bytes(std::span(input))};
    std::vector<row_expert_pair> pairs;
    for (std::uint32_t row = 0; row < probe_rows; ++row)
        pairs.push_back({row, 0});
    pairs.push_back({0, 1});
    std::vector<float> output(pairs.size() * static_cast<std::size_t>(probe_width));
    const auto computed = cpu.compute(probe_layer(type, weights), {activation_kind::swiglu, 0, 0}, rows, pairs, output);
    if (!computed) {
        hasher.update(computed.error().message);
        return;
    }
    hash_values(hasher, output);
}

constexpr const char* instruction_set() {
#if defined(__x86_64__)
    return "x86-64";
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "other";
#endif
}

}  // namespace

std::string numerics_fingerprint() {
    engine cpu(1);
    pseudo_random random;
    sha256 hasher;
    for (const weight_type_traits& traits : weight_types())
        probe_type(cpu, traits.type, random, hasher);
    const sha256_digest digest = hasher.finish();
    return fmt::format("ggml {} cpu; {}; probe {}", ggml_version(), instruction_set(),
                       to_hex(byte_span(digest.bytes).first(8)));
}

}  // namespace kvasir::expert
