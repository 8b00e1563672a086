#include "backend/graph_reader.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "backend/claims.hpp"

namespace kvasir::backend {
namespace {

using model::expert_part;
using model::expert_role;

float float_param(const ggml_tensor* tensor, std::size_t index) {
    float value;
    std::memcpy(&value, tensor->op_params + index, sizeof value);
    return value;
}

/// W[e] x with its scale and bias.
struct projection {
    const ggml_tensor* weight = nullptr;
    const ggml_tensor* bias = nullptr;
    const ggml_tensor* scale = nullptr;
    const ggml_tensor* input = nullptr;
    const ggml_tensor* ids = nullptr;
    expert_role role{};
    layer_id layer;
};

class reader {
  public:
    std::optional<expert_graph> read(ggml_cgraph* graph);

  private:
    std::optional<projection> read_projection(const ggml_tensor* tensor);
    bool read_companion(const ggml_tensor* companion, expert_part part, const projection& of) const;
    bool read_scale_rows(const ggml_tensor* tensor, projection& into);
    bool read_activation(const ggml_tensor* hidden);
    bool read_glu(const ggml_tensor* glu);
    bool read_unary(const ggml_tensor* unary);
    bool read_limited(const ggml_tensor* product);
    bool read_situ(const ggml_tensor* product);
    std::optional<float> read_bounded(const ggml_tensor* tensor, const ggml_tensor*& inner);
    bool read_gate_and_up(const ggml_tensor* gate, const ggml_tensor* up);
    bool read_up(const ggml_tensor* up);
    bool is_half(const ggml_tensor* view, const ggml_tensor* of, std::int64_t index) const;
    bool agrees_with_down(const projection& other) const;
    bool all_used_and_private(ggml_cgraph* graph, const ggml_tensor* result) const;
    std::optional<expert_graph> assemble(const ggml_tensor* result) const;

    const ggml_tensor* use(const ggml_tensor* node) {
        used_.insert(node);
        return node;
    }

