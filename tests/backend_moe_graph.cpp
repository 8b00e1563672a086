#include "backend_moe_graph.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace kvasir::backend {

std::string moe_shape::text() const {
    return fmt::format("{}{}{}{}{} {}", name_of(act.kind), merged ? ", merged" : "", biases ? ", biases" : "",
                       scales ? ", scales" : "", weights_first ? ", weights first" : "", ggml_type_name(type));
}

std::vector<moe_shape> all_moe_shapes() {
    const std::vector<activation> activations = {
        {activation_kind::silu, 0, 0},           {activation_kind::gelu, 0, 0},
        {activation_kind::relu, 0, 0},           {activation_kind::relu_squared, 0, 0},
        {activation_kind::swiglu, 0, 0},         {activation_kind::geglu, 0, 0},
        {activation_kind::reglu, 0, 0},          {activation_kind::swiglu_clamped, 0.25F, 0},
        {activation_kind::swiglu_limited, 7, 0}, {activation_kind::swiglu_oai, 1.702F, 7.0F},
        {activation_kind::situ, 1.7F, 0},        {activation_kind::situ, 0.3F, 2.5F}};
    std::vector<moe_shape> shapes;
    for (const activation& act : activations) {
        const bool may_be_merged =
            has_gate(act.kind) && act.kind != activation_kind::swiglu_limited && act.kind != activation_kind::situ;
        for (const bool merged : {false, true}) {
            if (merged && !may_be_merged) continue;
            for (const bool biases : {false, true}) {
                for (const bool scales : {false, true}) {
                    moe_shape shape;
                    shape.act = act;
                    shape.merged = merged;
                    shape.biases = biases;
                    shape.scales = scales && !merged;
                    if (shape.scales == scales) shapes.push_back(shape);
                }
            }
        }
        shapes.push_back(shapes.back());
        shapes.back().weights_first = true;
    }
    return shapes;
}

context_ptr make_context(std::size_t n_tensors) {
    return context_ptr(ggml_init(
        {n_tensors * ggml_tensor_overhead() + 4 * ggml_graph_overhead_custom(n_tensors, false), nullptr, true}));
}

