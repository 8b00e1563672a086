#include "node/held_slice.hpp"

#include <algorithm>
#include <utility>

#include "model/model.hpp"

namespace kvasir::node {
namespace {

expert::expert_tensor tensor_of(const model::routed_tensor& tensor) {
    if (!tensor) return {};
    return {.weight = tensor.weight_data(),
            .type = tensor.type(),
            .n_in = tensor.n_in(),
            .n_out = tensor.n_out(),
            .bias = tensor.bias_data(),
            .scale = tensor.scale_data()};
}

expert::layer_weights weights_of(const model::expert_layer& layer) {
    using model::expert_role;
    return {.n_experts = layer.n_experts,
            .gate = tensor_of(layer[expert_role::gate]),
            .up = tensor_of(layer[expert_role::up]),
            .gate_up = tensor_of(layer[expert_role::gate_up]),
            .down = tensor_of(layer[expert_role::down])};
}

wire::held_layer hello_layer(const model::held_layer& held, const expert::layer_weights& weights) {
    wire::held_layer said{.layer = held.layer,
                          .n_in = static_cast<std::uint32_t>(weights.n_in()),
                          .n_out = static_cast<std::uint32_t>(weights.n_out()),
                          .encodings = {row_encoding::f32}};
    if (const row_encoding leanest = expert::lossless_encoding(weights); leanest != row_encoding::f32) {
        said.encodings.push_back(leanest);
    }
    for (const model::expert_range& range : held.ranges)
        said.ranges.push_back({.first = range.first, .count = range.count});
    return said;
}

/// The manifest given, or the one beside the slice; empty when there is none.
result<std::optional<model::manifest>> manifest_at_hand(const model::gguf_model& slice, const load_options& options) {
    const bool given = !options.manifest.empty();
    const std::filesystem::path path = given ? options.manifest : model::manifest_path_beside(slice);
    std::error_code ignored;
    if (!given && !std::filesystem::exists(path, ignored)) return std::optional<model::manifest>();
    auto loaded = model::manifest::load(path);
    if (!loaded) return loaded.error();
    return std::optional(*std::move(loaded));
}

result<check_state> check_slice(const model::gguf_model& slice, const load_options& options) {
    if (options.skip_check) return check_state::skipped;
    auto manifest = manifest_at_hand(slice, options);
    if (!manifest) return manifest.error();
    if (!*manifest) return check_state::nothing_to_check;
    auto verified = model::verify_slice(slice, **manifest, {.n_threads = 0, .progress = options.progress});
    if (!verified) return verified.error();
    return check_state::checked;
}

struct claim {
    sha256_digest model_digest;
    std::vector<model::held_layer> held;
};

result<claim> claim_of_slice(const model::gguf_model& slice) {
    auto info = model::read_slice_info(slice);
    if (!info) return info.error();
    return claim{info->model_digest, info->held()};
}

/// A whole model is held as a slice of everything. Its digest comes from its manifest, which is computed if need be.
result<claim> claim_of_model(const model::gguf_model& whole, const model::expert_map& experts,
                             const load_options& options) {
    auto held = model::expert_selection::all().resolve(experts);
    if (!held) return held.error();
    auto manifest = model::manifest_for(whole, {.n_threads = 0, .progress = options.progress});
    if (!manifest) return manifest.error();
    return claim{manifest->model_digest(), *std::move(held)};
}

}  // namespace

result<held_slice> held_slice::load(const load_options& options) {
    auto opened = model::gguf_model::open(options.path);
    if (!opened) return opened.error();
    held_slice made(*std::move(opened));
    const auto experts = model::map_experts(made.model_);
    if (!experts) return experts.error();

    made.is_whole_model_ = !model::is_slice(made.model_);
    auto claimed = made.is_whole_model_ ? claim_of_model(made.model_, *experts, options) : claim_of_slice(made.model_);
    if (!claimed) return claimed.error();
    made.model_digest_ = claimed->model_digest;

    for (const model::held_layer& held : claimed->held) {
        const std::string where = options.path.string() + ": layer " + std::to_string(held.layer.value);
        const model::expert_layer* layer = experts->find(held.layer);
        if (layer == nullptr) return error(errc::invalid_input, where + " is claimed and has no expert tensors");
        const expert::layer_weights weights = weights_of(*layer);
        if (auto valid = expert::validate(weights); !valid) return valid.error().while_doing(where);
        if (weights.n_in() > wire::max_values_per_row || weights.n_out() > wire::max_values_per_row) {
            return error(errc::unsupported, where + " has rows that are wider than the protocol allows");
        }
        made.layers_.push_back(hello_layer(held, weights));
        made.weights_.push_back(weights);
    }
    if (made.is_whole_model_) {
        // Its digest was taken from its own bytes, now or when the manifest beside it was made.
        made.check_ = options.skip_check ? check_state::skipped : check_state::checked;
        return made;
    }
    const auto checked = check_slice(made.model_, options);
    if (!checked) return checked.error();
    made.check_ = *checked;
    return made;
}

std::optional<std::size_t> held_slice::find(layer_id layer) const {
    const auto at = std::lower_bound(layers_.begin(), layers_.end(), layer,
                                     [](const wire::held_layer& held, layer_id id) { return held.layer < id; });
    if (at == layers_.end() || at->layer != layer) return std::nullopt;
    return static_cast<std::size_t>(at - layers_.begin());
}

std::uint64_t held_slice::n_experts() const {
    std::uint64_t sum = 0;
    for (const wire::held_layer& held : layers_)
        sum += held.n_experts();
    return sum;
}

}  // namespace kvasir::node
