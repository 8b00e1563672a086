#include "expert/ffn_graph.hpp"

#include <limits>

namespace kvasir::expert {
namespace {

constexpr std::size_t max_nodes = 64;

class builder {
  public:
    builder(ggml_context* context, std::int64_t first_expert, std::int64_t n_experts, ggml_tensor* ids,
            std::int64_t n_pairs)
        : context_(context), first_expert_(first_expert), n_experts_(n_experts), ids_(ids), n_pairs_(n_pairs) {}

    /// W[e] x, times the scale, plus the bias: in this order, as llama.cpp does.
    ggml_tensor* project(const expert_tensor& tensor, ggml_tensor* input, ggml_tensor** scale) {
        ggml_tensor* output = ggml_mul_mat_id(context_, weight(tensor), input, ids_);
        if (tensor.scale != nullptr) {
            *scale = ggml_new_tensor_3d(context_, GGML_TYPE_F32, 1, 1, n_pairs_);
            output = ggml_mul(context_, output, *scale);
        }
        if (tensor.bias != nullptr) output = ggml_add_id(context_, output, bias(tensor), ids_);
        return output;
    }

    ggml_tensor* half(ggml_tensor* gate_up, std::int64_t index) {
        const std::int64_t n_ff = gate_up->ne[0] / 2;
        return ggml_view_3d(context_, gate_up, n_ff, gate_up->ne[1], gate_up->ne[2], gate_up->nb[1], gate_up->nb[2],
                            static_cast<std::size_t>(index * n_ff) * gate_up->nb[0]);
    }

    /// The same operations in the same order as llama.cpp's graph, so that every intermediate rounding is the same.
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
            case activation_kind::swiglu_limited:
                return swiglu_limited(act.p0, gate, up);
            case activation_kind::swiglu_oai:
                return ggml_swiglu_oai(context_, gate, up, act.p0, act.p1);
            case activation_kind::situ:
                return situ(act.p0, act.p1, gate, up);
        }
        return nullptr;
    }

  private:
    ggml_tensor* weight(const expert_tensor& tensor) {
        ggml_tensor* view =
            ggml_new_tensor_3d(context_, static_cast<ggml_type>(tensor.type), tensor.n_in, tensor.n_out, n_experts_);
        // ggml takes weights by non-const pointer and only reads them.
        view->data = const_cast<std::byte*>(tensor.weight) + static_cast<std::size_t>(first_expert_) * view->nb[2];
        return view;
    }

    ggml_tensor* bias(const expert_tensor& tensor) {
        ggml_tensor* view = ggml_new_tensor_2d(context_, GGML_TYPE_F32, tensor.n_out, n_experts_);
        view->data = const_cast<float*>(tensor.bias) + first_expert_ * tensor.n_out;
        return view;
    }

    ggml_tensor* swiglu_limited(float limit, ggml_tensor* gate, ggml_tensor* up) {
        ggml_tensor* clamped_up = ggml_clamp(context_, up, -limit, limit);
        ggml_tensor* activated = ggml_silu(context_, gate);
        activated = ggml_clamp(context_, activated, -std::numeric_limits<float>::infinity(), limit);
        return ggml_mul(context_, activated, clamped_up);
    }

    ggml_tensor* situ(float beta, float linear_beta, ggml_tensor* gate, ggml_tensor* up) {
        ggml_tensor* bounded = ggml_tanh(context_, ggml_scale(context_, gate, 1.0F / beta));
        ggml_tensor* activated = ggml_scale(context_, bounded, beta);
        activated = ggml_mul(context_, activated, ggml_sigmoid(context_, gate));
        if (linear_beta > 0.0F)
            up = ggml_scale(context_, ggml_tanh(context_, ggml_scale(context_, up, 1.0F / linear_beta)), linear_beta);
        return ggml_mul(context_, activated, up);
    }

    ggml_context* context_;
    std::int64_t first_expert_;
    std::int64_t n_experts_;
    ggml_tensor* ids_;
    std::int64_t n_pairs_;
};

}  // namespace

std::size_t ffn_graph_context_bytes() {
    return max_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(max_nodes, false);
}

ffn_graph build_ffn_graph(ggml_context* context, const layer_weights& weights, std::int64_t first_expert,
                          std::int64_t n_experts, const activation& act, row_encoding encoding, std::int64_t n_pairs) {
    ffn_graph built;
    const ggml_type row_type = encoding == row_encoding::q8_k ? GGML_TYPE_Q8_K : GGML_TYPE_F32;
    built.rows = ggml_new_tensor_3d(context, row_type, weights.n_in(), 1, n_pairs);
    built.ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, 1, n_pairs);

    builder build(context, first_expert, n_experts, built.ids, n_pairs);
    ggml_tensor* gate = nullptr;
    ggml_tensor* up = nullptr;
    if (weights.gate_up) {
        ggml_tensor* gate_up = build.project(weights.gate_up, built.rows, &built.up_scale);
        gate = build.half(gate_up, 0);
        up = build.half(gate_up, 1);
    } else {
        up = build.project(weights.up, built.rows, &built.up_scale);
        if (weights.gate) gate = build.project(weights.gate, built.rows, &built.gate_scale);
    }
    ggml_tensor* hidden = build.activate(act, gate, up);
    built.result = build.project(weights.down, hidden, &built.down_scale);
    ggml_set_output(built.result);

    built.graph = ggml_new_graph_custom(context, max_nodes, false);
    ggml_build_forward_expand(built.graph, built.result);
    return built;
}

}  // namespace kvasir::expert