ggml_backend_buffer_type_t cpu_buffers() {
    static const bool loaded = (ggml_backend_load_all(), true);
    if (!loaded) throw std::runtime_error("ggml has no backends");
    return ggml_backend_dev_buffer_type(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
}

void fill_random(ggml_tensor* tensor, float largest, std::mt19937& random) {
    std::vector<std::byte> bytes(ggml_nbytes(tensor));
    if (tensor->type == GGML_TYPE_F32) {
        std::uniform_real_distribution<float> value(-largest, largest);
        for (std::size_t i = 0; i < bytes.size(); i += sizeof(float)) {
            const float v = value(random);
            std::memcpy(bytes.data() + i, &v, sizeof v);
        }
    } else {
        // Weights of any quantised type whose 16-bit scales are finite.
        for (std::byte& byte : bytes)
            byte = static_cast<std::byte>(random() & 0xbfU);
    }
    ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
}

moe_tensor moe_weights::add(const moe_shape& shape, const char* role, std::int64_t n_in, std::int64_t n_out) {
    ggml_context* context = experts_context_.get();
    const std::string prefix = fmt::format("blk.{}.ffn_{}_exps.", shape.layer, role);
    moe_tensor made;
    made.weight = ggml_new_tensor_3d(context, shape.type, n_in, n_out, shape.n_experts);
    ggml_set_name(made.weight, (prefix + "weight").c_str());
    if (shape.biases) {
        made.bias = ggml_new_tensor_2d(context, GGML_TYPE_F32, n_out, shape.n_experts);
        ggml_set_name(made.bias, (prefix + "bias").c_str());
    }
    if (shape.scales) {
        made.scale = ggml_new_tensor_1d(context, GGML_TYPE_F32, shape.n_experts);
        ggml_set_name(made.scale, (prefix + "scale").c_str());
    }
    return made;
}

moe_weights::moe_weights(const moe_shape& shape, ggml_backend_buffer_type_t where, std::mt19937& random) {
    if (shape.merged) {
        gate_up = add(shape, "gate_up", shape.n_embd, 2 * shape.n_ff);
    } else {
        up = add(shape, "up", shape.n_embd, shape.n_ff);
        if (has_gate(shape.act.kind)) gate = add(shape, "gate", shape.n_embd, shape.n_ff);
    }
    down = add(shape, "down", shape.n_ff, shape.n_embd);
    experts_buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(experts_context_.get(), where));
    ggml_backend_buffer_set_usage(experts_buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (ggml_tensor* tensor = ggml_get_first_tensor(experts_context_.get()); tensor != nullptr;
         tensor = ggml_get_next_tensor(experts_context_.get(), tensor))
        fill_random(tensor, 0.5F, random);

    router = ggml_new_tensor_2d(router_context_.get(), GGML_TYPE_F32, shape.n_embd, shape.n_experts);
    ggml_set_name(router, fmt::format("blk.{}.ffn_gate_inp.weight", shape.layer).c_str());
    router_buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(router_context_.get(), cpu_buffers()));
    ggml_backend_buffer_set_usage(router_buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    fill_random(router, 1.0F, random);
}

namespace {

/// As llama.cpp's build_lora_mm_id without adapters, and the bias after it.
ggml_tensor* project(ggml_context* context, const moe_tensor& tensor, ggml_tensor* input, ggml_tensor* ids,
                     ggml_tensor*& product) {
    product = ggml_mul_mat_id(context, tensor.weight, input, ids);
    ggml_tensor* output = product;
    if (tensor.scale != nullptr) {
        const std::int64_t n_experts = tensor.scale->ne[0];
        ggml_tensor* scale = ggml_reshape_3d(context, tensor.scale, 1, n_experts, 1);
        scale = ggml_repeat_4d(context, scale, 1, n_experts, input->ne[2], 1);
        output = ggml_mul(context, output, ggml_get_rows(context, scale, ids));
    }
    if (tensor.bias != nullptr) output = ggml_add_id(context, output, tensor.bias, ids);
    return output;
}

ggml_tensor* bounded(ggml_context* context, ggml_tensor* value, float bound) {
    return ggml_scale(context, ggml_tanh(context, ggml_scale(context, value, 1.0F / bound)), bound);
}

ggml_tensor* activate(ggml_context* context, const activation& act, ggml_tensor* gate, ggml_tensor* up) {
    switch (act.kind) {
        case activation_kind::silu:
            return ggml_silu(context, up);
        case activation_kind::gelu:
            return ggml_gelu(context, up);
        case activation_kind::relu:
            return ggml_relu(context, up);
        case activation_kind::relu_squared:
            return ggml_sqr(context, ggml_relu(context, up));
        case activation_kind::swiglu:
            return ggml_swiglu_split(context, gate, up);
        case activation_kind::geglu:
            return ggml_geglu_split(context, gate, up);
        case activation_kind::reglu:
            return ggml_reglu_split(context, gate, up);
        case activation_kind::swiglu_clamped:
            return ggml_swiglu_clamp(context, gate, up, act.p0);
        case activation_kind::swiglu_oai:
            return ggml_swiglu_oai(context, gate, up, act.p0, act.p1);
        case activation_kind::swiglu_limited: {
            ggml_tensor* clamped_up = ggml_clamp(context, up, -act.p0, act.p0);
            ggml_tensor* clamped_gate = ggml_clamp(context, ggml_silu(context, gate), -INFINITY, act.p0);
            return ggml_mul(context, clamped_gate, clamped_up);
        }
        case activation_kind::situ: {
            ggml_tensor* left = bounded(context, gate, act.p0);
            left = ggml_mul(context, left, ggml_sigmoid(context, gate));
            if (act.p1 > 0.0F) up = bounded(context, up, act.p1);
            return ggml_mul(context, left, up);
        }
    }
    return nullptr;
}

}  // namespace

moe_nodes build_experts(ggml_context* context, const moe_shape& shape, const moe_weights& weights, ggml_tensor* rows,
                        ggml_tensor* ids) {
    moe_nodes nodes;
    if (shape.merged) {
        ggml_tensor* both = project(context, weights.gate_up, rows, ids, nodes.up_product);
        const std::int64_t n_ff = both->ne[0] / 2;
        const auto half = [&](std::int64_t index) {
            return ggml_view_3d(context, both, n_ff, both->ne[1], both->ne[2], both->nb[1], both->nb[2],
                                static_cast<std::size_t>(index * n_ff) * both->nb[0]);
        };
        nodes.gate = half(0);
        nodes.up = half(1);
    } else {
        nodes.up = project(context, weights.up, rows, ids, nodes.up_product);
        if (weights.gate.weight != nullptr) nodes.gate = project(context, weights.gate, rows, ids, nodes.gate_product);
    }
    nodes.hidden = activate(context, shape.act, nodes.gate, nodes.up);
    nodes.result = project(context, weights.down, nodes.hidden, ids, nodes.down_product);
    return nodes;
}

experts_graph::experts_graph(const moe_shape& of, std::mt19937& random)
    : shape(of), weights(of, cpu_buffers(), random) {
    rows = ggml_new_tensor_3d(context(), GGML_TYPE_F32, shape.n_embd, shape.weights_first ? shape.n_used : 1,
                              shape.n_tokens);
    all_ids = ggml_new_tensor_2d(context(), GGML_TYPE_I32, shape.n_experts, shape.n_tokens);
    ids = ggml_view_2d(context(), all_ids, shape.n_used, shape.n_tokens, all_ids->nb[1], 0);
    nodes = build_experts(context(), shape, weights, rows, ids);
    graph = ggml_new_graph(context());
    ggml_build_forward_expand(graph, nodes.result);
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(context(), cpu_buffers()));

    fill_random(rows, 1.0F, random);
    auto* id = static_cast<std::int32_t*>(all_ids->data);
    for (std::int64_t token = 0; token < shape.n_tokens; ++token, id += shape.n_experts) {
        for (std::int32_t expert = 0; expert < shape.n_experts; ++expert)
            id[expert] = expert;
        std::shuffle(id, id + shape.n_experts, random);
    }
}

