// Shapes and parameters are checked here, once, so that nothing a peer or a file says can reach an assertion in ggml.
#include <fmt/core.h>
#include <ggml.h>

#include <cmath>
#include <limits>

#include "expert/expert.hpp"
#include "expert/weight_types.hpp"

namespace kvasir::expert {
namespace {

// Far above any model (n_embd and ff are some thousands, experts some hundreds), far below what could overflow.
constexpr std::int64_t max_width = std::int64_t{1} << 24;
constexpr std::int64_t max_experts = std::int64_t{1} << 20;

result<void> validate_tensor(const char* name, const expert_tensor& tensor) {
    if (!tensor) return {};
    if (!weight_type(tensor.type))
        return error(errc::unsupported,
                     fmt::format("the {} experts have the weight type number {}, which ggml's CPU backend cannot "
                                 "multiply; quantise the model to another type",
                                 name, tensor.type));
    if (tensor.n_in <= 0 || tensor.n_in > max_width || tensor.n_out <= 0 || tensor.n_out > max_width)
        return error(errc::invalid_input,
                     fmt::format("the {} experts have an impossible shape {} x {}", name, tensor.n_in, tensor.n_out));
    const std::int64_t block = ggml_blck_size(static_cast<ggml_type>(tensor.type));
    if (tensor.n_in % block != 0)
        return error(errc::invalid_input, fmt::format("the {} experts have {} columns, which is no multiple of their "
                                                      "type's block of {}",
                                                      name, tensor.n_in, block));
    return {};
}

result<void> require_equal(const char* what, std::int64_t left, std::int64_t right) {
    if (left == right) return {};
    return error(errc::invalid_input,
                 fmt::format("the expert tensors do not fit each other: {} are {} and {}", what, left, right));
}

result<void> validate_fit(const layer_weights& weights) {
    if (weights.gate_up && (weights.up || weights.gate))
        return error(errc::invalid_input, "a layer has both merged and separate gate/up experts");
    if (!weights.gate_up && !weights.up) return error(errc::invalid_input, "a layer has no up experts");
    if (!weights.down) return error(errc::invalid_input, "a layer has no down experts");
    if (weights.gate_up)
        return require_equal("the halves of gate_up and the columns of down", weights.gate_up.n_out,
                             2 * weights.down.n_in);
    if (auto fit = require_equal("the rows of up and the columns of down", weights.up.n_out, weights.down.n_in); !fit)
        return fit;
    if (!weights.gate) return {};
    if (auto fit = require_equal("the columns of gate and up", weights.gate.n_in, weights.up.n_in); !fit) return fit;
    return require_equal("the rows of gate and up", weights.gate.n_out, weights.up.n_out);
}

}  // namespace

result<void> validate(const layer_weights& weights) {
    if (weights.n_experts <= 0 || weights.n_experts > max_experts)
        return error(errc::invalid_input,
                     fmt::format("a layer has an impossible number of experts: {}", weights.n_experts));
    if (auto valid = validate_tensor("gate", weights.gate); !valid) return valid;
    if (auto valid = validate_tensor("up", weights.up); !valid) return valid;
    if (auto valid = validate_tensor("gate_up", weights.gate_up); !valid) return valid;
    if (auto valid = validate_tensor("down", weights.down); !valid) return valid;
    return validate_fit(weights);
}

result<void> validate(const layer_weights& weights, const activation& act) {
    const bool layer_has_gate = weights.gate || weights.gate_up;
    if (has_gate(act.kind) != layer_has_gate)
        return error(errc::invalid_input,
                     fmt::format("the activation {} {} a gate, the layer has {}", name_of(act.kind),
                                 has_gate(act.kind) ? "needs" : "takes no", layer_has_gate ? "one" : "none"));
    if (weights.gate_up && (act.kind == activation_kind::situ || act.kind == activation_kind::swiglu_limited))
        return error(errc::unsupported,
                     fmt::format("ggml cannot apply {} to halves of merged gate/up experts", name_of(act.kind)));
    if (!std::isfinite(act.p0) || !std::isfinite(act.p1))
        return error(errc::invalid_input,
                     fmt::format("the activation {} has a parameter that is not finite", name_of(act.kind)));
    const bool needs_positive_p0 = act.kind == activation_kind::swiglu_clamped ||
                                   act.kind == activation_kind::swiglu_limited || act.kind == activation_kind::situ;
    if (needs_positive_p0 && act.p0 <= 0.0F)
        return error(errc::invalid_input,
                     fmt::format("the activation {} needs a positive parameter, not {}", name_of(act.kind), act.p0));
    return {};
}

}  // namespace kvasir::expert
