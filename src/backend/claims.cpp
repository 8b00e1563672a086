#include "backend/claims.hpp"

namespace kvasir::backend {
namespace {

bool is_expert_scale(const ggml_tensor* tensor) {
    if (tensor == nullptr) return false;
    const auto name = model::parse_expert_tensor_name(ggml_get_name(tensor));
    return name && name->part == model::expert_part::scale;
}

const ggml_tensor* repeated_scale(const ggml_tensor* tensor) {
    if (tensor == nullptr || tensor->op != GGML_OP_REPEAT) return nullptr;
    const ggml_tensor* scale = behind_views(tensor->src[0]);
    return is_expert_scale(scale) ? scale : nullptr;
}

}  // namespace

const ggml_tensor* behind_views(const ggml_tensor* tensor) {
    while (tensor != nullptr && (tensor->op == GGML_OP_VIEW || tensor->op == GGML_OP_RESHAPE))
        tensor = tensor->src[0];
    return tensor;
}

const ggml_tensor* gathered_scale(const ggml_tensor* tensor) {
    if (tensor == nullptr || tensor->op != GGML_OP_GET_ROWS) return nullptr;
    return repeated_scale(tensor->src[0]);
}

std::optional<model::expert_role> claims::role_of_product(const ggml_tensor* operation) const {
    if (operation->op != GGML_OP_MUL_MAT_ID || !is_ours_(operation->src[0])) return std::nullopt;
    const auto name = model::parse_expert_tensor_name(ggml_get_name(operation->src[0]));
    if (!name || name->part != model::expert_part::weight) return std::nullopt;
    return name->role;
}

/// True for values between the first products and the down product.
bool claims::is_hidden(const ggml_tensor* tensor) const {
    tensor = behind_views(tensor);
    if (tensor == nullptr) return false;
    switch (tensor->op) {
        case GGML_OP_MUL_MAT_ID: {
            const auto role = role_of_product(tensor);
            return role && *role != model::expert_role::down;
        }
        case GGML_OP_ADD_ID:
        case GGML_OP_UNARY:
        case GGML_OP_CLAMP:
        case GGML_OP_SCALE:
        case GGML_OP_SQR:
            return is_hidden(tensor->src[0]);
        case GGML_OP_GLU:
            return is_hidden(tensor->src[0]) && (tensor->src[1] == nullptr || is_hidden(tensor->src[1]));
        case GGML_OP_MUL:
            return is_hidden(tensor->src[0]) &&
                   (gathered_scale(tensor->src[1]) != nullptr || is_hidden(tensor->src[1]));
        default:
            return false;
    }
}

/// True for the down product, with its own scale and bias but without the router's weights.
bool claims::is_output(const ggml_tensor* tensor) const {
    if (tensor == nullptr) return false;
    switch (tensor->op) {
        case GGML_OP_MUL_MAT_ID:
            return role_of_product(tensor) == model::expert_role::down;
        case GGML_OP_ADD_ID:
            return is_output(tensor->src[0]);
        case GGML_OP_MUL:
            return gathered_scale(tensor->src[1]) != nullptr && is_output(tensor->src[0]);
        default:
            return false;
    }
}

bool claims::accepts(const ggml_tensor* operation) const {
    switch (operation->op) {
        case GGML_OP_NONE:
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
            return true;
        case GGML_OP_MUL_MAT_ID:
            return role_of_product(operation).has_value();
        case GGML_OP_REPEAT:
            return repeated_scale(operation) != nullptr;
        case GGML_OP_GET_ROWS:
            return gathered_scale(operation) != nullptr;
        case GGML_OP_ADD_ID:
        case GGML_OP_UNARY:
        case GGML_OP_CLAMP:
        case GGML_OP_SCALE:
        case GGML_OP_SQR:
        case GGML_OP_GLU:
        case GGML_OP_MUL:
            return is_hidden(operation) || is_output(operation);
        default:
            return false;
    }
}

}  // namespace kvasir::backend