ggml_tensor* experts_graph::find(ggml_op operation) const {
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i)
        if (ggml_graph_node(graph, i)->op == operation) return ggml_graph_node(graph, i);
    throw std::logic_error(fmt::format("the graph has no {}", ggml_op_name(operation)));
}

ggml_tensor* experts_graph::find(ggml_unary_op operation) const {
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        ggml_tensor* node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_UNARY && ggml_get_unary_op(node) == operation) return node;
    }
    throw std::logic_error(fmt::format("the graph has no {}", ggml_unary_op_name(operation)));
}

moe_layer_nodes build_layer(ggml_context* context, const moe_shape& shape, const moe_weights& weights) {
    moe_layer_nodes nodes;
    nodes.graph = ggml_new_graph(context);
    nodes.input = ggml_new_tensor_2d(context, GGML_TYPE_F32, shape.n_embd, shape.n_tokens);
    ggml_set_input(nodes.input);
    ggml_tensor* normed = ggml_rms_norm(context, nodes.input, 1e-6F);
    ggml_tensor* probabilities = ggml_soft_max(context, ggml_mul_mat(context, weights.router, normed));
    ggml_tensor* selected = ggml_argsort_top_k(context, probabilities, static_cast<int>(shape.n_used));
    probabilities = ggml_reshape_3d(context, probabilities, 1, shape.n_experts, shape.n_tokens);
    ggml_tensor* router_weights = ggml_get_rows(context, probabilities, selected);
    ggml_build_forward_expand(nodes.graph, router_weights);

    ggml_tensor* rows = ggml_reshape_3d(context, normed, shape.n_embd, 1, shape.n_tokens);
    if (shape.weights_first) {
        ggml_tensor* repeated = ggml_repeat_4d(context, rows, shape.n_embd, shape.n_used, shape.n_tokens, 1);
        rows = ggml_mul(context, repeated, router_weights);
        ggml_build_forward_expand(nodes.graph, rows);
    }
    nodes.first_of_experts = ggml_graph_n_nodes(nodes.graph);
    nodes.experts = build_experts(context, shape, weights, rows, selected);
    ggml_build_forward_expand(nodes.graph, nodes.experts.result);
    nodes.end_of_experts = ggml_graph_n_nodes(nodes.graph);

    ggml_tensor* weighted = nodes.experts.result;
    if (!shape.weights_first) weighted = ggml_mul(context, weighted, router_weights);
    ggml_build_forward_expand(nodes.graph, weighted);
    const auto slot = [&](std::int64_t i) {
        return ggml_view_2d(context, weighted, shape.n_embd, shape.n_tokens, weighted->nb[2],
                            static_cast<std::size_t>(i) * weighted->nb[1]);
    };
    nodes.output = slot(0);
    for (std::int64_t i = 1; i < shape.n_used; ++i)
        nodes.output = ggml_add(context, nodes.output, slot(i));
    nodes.output = ggml_add(context, nodes.output, nodes.input);
    ggml_set_output(nodes.output);
    ggml_build_forward_expand(nodes.graph, nodes.output);
    return nodes;
}

}  // namespace kvasir::backend
