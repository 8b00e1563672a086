// The expert part against ggml itself: every (row, expert) result must have the bits that the monolithic graph gives.
#include "expert/expert.hpp"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "expert/weight_types.hpp"

namespace kvasir::expert {
namespace {

using ::testing::HasSubstr;

struct cpu_backend {
    cpu_backend() : handle(nullptr) {
        static const bool loaded = (ggml_backend_load_all(), true);
        handle = loaded ? ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr) : nullptr;
    }
    ~cpu_backend() { ggml_backend_free(handle); }
    ggml_backend_t handle;
};

/// The weights of a small layer, with owned storage.
struct layer_shape {
    std::int64_t n_in = 256;
    std::int64_t n_ff = 256;
    std::int64_t n_out = 256;
    std::int64_t n_experts = 6;
    bool merged = false;
    bool gate = true;
    bool bias = false;
    bool scale = false;
};

class test_layer {
  public:
    test_layer(const layer_shape& shape, ggml_type in_type, ggml_type down_type, std::mt19937& random) : shape_(shape) {
        weights_.n_experts = shape.n_experts;
        if (shape.merged) {
            weights_.gate_up = make(in_type, shape.n_in, 2 * shape.n_ff, random);
        } else {
            weights_.up = make(in_type, shape.n_in, shape.n_ff, random);
            if (shape.gate) weights_.gate = make(in_type, shape.n_in, shape.n_ff, random);
        }
        weights_.down = make(down_type, shape.n_ff, shape.n_out, random);
    }

    const layer_weights& weights() const { return weights_; }

  private:
    expert_tensor make(ggml_type type, std::int64_t n_in, std::int64_t n_out, std::mt19937& random) {
        std::uniform_real_distribution<float> value(-1.0F, 1.0F);
        expert_tensor tensor;
        tensor.type = type;
        tensor.n_in = n_in;
        tensor.n_out = n_out;
        auto& bytes = bytes_.emplace_back(std::make_unique<std::vector<std::byte>>(
            ggml_row_size(type, n_in) * static_cast<std::size_t>(n_out * shape_.n_experts)));
        if (type == GGML_TYPE_F32) {
            for (std::size_t i = 0; i < bytes->size(); i += sizeof(float)) {
                const float v = value(random) / 16.0F;
                std::memcpy(bytes->data() + i, &v, sizeof v);
            }
        } else {
            // Any bytes are weights as long as the scales among them are finite: bit 14 of every 16-bit word is clear.
            for (std::byte& byte : *bytes)
                byte = static_cast<std::byte>(type == GGML_TYPE_MXFP4 ? (random() & 7U) | 0x78U : random() & 0xbfU);
        }
        tensor.weight = bytes->data();
        if (shape_.bias) tensor.bias = floats(n_out * shape_.n_experts, random);
        if (shape_.scale) tensor.scale = floats(shape_.n_experts, random);
        return tensor;
    }

    const float* floats(std::int64_t count, std::mt19937& random) {
        std::uniform_real_distribution<float> value(-2.0F, 2.0F);
        auto& values = floats_.emplace_back(std::make_unique<std::vector<float>>(static_cast<std::size_t>(count)));
        for (float& v : *values)
            v = value(random);
        return values->data();
    }

    layer_shape shape_;
    layer_weights weights_;
    std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;
    std::vector<std::unique_ptr<std::vector<float>>> floats_;
};

/// The layer as llama.cpp builds it, over [n, n_used, n_tokens].
class monolithic_graph {
  public:
    monolithic_graph(const layer_weights& weights, const activation& act, std::int64_t n_used, std::int64_t n_tokens)
        : context_(ggml_init({1 << 20, nullptr, true})), weights_(weights) {
        x_ = ggml_new_tensor_3d(context_, GGML_TYPE_F32, weights.n_in(), 1, n_tokens);
        ids_ = ggml_new_tensor_2d(context_, GGML_TYPE_I32, n_used, n_tokens);
        ggml_tensor* gate = nullptr;
        ggml_tensor* up = nullptr;
        if (weights.gate_up) {
            ggml_tensor* both = project(weights.gate_up, x_);
            const std::int64_t n_ff = both->ne[0] / 2;
            gate = ggml_view_3d(context_, both, n_ff, both->ne[1], both->ne[2], both->nb[1], both->nb[2], 0);
            up = ggml_view_3d(context_, both, n_ff, both->ne[1], both->ne[2], both->nb[1], both->nb[2],
                              static_cast<std::size_t>(n_ff) * both->nb[0]);
        } else {
            up = project(weights.up, x_);
            if (weights.gate) gate = project(weights.gate, x_);
        }
        result_ = project(weights.down, activate(act, gate, up));
        ggml_set_output(result_);
        graph_ = ggml_new_graph(context_);
        ggml_build_forward_expand(graph_, result_);
    }
    ~monolithic_graph() { ggml_free(context_); }
    monolithic_graph(const monolithic_graph&) = delete;
    monolithic_graph& operator=(const monolithic_graph&) = delete;

