// Which operations the backend claims: those between a layer's rows and its expert rows, and no other. Internal.
//
// ggml's scheduler moves every operation that a device supports to that device, so this must be strict: an operation
// too many (say, the multiplication by router weights) would cut the graph elsewhere and end a layer's single dispatch.
#pragma once

#include <ggml.h>

#include <optional>

#include "model/expert_map.hpp"

namespace kvasir::backend {

/// Tells whether a tensor lies in a KVASIR buffer.
using is_ours_function = bool (*)(const ggml_tensor*);

class claims {
  public:
    explicit claims(is_ours_function is_ours) : is_ours_(is_ours) {}

    bool accepts(const ggml_tensor* operation) const;

  private:
    std::optional<model::expert_role> role_of_product(const ggml_tensor* operation) const;
    bool is_hidden(const ggml_tensor* tensor) const;
    bool is_output(const ggml_tensor* tensor) const;

    is_ours_function is_ours_;
};

/// What lies behind views and reshapes.
const ggml_tensor* behind_views(const ggml_tensor* tensor);
/// For the rows of per-expert scales that llama.cpp gathers (get_rows of a repeat of the reshaped scale tensor): that
/// scale tensor. Null for anything else.
const ggml_tensor* gathered_scale(const ggml_tensor* tensor);

}  // namespace kvasir::backend
