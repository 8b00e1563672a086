// A layer of routed experts as llama.cpp's build_moe_ffn builds it, in all its shapes, for tests that read such graphs
// or have them computed.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/expert_call.hpp"

namespace kvasir::backend {

struct moe_shape {
    int layer = 5;
    std::int64_t n_embd = 32;
    std::int64_t n_ff = 48;
    std::int64_t n_experts = 6;
    std::int64_t n_used = 3;
    std::int64_t n_tokens = 4;
    bool merged = false;
    bool biases = false;
    bool scales = false;
    bool weights_first = false;  ///< the router's weights are multiplied before the experts
    activation act{activation_kind::swiglu, 0, 0};
    ggml_type type = GGML_TYPE_F32;

    std::string text() const;
};

/// All activations with parameters that models use; for each the tensor layouts that llama.cpp combines it with, with
/// and without biases and scales.
std::vector<moe_shape> all_moe_shapes();

struct context_deleter {
    void operator()(ggml_context* context) const { ggml_free(context); }
};
using context_ptr = std::unique_ptr<ggml_context, context_deleter>;
struct buffer_deleter {
    void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
};
using buffer_ptr = std::unique_ptr<ggml_backend_buffer, buffer_deleter>;

/// A context of so many tensors without memory for their data.
context_ptr make_context(std::size_t n_tensors = 512);

/// An expert tensor with its companions; null where the shape has none.
struct moe_tensor {
    ggml_tensor* weight = nullptr;
    ggml_tensor* bias = nullptr;
    ggml_tensor* scale = nullptr;
};

/// The weights of a layer in a buffer of their own.
class moe_weights {
  public:
    moe_weights(const moe_shape& shape, ggml_backend_buffer_type_t where, std::mt19937& random);

    moe_tensor gate;
    moe_tensor up;
    moe_tensor gate_up;
    moe_tensor down;
    ggml_tensor* router = nullptr;  ///< in a buffer of the CPU's

  private:
    moe_tensor add(const moe_shape& shape, const char* role, std::int64_t n_in, std::int64_t n_out);

    context_ptr experts_context_ = make_context();
    context_ptr router_context_ = make_context();
    buffer_ptr experts_buffer_;
    buffer_ptr router_buffer_;
};

/// The experts' part: what lies between rows and result. Its tensors belong to `context`.
struct moe_nodes {
    ggml_tensor* gate_product = nullptr;  ///< MUL_MAT_ID, as the following; null where there is none
    ggml_tensor* up_product = nullptr;    ///< of the merged weights where they are merged
    ggml_tensor* down_product = nullptr;
    ggml_tensor* gate = nullptr;  ///< with scale and bias; or half of the merged product
    ggml_tensor* up = nullptr;
    ggml_tensor* hidden = nullptr;
    ggml_tensor* result = nullptr;
};
moe_nodes build_experts(ggml_context* context, const moe_shape& shape, const moe_weights& weights, ggml_tensor* rows,
                        ggml_tensor* ids);

/// The experts' part alone, on rows and ids that are simply there; everything allocated by the CPU backend.
class experts_graph {
  public:
    experts_graph(const moe_shape& shape, std::mt19937& random);

    moe_shape shape;
    moe_weights weights;
    ggml_tensor* rows = nullptr;
    ggml_tensor* all_ids = nullptr;  ///< [n_experts, n_tokens]
    ggml_tensor* ids = nullptr;      ///< the first n_used of each: a strided view
    moe_nodes nodes;
    ggml_cgraph* graph = nullptr;

    ggml_context* context() { return context_.get(); }
    /// The first node with this operation.
    ggml_tensor* find(ggml_op operation) const;
    ggml_tensor* find(ggml_unary_op operation) const;

  private:
    context_ptr context_ = make_context();
    buffer_ptr buffer_;
};

/// The whole of it: router, experts, weighted sum.
struct moe_layer_nodes {
    ggml_tensor* input = nullptr;  ///< [n_embd, n_tokens]
    ggml_tensor* output = nullptr;
    moe_nodes experts;
    ggml_cgraph* graph = nullptr;
    int first_of_experts = 0;  ///< nodes [first, end) of the graph are the experts' part
    int end_of_experts = 0;
};
moe_layer_nodes build_layer(ggml_context* context, const moe_shape& shape, const moe_weights& weights);

/// Loads ggml's backends and gives its CPU backend's buffer type.
ggml_backend_buffer_type_t cpu_buffers();
void fill_random(ggml_tensor* tensor, float largest, std::mt19937& random);

}  // namespace kvasir::backend