    std::vector<float> compute(ggml_backend_t backend, std::vector<float>& x, std::vector<std::int32_t>& ids) {
        x_->data = x.data();
        ids_->data = ids.data();
        ggml_gallocr_t allocator = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend));
        EXPECT_TRUE(ggml_gallocr_alloc_graph(allocator, graph_));
        EXPECT_EQ(ggml_backend_graph_compute(backend, graph_), GGML_STATUS_SUCCESS);
        const auto* values = static_cast<const float*>(result_->data);
        std::vector<float> out(values, values + ggml_nelements(result_));
        ggml_gallocr_free(allocator);
        return out;
    }

  private:
    ggml_tensor* project(const expert_tensor& tensor, ggml_tensor* input) {
        ggml_tensor* w = ggml_new_tensor_3d(context_, static_cast<ggml_type>(tensor.type), tensor.n_in, tensor.n_out,
                                            weights_.n_experts);
        w->data = const_cast<std::byte*>(tensor.weight);
        ggml_tensor* output = ggml_mul_mat_id(context_, w, input, ids_);
        if (tensor.scale != nullptr) {
            ggml_tensor* s = ggml_new_tensor_1d(context_, GGML_TYPE_F32, weights_.n_experts);
            s->data = const_cast<float*>(tensor.scale);
            s = ggml_reshape_3d(context_, s, 1, weights_.n_experts, 1);
            s = ggml_repeat_4d(context_, s, 1, weights_.n_experts, ids_->ne[1], 1);
            output = ggml_mul(context_, output, ggml_get_rows(context_, s, ids_));
        }
        if (tensor.bias != nullptr) {
            ggml_tensor* b = ggml_new_tensor_2d(context_, GGML_TYPE_F32, tensor.n_out, weights_.n_experts);
            b->data = const_cast<float*>(tensor.bias);
            output = ggml_add_id(context_, output, b, ids_);
        }
        return output;
    }

    ggml_tensor* activate(const activation& act, ggml_tensor* gate, ggml_tensor* up) {
        switch (act.kind) {
            case activation_kind::silu:
                return ggml_silu(context_, up);
            case activation_kind::gelu:
                return ggml_gelu(context_, up);
            case activation_kind::relu:
                return ggml_relu(context_, up);
            case activation_kind::relu_squared:
                return ggml_sqr(context_, ggml_relu(context_, up));
            case activation_kind::swiglu:
                return ggml_swiglu_split(context_, gate, up);
            case activation_kind::geglu:
                return ggml_geglu_split(context_, gate, up);
            case activation_kind::reglu:
                return ggml_reglu_split(context_, gate, up);
            case activation_kind::swiglu_clamped:
                return ggml_swiglu_clamp(context_, gate, up, act.p0);
            case activation_kind::swiglu_oai:
                return ggml_swiglu_oai(context_, gate, up, act.p0, act.p1);
            case activation_kind::swiglu_limited:
                return ggml_mul(context_, ggml_clamp(context_, ggml_silu(context_, gate), -INFINITY, act.p0),
                                ggml_clamp(context_, up, -act.p0, act.p0));
            case activation_kind::situ: {
                ggml_tensor* bounded =
                    ggml_scale(context_, ggml_tanh(context_, ggml_scale(context_, gate, 1.0F / act.p0)), act.p0);
                bounded = ggml_mul(context_, bounded, ggml_sigmoid(context_, gate));
                if (act.p1 > 0.0F)
                    up = ggml_scale(context_, ggml_tanh(context_, ggml_scale(context_, up, 1.0F / act.p1)), act.p1);
                return ggml_mul(context_, bounded, up);
            }
        }
        return nullptr;
    }

    ggml_context* context_;
    const layer_weights& weights_;
    ggml_tensor* x_;
    ggml_tensor* ids_;
    ggml_tensor* result_;
    ggml_cgraph* graph_;
};

