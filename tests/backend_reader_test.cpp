// Reading a layer's experts off a graph: every shape that llama.cpp builds is read back with its parameters, and what
// differs from it in any point is not.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "backend/graph_reader.hpp"
#include "backend_moe_graph.hpp"

namespace kvasir::backend {
namespace {

const void* data_of(const ggml_tensor* tensor) {
    return tensor == nullptr ? nullptr : tensor->data;
}

void expect_tensor(const expert::expert_tensor& read, const moe_tensor& built) {
    EXPECT_EQ(read.weight, data_of(built.weight));
    EXPECT_EQ(read.bias, data_of(built.bias));
    EXPECT_EQ(read.scale, data_of(built.scale));
    if (built.weight == nullptr) return;
    EXPECT_EQ(read.type, built.weight->type);
    EXPECT_EQ(read.n_in, built.weight->ne[0]);
    EXPECT_EQ(read.n_out, built.weight->ne[1]);
}

TEST(graph_reader, reads_every_shape_back) {
    std::mt19937 random(41);
    for (const moe_shape& shape : all_moe_shapes()) {
        SCOPED_TRACE(shape.text());
        experts_graph built(shape, random);
        const auto read = read_expert_graph(built.graph);
        ASSERT_TRUE(read);
        EXPECT_EQ(read->layer, layer_id{5});
        EXPECT_EQ(read->act, shape.act) << name_of(read->act.kind) << " " << read->act.p0 << " " << read->act.p1;
        EXPECT_EQ(read->weights.n_experts, shape.n_experts);
        expect_tensor(read->weights.gate, built.weights.gate);
        expect_tensor(read->weights.up, built.weights.up);
        expect_tensor(read->weights.gate_up, built.weights.gate_up);
        expect_tensor(read->weights.down, built.weights.down);
        EXPECT_EQ(read->rows, built.rows);
        EXPECT_EQ(read->ids, built.ids);
        EXPECT_EQ(read->result, built.nodes.result);
        EXPECT_EQ(read->n_used(), shape.n_used);
        EXPECT_EQ(read->n_tokens(), shape.n_tokens);
        EXPECT_EQ(read->n_rows(), shape.n_tokens * (shape.weights_first ? shape.n_used : 1));
        EXPECT_EQ(read->n_pairs(), static_cast<std::size_t>(shape.n_used * shape.n_tokens));
    }
}

struct backend_deleter {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};

/// The reading means what the graph computes: the engine, given what was read, computes the same bits.
TEST(graph_reader, reads_what_the_graph_computes) {
    std::mt19937 random(42);
    cpu_buffers();
    const std::unique_ptr<ggml_backend, backend_deleter> cpu(
        ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    expert::engine engine(1);
    for (moe_shape shape : all_moe_shapes()) {
        if (shape.biases) {
            shape.type = GGML_TYPE_Q4_K;
            shape.n_embd = shape.n_ff = 256;
        }
        SCOPED_TRACE(shape.text());
        experts_graph built(shape, random);
        const auto read = read_expert_graph(built.graph);
        std::vector<row_expert_pair> pairs;
        ASSERT_TRUE(read && read_pairs(*read, pairs));
        ASSERT_EQ(ggml_backend_graph_compute(cpu.get(), built.graph), GGML_STATUS_SUCCESS);
        const auto* computed = static_cast<const float*>(built.nodes.result->data);
        std::vector<float> out(static_cast<std::size_t>(ggml_nelements(built.nodes.result)));
        const expert::row_batch rows{
            row_encoding::f32, shape.n_embd, read->n_rows(),
            byte_span(static_cast<const std::byte*>(built.rows->data), ggml_nbytes(built.rows))};
        const auto done = engine.compute(read->weights, read->act, rows, pairs, out);
        ASSERT_TRUE(done) << done.error().message;
        EXPECT_EQ(std::memcmp(out.data(), computed, out.size() * sizeof(float)), 0);
    }
}

TEST(graph_reader, gives_the_pairs_in_the_order_of_the_result) {
    std::mt19937 random(43);
    for (const bool weights_first : {false, true}) {
        moe_shape shape;
        shape.weights_first = weights_first;
        experts_graph built(shape, random);
        const auto read = read_expert_graph(built.graph);
        ASSERT_TRUE(read);
        std::vector<row_expert_pair> pairs = {{77, 77}};
        ASSERT_TRUE(read_pairs(*read, pairs));
        ASSERT_EQ(pairs.size(), 12U);
        const auto* ids = static_cast<const std::int32_t*>(built.all_ids->data);
        for (std::uint32_t token = 0; token < 4; ++token) {
            for (std::uint32_t slot = 0; slot < 3; ++slot) {
                const row_expert_pair expected{weights_first ? token * 3 + slot : token,
                                               static_cast<std::uint32_t>(ids[token * 6 + slot])};
                EXPECT_EQ(pairs[token * 3 + slot], expected);
            }
        }
    }
}

TEST(graph_reader, refuses_ids_that_are_no_experts) {
    std::mt19937 random(44);
    experts_graph built({}, random);
    const auto read = read_expert_graph(built.graph);
    ASSERT_TRUE(read);
    std::vector<row_expert_pair> pairs;
    auto* ids = static_cast<std::int32_t*>(built.all_ids->data);
    for (const std::int32_t wrong : {-1, 6, 7, INT32_MAX, INT32_MIN}) {
        for (const std::size_t at : {0, 2, 20}) {
            const std::int32_t before = std::exchange(ids[at], wrong);
            EXPECT_FALSE(read_pairs(*read, pairs)) << wrong << " at " << at;
            ids[at] = before;
        }
        // Beyond the ones in use nothing is read.
        const std::int32_t before = std::exchange(ids[3], wrong);
        EXPECT_TRUE(read_pairs(*read, pairs));
        ids[3] = before;
    }
}

// Near misses: each takes a graph that is read, changes one thing, and it must not be read any more.

using change = std::function<void(experts_graph&)>;

struct near_miss {
    const char* name;
    moe_shape shape;
    change make;
};

moe_shape shape_with(activation act, bool merged = false) {
    moe_shape shape;
    shape.act = act;
    shape.merged = merged;
    shape.biases = true;
    shape.scales = !merged;
    return shape;
}
const moe_shape swiglu = shape_with({activation_kind::swiglu, 0, 0});
const moe_shape merged_swiglu = shape_with({activation_kind::swiglu, 0, 0}, true);
const moe_shape limited = shape_with({activation_kind::swiglu_limited, 7, 0});
const moe_shape situ = shape_with({activation_kind::situ, 1.7F, 2.5F});
const moe_shape squared = shape_with({activation_kind::relu_squared, 0, 0});
const moe_shape ungated = shape_with({activation_kind::silu, 0, 0});

void set_float(ggml_tensor* node, std::size_t index, float value) {
    std::memcpy(node->op_params + index, &value, sizeof value);
}

ggml_tensor* other_ids(experts_graph& built) {
    return ggml_view_2d(built.context(), built.all_ids, built.shape.n_used, built.shape.n_tokens, built.all_ids->nb[1],
                        sizeof(std::int32_t));
}

/// The graph anew up to `last`, after `first` if that is given.
void rebuild(experts_graph& built, ggml_tensor* first, ggml_tensor* last) {
    built.graph = ggml_new_graph(built.context());
    if (first != nullptr) ggml_build_forward_expand(built.graph, first);
    ggml_build_forward_expand(built.graph, last);
    for (int i = 0; i < ggml_graph_n_nodes(built.graph); ++i)
        if (ggml_graph_node(built.graph, i)->data == nullptr)
            ggml_graph_node(built.graph, i)->data = built.nodes.result->data;
}

const std::vector<near_miss> near_misses = {
    // Somebody else reads what would never be computed.
    {"the up product is an output", swiglu, [](auto& g) { ggml_set_output(g.nodes.up_product); }},
    {"the hidden rows are an output", swiglu, [](auto& g) { ggml_set_output(g.nodes.hidden); }},
    {"a merged product is an output", merged_swiglu, [](auto& g) { ggml_set_output(g.nodes.up_product); }},
    {"an unscaled result is an output", swiglu, [](auto& g) { ggml_set_output(g.nodes.down_product); }},

    // More or less than the pattern.
    {"one more node at the end", swiglu, [](auto& g) { rebuild(g, nullptr, ggml_sqr(g.context(), g.nodes.result)); }},
    {"one more node at the beginning", swiglu,
     [](auto& g) { rebuild(g, ggml_sqr(g.context(), g.nodes.up), g.nodes.result); }},
    {"an unrelated node", swiglu, [](auto& g) { rebuild(g, ggml_sqr(g.context(), g.rows), g.nodes.result); }},
    {"the router's weights are multiplied too", swiglu,
     [](auto& g) {
         ggml_tensor* weights = ggml_new_tensor_3d(g.context(), GGML_TYPE_F32, 1, 3, 4);
         rebuild(g, nullptr, ggml_mul(g.context(), g.nodes.result, weights));
     }},
    {"the up product was computed elsewhere", swiglu,
     [](auto& g) {
         ggml_cgraph* whole = g.graph;
         g.graph = ggml_new_graph(g.context());
         for (int i = 0; i < ggml_graph_n_nodes(whole); ++i)
             if (ggml_graph_node(whole, i) != g.nodes.up_product)
                 ggml_graph_add_node(g.graph, ggml_graph_node(whole, i));
     }},
    {"it ends before the down product", swiglu, [](auto& g) { rebuild(g, nullptr, g.nodes.hidden); }},
    {"an empty graph", swiglu, [](auto& g) { g.graph = ggml_new_graph(g.context()); }},
    {"only views", swiglu, [](auto& g) { rebuild(g, nullptr, g.ids); }},
    {"two activations", ungated,
     [](auto& g) {
         ggml_tensor* twice = ggml_relu(g.context(), g.nodes.hidden);
         twice->data = g.nodes.hidden->data;
         g.nodes.down_product->src[1] = twice;
         rebuild(g, nullptr, g.nodes.result);
     }},
    {"the bias before the scale", swiglu,
     [](auto& g) {
         ggml_tensor* add = g.nodes.result;  // add_id(mul(product, scale), bias)
         ggml_tensor* multiply = add->src[0];
         add->src[0] = g.nodes.down_product;
         multiply->src[0] = add;
         rebuild(g, nullptr, multiply);
     }},

    // Other ids for one of them.
    {"other ids for up", swiglu, [](auto& g) { g.nodes.up_product->src[2] = other_ids(g); }},
    {"other ids for gate", swiglu, [](auto& g) { g.nodes.gate_product->src[2] = other_ids(g); }},
    {"other ids for down", swiglu, [](auto& g) { g.nodes.down_product->src[2] = other_ids(g); }},
    {"other ids for both halves", merged_swiglu, [](auto& g) { g.nodes.up_product->src[2] = other_ids(g); }},
    {"other ids for a bias", swiglu, [](auto& g) { g.nodes.up->src[2] = other_ids(g); }},
    {"other ids for a scale", swiglu, [](auto& g) { g.nodes.up->src[0]->src[1]->src[1] = other_ids(g); }},

    // Other rows for one of them.
    {"other rows for gate", swiglu,
     [](auto& g) { g.nodes.gate_product->src[1] = ggml_dup_tensor(g.context(), g.rows); }},
    {"gate reads the hidden rows of up", swiglu, [](auto& g) { g.nodes.gate_product->src[1] = g.nodes.up; }},

    // Other weights.
    {"up of another layer", swiglu, [](auto& g) { ggml_set_name(g.weights.up.weight, "blk.6.ffn_up_exps.weight"); }},
    {"down of another layer", swiglu,
     [](auto& g) { ggml_set_name(g.weights.down.weight, "blk.6.ffn_down_exps.weight"); }},
    {"a bias of another layer", swiglu, [](auto& g) { ggml_set_name(g.weights.up.bias, "blk.6.ffn_up_exps.bias"); }},
    {"a scale of another layer", swiglu,
     [](auto& g) { ggml_set_name(g.weights.down.scale, "blk.6.ffn_down_exps.scale"); }},
    {"gate's bias for up", swiglu, [](auto& g) { ggml_set_name(g.weights.up.bias, "blk.5.ffn_gate_exps.bias"); }},
    {"a scale as a bias", swiglu, [](auto& g) { ggml_set_name(g.weights.up.bias, "blk.5.ffn_up_exps.scale"); }},
    {"gate and up exchanged", swiglu, [](auto& g) { std::swap(g.nodes.hidden->src[0], g.nodes.hidden->src[1]); }},
    {"up twice", swiglu, [](auto& g) { ggml_set_name(g.weights.gate.weight, "blk.5.ffn_up_exps.weight"); }},
    {"no down", swiglu, [](auto& g) { ggml_set_name(g.weights.down.weight, "blk.5.ffn_up_exps.weight"); }},
    {"a shared expert", swiglu, [](auto& g) { ggml_set_name(g.weights.up.weight, "blk.5.ffn_up_shexp.weight"); }},
    {"a gate where nothing is gated", ungated,
     [](auto& g) { ggml_set_name(g.weights.up.weight, "blk.5.ffn_gate_exps.weight"); }},
    {"a gate as merged", merged_swiglu,
     [](auto& g) { ggml_set_name(g.weights.gate_up.weight, "blk.5.ffn_gate_exps.weight"); }},
    {"another number of experts", swiglu, [](auto& g) { --g.weights.up.weight->ne[2]; }},
    {"weights with gaps", swiglu, [](auto& g) { g.weights.up.weight->nb[2] *= 2; }},
    {"half-precision biases", swiglu, [](auto& g) { g.weights.up.bias->type = GGML_TYPE_F16; }},
    {"a bias of another width", swiglu, [](auto& g) { --g.weights.up.bias->ne[0]; }},
    {"scales for fewer experts", swiglu, [](auto& g) { --g.weights.down.scale->ne[0]; }},
    {"weights of a type that cannot be multiplied", swiglu, [](auto& g) { g.weights.up.weight->type = GGML_TYPE_I32; }},

    // Other activations.
    {"a swapped gate", swiglu, [](auto& g) { g.nodes.hidden->op_params[1] = 1; }},
    {"a gate within one tensor", swiglu, [](auto& g) { g.nodes.hidden->src[1] = nullptr; }},
    {"another gated unit", swiglu, [](auto& g) { g.nodes.hidden->op_params[0] = GGML_GLU_OP_GEGLU_QUICK; }},
    {"gelu with the error function", swiglu, [](auto& g) { g.nodes.hidden->op_params[0] = GGML_GLU_OP_GEGLU_ERF; }},
    {"another unary operation", ungated, [](auto& g) { g.nodes.hidden->op_params[0] = GGML_UNARY_OP_GELU_QUICK; }},
    {"the square of another operation", squared,
     [](auto& g) { g.nodes.hidden->src[0]->op_params[0] = GGML_UNARY_OP_SILU; }},
    {"a lower limit for up", limited, [](auto& g) { set_float(g.nodes.hidden->src[1], 0, -6.0F); }},
    {"another limit for up", limited, [](auto& g) { set_float(g.nodes.hidden->src[1], 1, 8.0F); }},
    {"another limit for gate", limited, [](auto& g) { set_float(g.nodes.hidden->src[0], 1, 8.0F); }},
    {"a lower limit for gate", limited, [](auto& g) { set_float(g.nodes.hidden->src[0], 0, -7.0F); }},
    {"no upper limit for gate", limited, [](auto& g) { set_float(g.nodes.hidden->src[0], 1, INFINITY); }},
    {"a limit that is no number", limited,
     [](auto& g) {
         set_float(g.nodes.hidden->src[0], 1, NAN);
         set_float(g.nodes.hidden->src[1], 1, NAN);
     }},
    {"a limit below zero", limited,
     [](auto& g) {
         set_float(g.nodes.hidden->src[0], 1, -7.0F);
         set_float(g.nodes.hidden->src[1], 0, 7.0F);
         set_float(g.nodes.hidden->src[1], 1, -7.0F);
     }},
    {"another operation than silu", limited,
     [](auto& g) { g.find(GGML_UNARY_OP_SILU)->op_params[0] = GGML_UNARY_OP_GELU; }},
    {"gate and up exchanged in the product", limited,
     [](auto& g) { std::swap(g.nodes.hidden->src[0], g.nodes.hidden->src[1]); }},
    {"1/beta does not fit", situ, [](auto& g) { set_float(g.find(GGML_OP_SCALE), 0, 0.5F); }},
    {"1/beta differs in the last bit", situ,
     [](auto& g) { set_float(g.find(GGML_OP_SCALE), 0, std::nextafter(1.0F / 1.7F, 1.0F)); }},
    {"a shifted scale", situ, [](auto& g) { set_float(g.find(GGML_OP_SCALE), 1, 0.1F); }},
    {"a shifted outer scale", situ, [](auto& g) { set_float(g.nodes.hidden->src[1], 1, 0.1F); }},
    {"linear 1/beta does not fit", situ, [](auto& g) { set_float(g.nodes.hidden->src[1], 0, 2.25F); }},
    {"another operation than tanh", situ,
     [](auto& g) { g.find(GGML_UNARY_OP_TANH)->op_params[0] = GGML_UNARY_OP_SIGMOID; }},
    {"another operation than sigmoid", situ,
     [](auto& g) { g.find(GGML_UNARY_OP_SIGMOID)->op_params[0] = GGML_UNARY_OP_TANH; }},
    {"the sigmoid of up", situ, [](auto& g) { g.find(GGML_UNARY_OP_SIGMOID)->src[0] = g.nodes.up; }},

    // Other halves.
    {"the halves exchanged", merged_swiglu, [](auto& g) { std::swap(g.nodes.hidden->src[0], g.nodes.hidden->src[1]); }},
    {"the same half twice", merged_swiglu, [](auto& g) { g.nodes.hidden->src[1] = g.nodes.gate; }},
    {"halves that overlap", merged_swiglu, [](auto& g) { g.nodes.up->view_offs -= sizeof(float); }},
    {"halves that skip rows", merged_swiglu, [](auto& g) { g.nodes.up->nb[1] *= 2; }},
    {"merged with a scale", merged_swiglu,
     [](auto& g) {
         // llama.cpp would use the scale of "up" for it.
         ggml_tensor* scale = ggml_new_tensor_1d(g.context(), GGML_TYPE_F32, 6);
         ggml_set_name(scale, "blk.5.ffn_up_exps.scale");
         ggml_tensor* rows = ggml_reshape_3d(g.context(), scale, 1, 6, 1);
         rows = ggml_get_rows(g.context(), ggml_repeat_4d(g.context(), rows, 1, 6, 4, 1), g.ids);
         ggml_tensor* add = g.nodes.gate->src[0];
         add->src[0] = ggml_mul(g.context(), g.nodes.up_product, rows);
         rebuild(g, nullptr, g.nodes.result);
     }},

    // Shapes and memory.
    {"a result with gaps", swiglu, [](auto& g) { g.nodes.result->nb[1] *= 2; }},
    {"rows for some slots only", swiglu, [](auto& g) { g.rows->ne[1] = 2; }},
    {"rows of fewer tokens", swiglu, [](auto& g) { g.rows->ne[2] = 3; }},
    {"rows with gaps between tokens", swiglu, [](auto& g) { g.rows->nb[2] *= 2; }},
    {"rows with gaps between values", swiglu, [](auto& g) { g.rows->nb[0] *= 2; }},
    {"half-precision rows", swiglu, [](auto& g) { g.rows->type = GGML_TYPE_F16; }},
    {"ids of another type", swiglu, [](auto& g) { g.ids->type = GGML_TYPE_F32; }},
    {"ids of three dimensions", swiglu, [](auto& g) { g.ids->ne[2] = 2; }},
    {"a result of another width", swiglu, [](auto& g) { g.nodes.result->ne[0] = 16; }},
    {"rows without memory", swiglu, [](auto& g) { g.rows->data = nullptr; }},
    {"ids without memory", swiglu, [](auto& g) { g.ids->data = nullptr; }},
    {"a result without memory", swiglu, [](auto& g) { g.nodes.result->data = nullptr; }},
    {"weights without memory", swiglu, [](auto& g) { g.weights.up.weight->data = nullptr; }},
};

TEST(graph_reader, refuses_near_misses) {
    std::mt19937 random(45);
    for (const near_miss& miss : near_misses) {
        SCOPED_TRACE(miss.name);
        experts_graph built(miss.shape, random);
        ASSERT_TRUE(read_expert_graph(built.graph)) << "unchanged, it must be read";
        miss.make(built);
        EXPECT_FALSE(read_expert_graph(built.graph));
    }
}

/// What the near misses do besides their point changes nothing.
TEST(graph_reader, reads_a_graph_that_was_built_again) {
    std::mt19937 random(46);
    experts_graph built(swiglu, random);
    rebuild(built, nullptr, built.nodes.result);
    EXPECT_TRUE(read_expert_graph(built.graph));
    rebuild(built, ggml_view_1d(built.context(), built.rows, 8, 0), built.nodes.result);
    EXPECT_TRUE(read_expert_graph(built.graph)) << "a view computes nothing";
    ggml_set_output(built.nodes.result);
    EXPECT_TRUE(read_expert_graph(built.graph)) << "the result is there for others";
}

}  // namespace
}  // namespace kvasir::backend
