// Biases and scales as a set: what a layer has, and the layer with only those that a call wants.
#include <fmt/core.h>

#include <array>

#include "expert/expert.hpp"

namespace kvasir::expert {
namespace {

struct role_companions {
    expert_tensor layer_weights::*tensor;
    std::uint16_t bias;
    std::uint16_t scale;
};

constexpr std::array<role_companions, 4> roles = {{
    {&layer_weights::gate, gate_bias, gate_scale},
    {&layer_weights::up, up_bias, up_scale},
    {&layer_weights::gate_up, gate_up_bias, gate_up_scale},
    {&layer_weights::down, down_bias, down_scale},
}};

}  // namespace

std::uint16_t companions_of(const layer_weights& weights) {
    unsigned bits = 0;
    for (const role_companions& role : roles) {
        if ((weights.*role.tensor).bias != nullptr) bits |= role.bias;
        if ((weights.*role.tensor).scale != nullptr) bits |= role.scale;
    }
    return static_cast<std::uint16_t>(bits);
}

result<layer_weights> with_companions(const layer_weights& weights, std::uint16_t companions) {
    const unsigned present = companions_of(weights);
    if (const unsigned missing = companions & ~present; missing != 0)
        return error(
            errc::invalid_input,
            fmt::format("the call wants biases or scales that the layer does not have (bits {:#06x})", missing));
    layer_weights chosen = weights;
    for (const role_companions& role : roles) {
        if ((companions & role.bias) == 0) (chosen.*role.tensor).bias = nullptr;
        if ((companions & role.scale) == 0) (chosen.*role.tensor).scale = nullptr;
    }
    return chosen;
}

}  // namespace kvasir::expert