struct routed_batch {
    std::int64_t n_used;
    std::int64_t n_tokens;
    std::vector<float> x;
    std::vector<std::int32_t> ids;

    routed_batch(std::int64_t n_in, std::int64_t n_experts, std::int64_t used, std::int64_t tokens,
                 std::mt19937& random)
        : n_used(used), n_tokens(tokens) {
        std::uniform_real_distribution<float> value(-1.0F, 1.0F);
        x.resize(static_cast<std::size_t>(n_in * tokens));
        for (float& v : x)
            v = value(random);
        ids.resize(static_cast<std::size_t>(used * tokens));
        // Repeats within a row are wanted; the last expert is left to nobody.
        for (std::int32_t& id : ids)
            id = static_cast<std::int32_t>(random() %
                                           static_cast<std::uint64_t>(std::max<std::int64_t>(1, n_experts - 1)));
    }

    std::vector<row_expert_pair> pairs() const {
        std::vector<row_expert_pair> all;
        for (std::size_t i = 0; i < ids.size(); ++i)
            all.push_back(
                {static_cast<std::uint32_t>(i / static_cast<std::size_t>(n_used)), static_cast<std::uint32_t>(ids[i])});
        return all;
    }
};

struct encoded_rows {
    std::vector<std::byte> bytes;
    row_batch batch;

    encoded_rows(row_encoding encoding, const routed_batch& routed, std::int64_t n_in) {
        const auto row_bytes = *row_size_bytes(encoding, static_cast<std::uint32_t>(n_in));
        bytes.resize(row_bytes * static_cast<std::size_t>(routed.n_tokens));
        EXPECT_TRUE(encode_rows(encoding, reinterpret_cast<const std::byte*>(routed.x.data()),
                                static_cast<std::size_t>(n_in) * sizeof(float), n_in,
                                static_cast<std::size_t>(routed.n_tokens), bytes));
        batch = {encoding, n_in, static_cast<std::size_t>(routed.n_tokens), bytes};
    }
};

