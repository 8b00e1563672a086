#include "model/expert_map.hpp"

#include <fmt/core.h>
#include <ggml.h>

#include <algorithm>
#include <map>

namespace kvasir::model {
namespace {

const float* floats(const tensor_info* tensor) {
    // Tensor data is aligned to at least 8 bytes, see gguf_limits.
    return tensor == nullptr ? nullptr : reinterpret_cast<const float*>(tensor->data.data());
}

std::string shape_text(const tensor_info& tensor) {
    std::string text;
    std::size_t n_dimensions = tensor.ne.size();
    while (n_dimensions > 1 && tensor.ne[n_dimensions - 1] == 1)
        --n_dimensions;
    for (std::size_t i = 0; i < n_dimensions; ++i)
        text += fmt::format("{}{}", i == 0 ? "[" : ", ", tensor.ne[i]);
    return text + "]";
}

const tensor_info*& part_of(routed_tensor& tensor, expert_part part) {
    switch (part) {
        case expert_part::bias:
            return tensor.bias;
        case expert_part::scale:
            return tensor.scale;
        case expert_part::input_scale:
            return tensor.input_scale;
        case expert_part::weight:
            break;
    }
    return tensor.weight;
}

/// blk.N.ffn_{gate,up,down}.E.weight: one expert per tensor, as Mixtral's first files had them.
bool is_separate_expert(std::string_view name) {
    if (!name.starts_with("blk.") || !name.ends_with(".weight")) return false;
    name.remove_suffix(std::string_view(".weight").size());
    const std::size_t ffn = name.find(".ffn_");
    const std::size_t dot = name.rfind('.');
    if (ffn == std::string_view::npos || dot <= ffn || dot + 1 == name.size()) return false;
    return std::ranges::all_of(name.substr(dot + 1), [](char c) { return c >= '0' && c <= '9'; });
}

class layer_checker {
  public:
    layer_checker(const gguf_model& model, expert_layer& layer) : model_(model), layer_(layer) {}

    result<void> check() {
        const routed_tensor& gate = layer_[expert_role::gate];
        const routed_tensor& up = layer_[expert_role::up];
        const routed_tensor& gate_up = layer_[expert_role::gate_up];
        const routed_tensor& down = layer_[expert_role::down];
        if (!down || (!up && !gate_up) || (gate_up && (gate || up)))
            return refuse(
                fmt::format("has the expert tensors {}; expected down, and either gate_up, or up with or "
                            "without gate",
                            present()));
        for (std::size_t i = 0; i < n_expert_roles; ++i)
            if (auto checked = check_tensor(layer_.tensors[i], static_cast<expert_role>(i)); !checked) return checked;
        layer_.n_experts = static_cast<std::uint32_t>(down.n_experts());
        const std::int64_t hidden = gate_up ? gate_up.n_out() / 2 : up.n_out();
        if (gate_up && gate_up.n_out() % 2 != 0) return misfit(*gate_up.weight, *down.weight);
        if (gate && (gate.n_in() != up.n_in() || gate.n_out() != up.n_out())) return misfit(*gate.weight, *up.weight);
        if (hidden != down.n_in()) return misfit(*(gate_up ? gate_up : up).weight, *down.weight);
        for (const routed_tensor& tensor : layer_.tensors)
            if (tensor && tensor.n_experts() != down.n_experts()) return misfit(*tensor.weight, *down.weight);
        return {};
    }

  private:
    error refuse(std::string_view what) const {
        return error(errc::invalid_input,
                     fmt::format("{}: layer {} {}", model_.path().string(), layer_.layer.value, what));
    }

    error misfit(const tensor_info& a, const tensor_info& b) const {
        return refuse(fmt::format("cannot work: {} is {}, but {} is {}; convert the model again", a.name, shape_text(a),
                                  b.name, shape_text(b)));
    }

    std::string present() const {
        std::string text;
        for (std::size_t i = 0; i < n_expert_roles; ++i)
            if (layer_.tensors[i])
                text += fmt::format("{}{}", text.empty() ? "" : ", ", name_of(static_cast<expert_role>(i)));
        return text.empty() ? "none" : text;
    }

