#include "swarm_support.hpp"

#include <ggml-backend.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include <cstring>

namespace kvasir::swarm {

void load_ggml() {
    static const bool loaded = (ggml_backend_load_all(), true);
    ASSERT_TRUE(loaded);
}

test_layer::test_layer(const shape& of, std::mt19937& random) {
    weights_.n_experts = of.n_experts;
    if (of.merged) {
        weights_.gate_up = make(of, of.n_in, 2 * of.n_ff, random);
    } else {
        weights_.gate = make(of, of.n_in, of.n_ff, random);
        weights_.up = make(of, of.n_in, of.n_ff, random);
    }
    weights_.down = make(of, of.n_ff, of.n_out, random);
}

test_layer::test_layer(const test_layer& whole, const wire::held_layer& held) {
    weights_.n_experts = held.n_experts();
    weights_.gate = copy(whole.weights_.gate, held);
    weights_.up = copy(whole.weights_.up, held);
    weights_.gate_up = copy(whole.weights_.gate_up, held);
    weights_.down = copy(whole.weights_.down, held);
}

const float* test_layer::keep(std::vector<float> values) {
    return floats_.emplace_back(std::make_unique<std::vector<float>>(std::move(values)))->data();
}

expert::expert_tensor test_layer::make(const shape& of, std::int64_t n_in, std::int64_t n_out, std::mt19937& random) {
    const auto type = static_cast<ggml_type>(of.type);
    std::uniform_real_distribution<float> value(-1.0F, 1.0F);
    expert::expert_tensor tensor;
    tensor.type = of.type;
    tensor.n_in = n_in;
    tensor.n_out = n_out;
    auto& bytes = *bytes_.emplace_back(std::make_unique<std::vector<std::byte>>(
        ggml_row_size(type, n_in) * static_cast<std::size_t>(n_out * of.n_experts)));
    if (type == GGML_TYPE_F32) {
        for (std::size_t i = 0; i < bytes.size(); i += sizeof(float)) {
            const float v = value(random) / 16.0F;
            std::memcpy(bytes.data() + i, &v, sizeof v);
        }
    } else {
        // Any bytes are weights as long as the 16-bit scales among them are finite: bit 14 is clear everywhere.
        for (std::byte& byte : bytes)
            byte = static_cast<std::byte>(random() & 0xbfU);
    }
    tensor.weight = bytes.data();
    if (of.companions) {
        std::vector<float> bias(static_cast<std::size_t>(n_out * of.n_experts));
        std::vector<float> scale(static_cast<std::size_t>(of.n_experts));
        for (float& v : bias)
            v = value(random);
        for (float& v : scale)
            v = value(random);
        tensor.bias = keep(std::move(bias));
        tensor.scale = keep(std::move(scale));
    }
    return tensor;
}

expert::expert_tensor test_layer::copy(const expert::expert_tensor& from, const wire::held_layer& held) {
    if (!from) return {};
    expert::expert_tensor tensor = from;
    const std::size_t expert_bytes =
        ggml_row_size(static_cast<ggml_type>(from.type), from.n_in) * static_cast<std::size_t>(from.n_out);
    auto& bytes = *bytes_.emplace_back(std::make_unique<std::vector<std::byte>>());
    std::vector<float> bias;
    std::vector<float> scale;
    for (std::uint32_t local = 0; local < held.n_experts(); ++local) {
        const std::uint32_t expert = held.global_of({local})->value;
        bytes.insert(bytes.end(), from.weight + expert * expert_bytes, from.weight + (expert + 1) * expert_bytes);
        if (from.bias != nullptr)
            bias.insert(bias.end(), from.bias + expert * from.n_out, from.bias + (expert + 1) * from.n_out);
        if (from.scale != nullptr) scale.push_back(from.scale[expert]);
    }
    tensor.weight = bytes.data();
    if (from.bias != nullptr) tensor.bias = keep(std::move(bias));
    if (from.scale != nullptr) tensor.scale = keep(std::move(scale));
    return tensor;
}

test_model make_test_model(std::mt19937& random) {
    test_model model;
    model.emplace_back(test_layer::shape{.type = GGML_TYPE_F32}, random);
    model.emplace_back(test_layer::shape{.type = GGML_TYPE_Q4_K, .merged = true, .companions = true}, random);
    model.emplace_back(test_layer::shape{.type = GGML_TYPE_IQ4_XS}, random);
    return model;
}

wire::hello hello_holding(const test_model& model,
                          const std::vector<std::vector<wire::expert_range>>& ranges_of_layer) {
    wire::hello hello;
    hello.role = wire::node_role::worker;
    hello.name = "fake";
    hello.node = wire::node_id::random();
    for (std::uint32_t layer = 0; layer < ranges_of_layer.size(); ++layer) {
        if (ranges_of_layer[layer].empty()) continue;
        const expert::layer_weights& weights = model[layer].weights();
        hello.layers.push_back({.layer = {layer},
                                .n_in = static_cast<std::uint32_t>(weights.n_in()),
                                .n_out = static_cast<std::uint32_t>(weights.n_out()),
                                .encodings = {row_encoding::f32, row_encoding::q8_k},
                                .ranges = ranges_of_layer[layer]});
    }
    return hello;
}

wire::hello hello_holding_all(const test_model& model) {
    std::vector<std::vector<wire::expert_range>> ranges;
    for (const test_layer& layer : model)
        ranges.push_back({{{0}, static_cast<std::uint32_t>(layer.weights().n_experts)}});
    return hello_holding(model, ranges);
}

test_call::test_call(const test_model& model, std::uint32_t layer, std::uint32_t n_rows, std::size_t n_pairs,
                     std::mt19937& random)
    : layer_(model[layer]), layer_number_(layer), n_rows_(n_rows) {
    std::uniform_real_distribution<float> value(-1.0F, 1.0F);
    rows_.resize(n_rows * static_cast<std::size_t>(layer_.weights().n_in()));
    for (float& v : rows_)
        v = value(random);
    const auto n_experts = static_cast<std::uint32_t>(layer_.weights().n_experts);
    for (std::size_t i = 0; i < n_pairs; ++i)
        pairs_.push_back({below(n_rows, random), below(n_experts, random)});
    out_.resize(n_pairs * static_cast<std::size_t>(layer_.weights().n_out()), -1.0F);
    right_.resize(out_.size());
}

layer_call test_call::call() {
    layer_call made;
    made.layer = {layer_number_};
    made.act = {activation_kind::swiglu, 0, 0};
    made.rows = reinterpret_cast<const std::byte*>(rows_.data());
    made.row_stride_bytes = static_cast<std::size_t>(layer_.weights().n_in()) * sizeof(float);
    made.n_rows = n_rows_;
    made.pairs = pairs_;
    made.weights = &layer_.weights();
    made.out = out_;
    return made;
}

void test_call::prepare(expert::engine& engine) {
    const expert::row_batch rows{row_encoding::f32, layer_.weights().n_in(), n_rows_,
                                 std::as_bytes(std::span<const float>(rows_))};
    const auto done = engine.compute(layer_.weights(), {activation_kind::swiglu, 0, 0}, rows, pairs_, right_);
    ASSERT_TRUE(done) << done.error().message;
}

bool test_call::is_right() {
    const bool equal = std::memcmp(out_.data(), right_.data(), out_.size() * sizeof(float)) == 0;
    std::ranges::fill(out_, -1.0F);
    return equal;
}

std::vector<net::endpoint> endpoints_of(std::size_t n_workers) {
    std::vector<net::endpoint> made;
    for (std::size_t port = 0; port < n_workers; ++port)
        made.push_back({"fake", static_cast<std::uint16_t>(port)});
    return made;
}

}  // namespace kvasir::swarm