::testing::AssertionResult same_bits(std::span<const float> left, std::span<const float> right) {
    if (left.size() != right.size())
        return ::testing::AssertionFailure() << left.size() << " values against " << right.size();
    std::size_t differing = 0;
    for (std::size_t i = 0; i < left.size(); ++i)
        if (std::bit_cast<std::uint32_t>(left[i]) != std::bit_cast<std::uint32_t>(right[i])) ++differing;
    if (differing == 0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << differing << " of " << left.size() << " values differ";
}

class expert_engine : public ::testing::Test {
  protected:
    cpu_backend backend_;
    std::mt19937 random_{20240611};

    void expect_exact(const test_layer& layer, const activation& act, std::int64_t n_used, std::int64_t n_tokens,
                      engine& cpu) {
        const layer_weights& weights = layer.weights();
        routed_batch routed(weights.n_in(), weights.n_experts, n_used, n_tokens, random_);
        monolithic_graph graph(weights, act, n_used, n_tokens);
        const std::vector<float> expected = graph.compute(backend_.handle, routed.x, routed.ids);

        const encoded_rows rows(lossless_encoding(weights), routed, weights.n_in());
        const auto pairs = routed.pairs();
        std::vector<float> actual(expected.size());
        const auto computed = cpu.compute(weights, act, rows.batch, pairs, actual);
        ASSERT_TRUE(computed) << computed.error().message;
        EXPECT_TRUE(same_bits(actual, expected));
        if (batch_sensitive(weights)) return;

        // Any split of the pairs over calls gives the same bits.
        std::vector<float> split(expected.size());
        const auto n_out = static_cast<std::size_t>(weights.n_out());
        for (std::size_t begin = 0; begin < pairs.size();) {
            const std::size_t count = std::min<std::size_t>(pairs.size() - begin, 1 + random_() % 7);
            ASSERT_TRUE(cpu.compute(weights, act, rows.batch, std::span(pairs).subspan(begin, count),
                                    std::span(split).subspan(begin * n_out, count * n_out)));
            begin += count;
        }
        EXPECT_TRUE(same_bits(split, expected)) << "split over calls";
    }
};

TEST_F(expert_engine, computes_the_bits_of_the_monolithic_graph_for_every_weight_type) {
    engine cpu(2);
    for (const weight_type_traits& traits : weight_types()) {
        const auto type = static_cast<ggml_type>(traits.type);
        SCOPED_TRACE(ggml_type_name(type));
        const test_layer layer({}, type, type, random_);
        for (const std::int64_t n_tokens : {1, 3, 40})
            expect_exact(layer, {activation_kind::swiglu, 0, 0}, 4, n_tokens, cpu);
    }
}

TEST_F(expert_engine, computes_mixed_types_as_quantisers_choose_them) {
    engine cpu(2);
    for (const auto& [in_type, down_type] : std::map<ggml_type, ggml_type>{
             {GGML_TYPE_Q4_K, GGML_TYPE_Q6_K}, {GGML_TYPE_Q2_K, GGML_TYPE_IQ4_NL}, {GGML_TYPE_IQ3_S, GGML_TYPE_Q4_K}}) {
        SCOPED_TRACE(ggml_type_name(in_type));
        const test_layer layer({}, in_type, down_type, random_);
        expect_exact(layer, {activation_kind::swiglu, 0, 0}, 4, 33, cpu);
    }
}

TEST_F(expert_engine, knows_where_each_expert_lies) {
    std::mt19937 random(5);
    for (const bool merged : {false, true}) {
        const test_layer layer({.merged = merged}, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, random);
        const layer_weights& weights = layer.weights();
        const auto first = slabs_of(weights, 0);
        const auto last = slabs_of(weights, weights.n_experts - 1);
        ASSERT_EQ(first.size(), merged ? 2U : 3U);
        // 256 values of Q4_K take 144 bytes, of Q6_K 210.
        EXPECT_EQ(first.front().size(), 144U * 256 * (merged ? 2 : 1));
        EXPECT_EQ(first.back().size(), 210U * 256);
        EXPECT_EQ(first.back().data(), weights.down.weight);
        for (std::size_t i = 0; i < first.size(); ++i)
            EXPECT_EQ(last[i].data(),
                      first[i].data() + first[i].size() * static_cast<std::size_t>(weights.n_experts - 1));
    }
}

TEST_F(expert_engine, computes_every_shape_and_activation) {
    engine cpu(2);
    const std::vector<activation> with_gate = {
        {activation_kind::swiglu, 0, 0},         {activation_kind::geglu, 0, 0},
        {activation_kind::reglu, 0, 0},          {activation_kind::swiglu_clamped, 0.75F, 0},
        {activation_kind::swiglu_limited, 2, 0}, {activation_kind::swiglu_oai, 1.702F, 7},
        {activation_kind::situ, 1.5F, 0.5F},     {activation_kind::situ, 1.5F, 0},
    };
    const std::vector<activation> without_gate = {
        {activation_kind::silu, 0, 0},
        {activation_kind::gelu, 0, 0},
        {activation_kind::relu, 0, 0},
        {activation_kind::relu_squared, 0, 0},
    };
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K}) {
        for (const bool companions : {false, true}) {
            for (const activation& act : with_gate) {
                SCOPED_TRACE(std::string(name_of(act.kind)) + " " + ggml_type_name(type));
                expect_exact(test_layer({.bias = companions, .scale = companions}, type, type, random_), act, 3, 9,
                             cpu);
                // llama.cpp builds these two from separate tensors only; ggml aborts on views of a merged one.
                if (act.kind == activation_kind::situ || act.kind == activation_kind::swiglu_limited) continue;
                expect_exact(test_layer({.n_in = 512, .merged = true, .bias = companions, .scale = companions}, type,
                                        type, random_),
                             act, 3, 9, cpu);
            }
            for (const activation& act : without_gate) {
                SCOPED_TRACE(std::string(name_of(act.kind)) + " " + ggml_type_name(type));
                expect_exact(test_layer({.n_out = 512, .gate = false, .bias = companions, .scale = companions}, type,
                                        type, random_),
                             act, 3, 9, cpu);
            }
        }
    }
}

TEST_F(expert_engine, computes_odd_widths_and_one_expert) {
    engine cpu(2);
    for (const std::int64_t width : {1, 7, 33, 100})
        expect_exact(test_layer({.n_in = width, .n_ff = width + 2, .n_out = width, .n_experts = 1}, GGML_TYPE_F32,
                                GGML_TYPE_F16, random_),
                     {activation_kind::swiglu, 0, 0}, 2, 5, cpu);
}

TEST_F(expert_engine, cuts_large_calls_without_changing_bits) {
    engine cpu(2);
    for (const ggml_type type : {GGML_TYPE_Q4_K, GGML_TYPE_IQ3_XXS})
        expect_exact(test_layer({.n_experts = 3}, type, type, random_), {activation_kind::swiglu, 0, 0}, 4, 1500, cpu);
}

