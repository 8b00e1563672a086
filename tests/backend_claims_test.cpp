// Which operations of a layer the device takes: those of the experts' part, all of them and no other.
#include "backend/claims.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <functional>

#include "backend_moe_graph.hpp"

namespace kvasir::backend {
namespace {

bool is_expert_tensor(const ggml_tensor* tensor) {
    return std::strstr(ggml_get_name(tensor), "_exps.") != nullptr;
}

bool computes(const ggml_tensor* node) {
    return node->op != GGML_OP_VIEW && node->op != GGML_OP_RESHAPE && node->op != GGML_OP_NONE;
}

TEST(claims, takes_the_experts_part_and_nothing_else) {
    std::mt19937 random(51);
    for (const moe_shape& shape : all_moe_shapes()) {
        SCOPED_TRACE(shape.text());
        const moe_weights weights(shape, cpu_buffers(), random);
        const context_ptr context = make_context();
        const moe_layer_nodes layer = build_layer(context.get(), shape, weights);
        int n_claimed = 0;
        for (int i = 0; i < ggml_graph_n_nodes(layer.graph); ++i) {
            const ggml_tensor* node = ggml_graph_node(layer.graph, i);
            if (!computes(node)) continue;
            const bool is_expert_part = i >= layer.first_of_experts && i < layer.end_of_experts;
            EXPECT_EQ(claims(&is_expert_tensor).accepts(node), is_expert_part) << ggml_op_desc(node) << ", node " << i;
            n_claimed += is_expert_part ? 1 : 0;
        }
        EXPECT_GE(n_claimed, 3);
    }
}

/// Weights that are in another device's memory are somebody else's. (Rows of scales do not show whose they are, and
/// cost next to nothing.)
TEST(claims, takes_nothing_of_weights_elsewhere) {
    std::mt19937 random(54);
    for (const moe_shape& shape : all_moe_shapes()) {
        SCOPED_TRACE(shape.text());
        const experts_graph built(shape, random);
        for (int i = 0; i < ggml_graph_n_nodes(built.graph); ++i) {
            const ggml_tensor* node = ggml_graph_node(built.graph, i);
            if (!computes(node) || node->op == GGML_OP_REPEAT || node->op == GGML_OP_GET_ROWS) continue;
            EXPECT_FALSE(claims([](const ggml_tensor*) { return false; }).accepts(node)) << ggml_op_desc(node);
        }
    }
}

struct other_operation {
    const char* name;
    std::function<ggml_tensor*(ggml_context*, experts_graph&)> make;
};

TEST(claims, leaves_what_only_looks_alike) {
    std::mt19937 random(52);
    const std::vector<other_operation> others = {
        {"the experts' weights in a plain product",
         [](ggml_context* c, experts_graph& g) {
             return ggml_mul_mat(c, g.weights.up.weight, ggml_new_tensor_3d(c, GGML_TYPE_F32, 32, 4, 6));
         }},
        {"an embedding of the experts' weights",
         [](ggml_context* c, experts_graph& g) {
             return ggml_get_rows(c, ggml_view_2d(c, g.weights.up.weight, 32, 48, g.weights.up.weight->nb[1], 0),
                                  ggml_view_1d(c, g.all_ids, 6, 0));
         }},
        {"the router's weights after the experts",
         [](ggml_context* c, experts_graph& g) {
             return ggml_mul(c, g.nodes.result, ggml_new_tensor_3d(c, GGML_TYPE_F32, 1, 3, 4));
         }},
        {"another value on hidden rows",
         [](ggml_context* c, experts_graph& g) {
             return ggml_mul(c, g.nodes.hidden, ggml_new_tensor_3d(c, GGML_TYPE_F32, 48, 3, 4));
         }},
        {"an adapter's product added",
         [](ggml_context* c, experts_graph& g) { return ggml_add(c, g.nodes.up_product, g.nodes.up_product); }},
        {"an activation of the result", [](ggml_context* c, experts_graph& g) { return ggml_silu(c, g.nodes.result); }},
        {"an activation of rows", [](ggml_context* c, experts_graph& g) { return ggml_silu(c, g.rows); }},
        {"the shared expert",
         [](ggml_context* c, experts_graph& g) {
             ggml_tensor* weight = ggml_new_tensor_2d(c, GGML_TYPE_F32, 32, 48);
             ggml_set_name(weight, "blk.5.ffn_up_shexp.weight");
             return ggml_silu(c, ggml_mul_mat(c, weight, g.rows));
         }},
        {"a repeat of something else",
         [](ggml_context* c, experts_graph& g) { return ggml_repeat_4d(c, g.rows, 32, 3, 4, 1); }},
        {"a repeat of a bias",
         [](ggml_context* c, experts_graph& g) { return ggml_repeat_4d(c, g.weights.up.bias, 48, 12, 1, 1); }},
        {"a gated unit of hidden and other rows",
         [](ggml_context* c, experts_graph& g) {
             return ggml_swiglu_split(c, g.nodes.up, ggml_new_tensor_3d(c, GGML_TYPE_F32, 48, 3, 4));
         }},
    };
    moe_shape shape;
    shape.biases = shape.scales = true;
    for (const other_operation& other : others) {
        experts_graph built(shape, random);
        EXPECT_FALSE(claims(&is_expert_tensor).accepts(other.make(built.context(), built))) << other.name;
    }
}

TEST(claims, sees_through_views) {
    std::mt19937 random(53);
    experts_graph built({}, random);
    ggml_tensor* view = ggml_view_1d(built.context(), built.rows, 4, 0);
    ggml_tensor* shaped = ggml_reshape_2d(built.context(), view, 2, 2);
    EXPECT_EQ(behind_views(shaped), built.rows);
    EXPECT_EQ(behind_views(built.nodes.result), built.nodes.result);
    EXPECT_EQ(behind_views(nullptr), nullptr);
    EXPECT_EQ(gathered_scale(nullptr), nullptr);
    EXPECT_EQ(gathered_scale(built.nodes.result), nullptr);
}

}  // namespace
}  // namespace kvasir::backend
