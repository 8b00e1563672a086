// Selections: any text is parsed or refused; what is parsed and resolved survives the way through its own text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/selection.hpp"

namespace {

using namespace kvasir;
using namespace kvasir::model;

/// A few layers of different sizes, with a gap; resolving needs no tensors.
expert_map some_experts() {
    expert_map map;
    for (const std::uint32_t layer : {0U, 1U, 2U, 5U, 48U}) {
        expert_layer described;
        described.layer = layer_id{layer};
        described.n_experts = 1 + layer * 3;
        map.layers.push_back(described);
    }
    return map;
}

void require(bool condition) {
    if (!condition) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto selection = expert_selection::parse(text);
    if (!selection) {
        require(!selection.error().message.empty());
        return 0;
    }
    const expert_map experts = some_experts();
    const auto held = selection->resolve(experts);
    if (!held) return 0;
    require(!held->empty());
    for (const held_layer& layer : *held) {
        std::uint64_t end = 0;
        for (const expert_range& range : layer.ranges) {
            require(range.count > 0 && (end == 0 || range.first.value > end));
            end = range.first.value + range.count;
        }
        require(end <= experts.find(layer.layer)->n_experts);
        for (std::uint32_t local = 0; local < layer.n_experts(); ++local)
            require(layer.local_of(layer.global_of(local_expert_id{local}).value()) == local_expert_id{local});
    }
    const auto again = expert_selection::parse(to_text(*held));
    require(again.has_value());
    require(again->resolve(experts).value() == *held);
    return 0;
}