TEST_F(expert_engine, gives_the_same_bits_with_any_number_of_threads) {
    const test_layer layer({}, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, random_);
    for (const int n_threads : {1, 2, 3, 5}) {
        engine cpu(n_threads);
        expect_exact(layer, {activation_kind::swiglu, 0, 0}, 4, 50, cpu);
    }
}

TEST_F(expert_engine, takes_an_empty_call) {
    engine cpu(1);
    const test_layer layer({}, GGML_TYPE_F32, GGML_TYPE_F32, random_);
    EXPECT_TRUE(cpu.compute(layer.weights(), {activation_kind::swiglu, 0, 0}, {row_encoding::f32, 256, 0, {}}, {}, {}));
}

TEST_F(expert_engine, refuses_what_does_not_fit_with_a_sentence) {
    engine cpu(1);
    const test_layer layer({}, GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, random_);
    const std::vector<float> x(256, 0.5F);
    const row_batch rows{row_encoding::f32, 256, 1, std::as_bytes(std::span(x))};
    const activation swiglu{activation_kind::swiglu, 0, 0};
    std::vector<float> out(256);
    const auto refusal = [&](const layer_weights& weights, const activation& act, const row_batch& batch,
                             const row_expert_pair& pair) {
        const auto computed = cpu.compute(weights, act, batch, std::span(&pair, 1), out);
        return computed ? std::string("accepted") : computed.error().message;
    };
    EXPECT_THAT(refusal(layer.weights(), swiglu, rows, {1, 0}), HasSubstr("row 1 of a batch of 1"));
    EXPECT_THAT(refusal(layer.weights(), swiglu, rows, {0, 6}), HasSubstr("expert 6 of 6"));
    EXPECT_THAT(refusal(layer.weights(), {activation_kind::relu, 0, 0}, rows, {0, 0}), HasSubstr("takes no a gate"));
    const test_layer merged({.merged = true}, GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, random_);
    EXPECT_THAT(refusal(merged.weights(), {activation_kind::situ, 1, 0}, rows, {0, 0}), HasSubstr("merged"));
    EXPECT_THAT(refusal(layer.weights(), {activation_kind::situ, 0, 0}, rows, {0, 0}), HasSubstr("positive"));
    EXPECT_THAT(refusal(layer.weights(), {activation_kind::swiglu_oai, NAN, 1}, rows, {0, 0}), HasSubstr("finite"));
    row_batch short_rows = rows;
    short_rows.bytes = short_rows.bytes.first(100);
    EXPECT_THAT(refusal(layer.weights(), swiglu, short_rows, {0, 0}), HasSubstr("100 bytes"));
    row_batch lossy = rows;
    lossy.encoding = row_encoding::q8_k;
    lossy.bytes = lossy.bytes.first(292);
    EXPECT_THAT(refusal(layer.weights(), swiglu, lossy, {0, 0}), HasSubstr("would change the result"));
    layer_weights broken = layer.weights();
    broken.down.n_in = 512;
    EXPECT_THAT(refusal(broken, swiglu, rows, {0, 0}), HasSubstr("do not fit"));
    broken = layer.weights();
    broken.up.type = GGML_TYPE_Q8_K;
    EXPECT_THAT(refusal(broken, swiglu, rows, {0, 0}), HasSubstr("cannot multiply"));
    broken = layer.weights();
    broken.up.type = 4711;
    EXPECT_THAT(refusal(broken, swiglu, rows, {0, 0}), HasSubstr("cannot multiply"));
}

TEST(expert_rows, are_sent_as_q8_k_only_where_that_is_proven) {
    std::mt19937 random(1);
    EXPECT_EQ(lossless_encoding(test_layer({}, GGML_TYPE_Q4_K, GGML_TYPE_Q8_0, random).weights()), row_encoding::q8_k);
    EXPECT_EQ(lossless_encoding(test_layer({}, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, random).weights()), row_encoding::f32);
    EXPECT_EQ(lossless_encoding(test_layer({}, GGML_TYPE_IQ4_XS, GGML_TYPE_Q4_K, random).weights()), row_encoding::f32);
}

TEST(numerics, has_a_fingerprint_that_stays) {
    cpu_backend backend;
    const std::string first = numerics_fingerprint();
    EXPECT_EQ(first, numerics_fingerprint());
    EXPECT_THAT(first, HasSubstr("ggml 0."));
    EXPECT_THAT(first, HasSubstr("probe "));
}

}  // namespace
}  // namespace kvasir::expert