    result<void> check_tensor(const routed_tensor& tensor, expert_role role) const {
        if (!tensor) {
            for (const tensor_info* companion : {tensor.bias, tensor.scale, tensor.input_scale})
                if (companion != nullptr)
                    return refuse(fmt::format("has {} but no {} weight", companion->name, name_of(role)));
            return {};
        }
        const tensor_info& weight = *tensor.weight;
        if (weight.ne[3] != 1 || tensor.n_experts() > max_experts_per_layer)
            return refuse(fmt::format("has {} of shape {}; expected [n_in, n_out, n_experts] with at most {} experts",
                                      weight.name, shape_text(weight), max_experts_per_layer));
        const std::array<std::int64_t, 4> bias_shape = {tensor.n_out(), tensor.n_experts(), 1, 1};
        const std::array<std::int64_t, 4> scale_shape = {tensor.n_experts(), 1, 1, 1};
        if (auto checked = check_companion(tensor.bias, bias_shape, weight); !checked) return checked;
        if (auto checked = check_companion(tensor.scale, scale_shape, weight); !checked) return checked;
        return check_companion(tensor.input_scale, scale_shape, weight);
    }

    result<void> check_companion(const tensor_info* companion, const std::array<std::int64_t, 4>& shape,
                                 const tensor_info& weight) const {
        if (companion == nullptr) return {};
        if (companion->type != GGML_TYPE_F32)
            return error(errc::unsupported,
                         fmt::format("{}: {} has type {}; biases and scales of experts must be f32",
                                     model_.path().string(), companion->name, type_name(companion->type)));
        if (companion->ne != shape) return misfit(*companion, weight);
        return {};
    }

    const gguf_model& model_;
    expert_layer& layer_;
};

}  // namespace

const float* routed_tensor::bias_data() const {
    return floats(bias);
}
const float* routed_tensor::scale_data() const {
    return floats(scale);
}

std::vector<const tensor_info*> routed_tensor::parts() const {
    std::vector<const tensor_info*> present;
    for (const tensor_info* part : {weight, bias, scale, input_scale})
        if (part != nullptr) present.push_back(part);
    return present;
}

std::uint64_t routed_tensor::expert_size_bytes() const {
    std::uint64_t sum = 0;
    for (const tensor_info* part : parts())
        sum += part->size_bytes() / static_cast<std::uint64_t>(n_experts());
    return sum;
}

std::int64_t expert_layer::n_in() const {
    const routed_tensor& merged = (*this)[expert_role::gate_up];
    return merged ? merged.n_in() : (*this)[expert_role::up].n_in();
}

std::uint64_t expert_layer::expert_size_bytes() const {
    std::uint64_t sum = 0;
    for (const routed_tensor& tensor : tensors)
        if (tensor) sum += tensor.expert_size_bytes();
    return sum;
}

const expert_layer* expert_map::find(layer_id layer) const {
    const auto found = std::ranges::lower_bound(layers, layer, {}, &expert_layer::layer);
    return found == layers.end() || found->layer != layer ? nullptr : &*found;
}

std::uint64_t expert_map::n_experts() const {
    std::uint64_t sum = 0;
    for (const expert_layer& layer : layers)
        sum += layer.n_experts;
    return sum;
}

std::uint64_t expert_map::size_bytes() const {
    std::uint64_t sum = 0;
    for (const expert_layer& layer : layers)
        sum += layer.n_experts * layer.expert_size_bytes();
    return sum;
}

result<expert_map> map_experts(const gguf_model& model) {
    std::map<layer_id, expert_layer> layers;
    bool has_separate_experts = false;
    for (const tensor_info& tensor : model.tensors()) {
        has_separate_experts = has_separate_experts || is_separate_expert(tensor.name);
        const auto name = parse_expert_tensor_name(tensor.name);
        if (!name) continue;
        expert_layer& layer = layers[name->layer];
        layer.layer = name->layer;
        part_of(layer.tensors[static_cast<std::size_t>(name->role)], name->part) = &tensor;
    }
    if (layers.empty() && has_separate_experts)
        return error(errc::unsupported,
                     fmt::format("{} has every expert in a tensor of its own, as files of early 2024 had; convert the "
                                 "model again with a current llama.cpp",
                                 model.path().string()));
    if (layers.empty())
        return error(errc::unsupported,
                     fmt::format("{} is no Mixture-of-Experts model: it has no tensors blk.*.ffn_*_exps.weight (its "
                                 "architecture is \"{}\")",
                                 model.path().string(), model.architecture()));
    expert_map map;
    for (auto& [id, layer] : layers) {
        if (auto checked = layer_checker(model, layer).check(); !checked) return checked.error();
        map.layers.push_back(layer);
    }
    return map;
}

}  // namespace kvasir::model