    projection down_;
    std::optional<projection> gate_;
    std::optional<projection> up_;
    std::optional<projection> gate_up_;
    activation act_;
    std::set<const ggml_tensor*> used_;
};

bool is_view_like(const ggml_tensor* node) {
    return node->op == GGML_OP_NONE || node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE ||
           node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE;
}

bool is_unary(const ggml_tensor* tensor, ggml_unary_op op) {
    return tensor != nullptr && tensor->op == GGML_OP_UNARY && ggml_get_unary_op(tensor) == op;
}

bool reader::read_companion(const ggml_tensor* companion, expert_part part, const projection& of) const {
    if (companion == nullptr || companion->type != GGML_TYPE_F32 || !ggml_is_contiguous(companion)) return false;
    const auto name = model::parse_expert_tensor_name(ggml_get_name(companion));
    const std::int64_t n_experts = of.weight->ne[2];
    const std::int64_t n_values = part == expert_part::bias ? of.weight->ne[1] * n_experts : n_experts;
    return name && name->part == part && name->role == of.role && name->layer == of.layer &&
           ggml_nelements(companion) == n_values;
}

bool reader::read_scale_rows(const ggml_tensor* tensor, projection& into) {
    into.scale = gathered_scale(tensor);
    if (into.scale == nullptr || tensor->src[1] != into.ids) return false;
    use(tensor);
    use(tensor->src[0]);
    return true;
}

/// llama.cpp multiplies by the scale first and adds the bias then.
std::optional<projection> reader::read_projection(const ggml_tensor* tensor) {
    if (tensor == nullptr) return std::nullopt;
    projection read;
    const ggml_tensor* add = nullptr;
    const ggml_tensor* multiply = nullptr;
    if (tensor->op == GGML_OP_ADD_ID) {
        add = use(tensor);
        tensor = tensor->src[0];
    }
    if (tensor->op == GGML_OP_MUL) {
        multiply = use(tensor);
        tensor = tensor->src[0];
    }
    if (tensor->op != GGML_OP_MUL_MAT_ID) return std::nullopt;
    use(tensor);
    read.weight = tensor->src[0];
    read.input = tensor->src[1];
    read.ids = tensor->src[2];
    const auto name = model::parse_expert_tensor_name(ggml_get_name(read.weight));
    if (!name || name->part != expert_part::weight || !ggml_is_contiguous(read.weight)) return std::nullopt;
    read.role = name->role;
    read.layer = name->layer;
    if (multiply != nullptr &&
        !(read_scale_rows(multiply->src[1], read) && read_companion(read.scale, expert_part::scale, read)))
        return std::nullopt;
    if (add != nullptr) {
        read.bias = add->src[1];
        if (add->src[2] != read.ids || !read_companion(read.bias, expert_part::bias, read)) return std::nullopt;
    }
    return read;
}

bool reader::read_activation(const ggml_tensor* hidden) {
    switch (hidden->op) {
        case GGML_OP_GLU:
            return read_glu(hidden);
        case GGML_OP_UNARY:
            return read_unary(hidden);
        case GGML_OP_SQR:
            if (!is_unary(hidden->src[0], GGML_UNARY_OP_RELU)) return false;
            use(hidden);
            use(hidden->src[0]);
            act_ = {activation_kind::relu_squared, 0, 0};
            return read_up(hidden->src[0]->src[0]);
        case GGML_OP_MUL:
            return read_limited(hidden) || read_situ(hidden);
        default:
            return false;
    }
}

bool reader::read_glu(const ggml_tensor* glu) {
    const bool swapped = glu->op_params[1] != 0;
    if (swapped || glu->src[1] == nullptr) return false;
    switch (ggml_get_glu_op(glu)) {
        case GGML_GLU_OP_SWIGLU:
            act_ = {activation_kind::swiglu, 0, 0};
            break;
        case GGML_GLU_OP_GEGLU:
            act_ = {activation_kind::geglu, 0, 0};
            break;
        case GGML_GLU_OP_REGLU:
            act_ = {activation_kind::reglu, 0, 0};
            break;
        case GGML_GLU_OP_SWIGLU_CLAMP:
            act_ = {activation_kind::swiglu_clamped, float_param(glu, 3), 0};
            break;
        case GGML_GLU_OP_SWIGLU_OAI:
            act_ = {activation_kind::swiglu_oai, float_param(glu, 2), float_param(glu, 3)};
            break;
        default:
            return false;
    }
    use(glu);
    return read_gate_and_up(glu->src[0], glu->src[1]);
}

bool reader::read_unary(const ggml_tensor* unary) {
    switch (ggml_get_unary_op(unary)) {
        case GGML_UNARY_OP_SILU:
            act_ = {activation_kind::silu, 0, 0};
            break;
        case GGML_UNARY_OP_GELU:
            act_ = {activation_kind::gelu, 0, 0};
            break;
        case GGML_UNARY_OP_RELU:
            act_ = {activation_kind::relu, 0, 0};
            break;
        default:
            return false;
    }
    use(unary);
    return read_up(unary->src[0]);
}

/// clamp(silu(gate), -inf, limit) * clamp(up, -limit, limit)
bool reader::read_limited(const ggml_tensor* product) {
    const ggml_tensor* left = product->src[0];
    const ggml_tensor* right = product->src[1];
    if (left->op != GGML_OP_CLAMP || right->op != GGML_OP_CLAMP || !is_unary(left->src[0], GGML_UNARY_OP_SILU))
        return false;
    const float limit = float_param(left, 1);
    const bool as_expected = std::isinf(float_param(left, 0)) && float_param(left, 0) < 0.0F &&
                             float_param(right, 0) == -limit && float_param(right, 1) == limit;
    if (!as_expected) return false;
    for (const ggml_tensor* node : {product, left, right, static_cast<const ggml_tensor*>(left->src[0])})
        use(node);
    act_ = {activation_kind::swiglu_limited, limit, 0};
    return read_gate_and_up(left->src[0]->src[0], right->src[0]);
}

/// For scale(tanh(scale(inner, 1/b)), b): b, if the two factors fit each other to the bit.
std::optional<float> reader::read_bounded(const ggml_tensor* tensor, const ggml_tensor*& inner) {
    if (tensor->op != GGML_OP_SCALE || !is_unary(tensor->src[0], GGML_UNARY_OP_TANH)) return std::nullopt;
    const ggml_tensor* shrink = tensor->src[0]->src[0];
    const float bound = float_param(tensor, 0);
    const bool as_expected = shrink->op == GGML_OP_SCALE && bound > 0.0F && float_param(shrink, 0) == 1.0F / bound &&
                             float_param(tensor, 1) == 0.0F && float_param(shrink, 1) == 0.0F;
    if (!as_expected) return std::nullopt;
    for (const ggml_tensor* node : {tensor, static_cast<const ggml_tensor*>(tensor->src[0]), shrink})
        use(node);
    inner = shrink->src[0];
    return bound;
}

/// bounded(gate) * sigmoid(gate) * (bounded(up) or up)
bool reader::read_situ(const ggml_tensor* product) {
    const ggml_tensor* left = product->src[0];
    if (left->op != GGML_OP_MUL || !is_unary(left->src[1], GGML_UNARY_OP_SIGMOID)) return false;
    const ggml_tensor* gate = nullptr;
    const auto beta = read_bounded(left->src[0], gate);
    if (!beta || left->src[1]->src[0] != gate) return false;
    const ggml_tensor* up = product->src[1];
    const auto linear_beta = read_bounded(up, up);
    for (const ggml_tensor* node : {product, left, static_cast<const ggml_tensor*>(left->src[1])})
        use(node);
    act_ = {activation_kind::situ, *beta, linear_beta.value_or(0.0F)};
    return read_gate_and_up(gate, up);
}

/// True for the gate (index 0) or up (1) half of a merged projection.
bool reader::is_half(const ggml_tensor* view, const ggml_tensor* of, std::int64_t index) const {
    const std::int64_t n_ff = of->ne[0] / 2;
    return view->op == GGML_OP_VIEW && view->src[0] == of && view->ne[0] == n_ff && view->ne[1] == of->ne[1] &&
           view->ne[2] == of->ne[2] && view->nb[0] == of->nb[0] && view->nb[1] == of->nb[1] &&
           view->nb[2] == of->nb[2] &&
           view->view_offs == of->view_offs + static_cast<std::size_t>(index * n_ff) * of->nb[0];
}

bool reader::read_gate_and_up(const ggml_tensor* gate, const ggml_tensor* up) {
    if (gate->op == GGML_OP_VIEW) {
        const ggml_tensor* merged = gate->src[0];
        if (!is_half(gate, merged, 0) || !is_half(up, merged, 1)) return false;
        gate_up_ = read_projection(merged);
        // llama.cpp would scale a merged product by the scale of "up", which no file of that kind has.
        return gate_up_ && gate_up_->role == expert_role::gate_up && gate_up_->scale == nullptr;
    }
    gate_ = read_projection(gate);
    return gate_ && gate_->role == expert_role::gate && read_up(up);
}

bool reader::read_up(const ggml_tensor* up) {
    up_ = read_projection(up);
    return up_ && up_->role == expert_role::up;
}

bool reader::agrees_with_down(const projection& other) const {
    const ggml_tensor* input = up_ ? up_->input : gate_up_->input;
    return other.layer == down_.layer && other.ids == down_.ids && other.input == input;
}

/// Every node that computes belongs to the pattern, and only the last may be read by others.
bool reader::all_used_and_private(ggml_cgraph* graph, const ggml_tensor* result) const {
    std::size_t n_computing = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        if (is_view_like(node)) continue;
        ++n_computing;
        if (!used_.contains(node)) return false;
        if (node != result && (node->flags & GGML_TENSOR_FLAG_OUTPUT) != 0) return false;
    }
    return n_computing == used_.size();
}

expert::expert_tensor to_expert_tensor(const std::optional<projection>& from) {
    expert::expert_tensor tensor;
    if (!from) return tensor;
    tensor.weight = static_cast<const std::byte*>(from->weight->data);
    tensor.type = from->weight->type;
    tensor.n_in = from->weight->ne[0];
    tensor.n_out = from->weight->ne[1];
    if (from->bias != nullptr) tensor.bias = static_cast<const float*>(from->bias->data);
    if (from->scale != nullptr) tensor.scale = static_cast<const float*>(from->scale->data);
    return tensor;
}

std::optional<expert_graph> reader::assemble(const ggml_tensor* result) const {
    expert_graph read;
    read.layer = down_.layer;
    read.act = act_;
    read.weights.n_experts = down_.weight->ne[2];
    read.weights.gate = to_expert_tensor(gate_);
    read.weights.up = to_expert_tensor(up_);
    read.weights.gate_up = to_expert_tensor(gate_up_);
    read.weights.down = to_expert_tensor(down_);
    read.rows = up_ ? up_->input : gate_up_->input;
    read.ids = down_.ids;
    read.result = result;

    const bool rows_fit = read.rows->type == GGML_TYPE_F32 && read.rows->nb[0] == sizeof(float) &&
                          (read.rows->ne[1] == 1 || read.rows->ne[1] == read.n_used()) &&
                          read.rows->ne[2] == read.n_tokens() && read.rows->ne[3] == 1 &&
                          read.rows->nb[2] == read.rows->nb[1] * static_cast<std::size_t>(read.rows->ne[1]);
    const bool ids_fit = read.ids->type == GGML_TYPE_I32 && read.ids->ne[2] == 1 && read.ids->ne[3] == 1;
    const bool result_fits = result->type == GGML_TYPE_F32 && ggml_is_contiguous(result) &&
                             result->ne[0] == read.weights.n_out() && result->ne[1] == read.n_used() &&
                             result->ne[2] == read.n_tokens();
    if (!rows_fit || !ids_fit || !result_fits) return std::nullopt;
    if (read.rows->data == nullptr || read.ids->data == nullptr || result->data == nullptr) return std::nullopt;
    if (!expert::validate(read.weights) || !expert::validate(read.weights, read.act)) return std::nullopt;
    return read;
}

std::optional<expert_graph> reader::read(ggml_cgraph* graph) {
    const ggml_tensor* result = nullptr;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i)
        if (!is_view_like(ggml_graph_node(graph, i))) result = ggml_graph_node(graph, i);
    const auto down = read_projection(result);
    if (!down || down->role != expert_role::down) return std::nullopt;
    down_ = *down;
    if (!read_activation(down_.input)) return std::nullopt;
    for (const auto* first : {&gate_, &up_, &gate_up_})
        if (*first && (!agrees_with_down(**first) || (*first)->weight->ne[2] != down_.weight->ne[2]))
            return std::nullopt;
    if (!all_used_and_private(graph, result)) return std::nullopt;
    return assemble(result);
}

}  // namespace

std::optional<expert_graph> read_expert_graph(ggml_cgraph* graph) {
    return reader().read(graph);
}

bool read_pairs(const expert_graph& graph, std::vector<row_expert_pair>& pairs) {
    pairs.clear();
    pairs.reserve(graph.n_pairs());
    const std::int64_t rows_per_token = graph.rows->ne[1];
    const auto* ids = static_cast<const std::byte*>(graph.ids->data);
    for (std::int64_t token = 0; token < graph.n_tokens(); ++token) {
        for (std::int64_t slot = 0; slot < graph.n_used(); ++slot) {
            std::int32_t id = 0;
            std::memcpy(&id,
                        ids + static_cast<std::size_t>(token) * graph.ids->nb[1] +
                            static_cast<std::size_t>(slot) * graph.ids->nb[0],
                        sizeof id);
            if (id < 0 || id >= graph.weights.n_experts) return false;
            const std::int64_t row = token * rows_per_token + (rows_per_token == 1 ? 0 : slot);
            pairs.push_back({static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(id)});
        }
    }
    return true;
}

}  // namespace kvasir::backend
