// Where a model's routed experts lie: per block, the tensors whose outermost dimension is the expert.
//
// Of llama.cpp v0.4.0's expert tensors these are routed: blk.N.ffn_{gate,up,down,gate_up}_exps with their .weight,
// .bias, .scale and .input_scale. Left to the backbone, because they have no expert dimension or another index than the
// router's: shared experts (_shexp), GroveMoE's chunk experts (_chexps, one for several experts), Arctic's
// ffn_norm_exps, the router and its biases (ffn_gate_inp, exp_probs_b). Experts as separate tensors
// (blk.N.ffn_up.E.weight, files of early 2024) are refused: llama.cpp v0.4.0 does not load them either.
//
// Points into the gguf_model it was made from, which must outlive it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.hpp"
#include "model/gguf_model.hpp"

namespace kvasir::model {

/// llama.cpp v0.4.0 stops at 512 layers and 1,024 experts per layer. Numbers beyond these are refused where they are
/// read, so that sums and products of them stay in 32 and 64 bits.
inline constexpr std::uint32_t max_layer_number = 9'999;
inline constexpr std::uint32_t max_experts_per_layer = 65'536;

enum class expert_role : std::uint8_t { gate, up, gate_up, down };
inline constexpr std::size_t n_expert_roles = 4;
std::string_view name_of(expert_role role);

/// What a routed-expert tensor is to its weight.
enum class expert_part : std::uint8_t { weight, bias, scale, input_scale };

/// What the name of a routed-expert tensor says.
struct expert_tensor_name {
    layer_id layer;
    expert_role role = expert_role::gate;
    expert_part part = expert_part::weight;
};
/// Empty for every tensor that is not a routed expert's.
std::optional<expert_tensor_name> parse_expert_tensor_name(std::string_view name);

/// How a tensor falls into slabs, the units of digests and slices: one per expert for a routed-expert tensor, else one.
struct slab_layout {
    std::uint64_t n_slabs = 1;
    std::uint64_t slab_size_bytes = 0;
    std::size_t expert_dimension = 3;  ///< the dimension that counts experts: 2 weight, 1 bias, 0 scales; 3 none
};
slab_layout slabs_of(std::string_view name, const std::array<std::int64_t, 4>& ne, std::uint64_t size_bytes);

/// One routed tensor of a layer with its companions (null where absent). Shapes are checked: weight [n_in, n_out,
/// n_experts] of any type, bias F32 [n_out, n_experts], scales F32 [n_experts].
struct routed_tensor {
    const tensor_info* weight = nullptr;
    const tensor_info* bias = nullptr;
    const tensor_info* scale = nullptr;
    const tensor_info* input_scale = nullptr;  ///< kept in slices; llama.cpp's CPU graph does not read it

    explicit operator bool() const { return weight != nullptr; }

    std::int32_t type() const { return weight->type; }
    std::int64_t n_in() const { return weight->ne[0]; }
    std::int64_t n_out() const { return weight->ne[1]; }
    std::int64_t n_experts() const { return weight->ne[2]; }
    /// Expert e's weight starts at weight_data() + e * expert_stride_bytes().
    const std::byte* weight_data() const { return weight->data.data(); }
    std::uint64_t expert_stride_bytes() const { return weight->nb[2]; }
    /// F32 [n_out, n_experts], or null.
    const float* bias_data() const;
    /// F32 [n_experts], or null.
    const float* scale_data() const;
    /// Of one expert: weight and companions.
    std::uint64_t expert_size_bytes() const;
    /// The present ones of weight, bias, scale, input_scale.
    std::vector<const tensor_info*> parts() const;
};

/// The routed experts of one block. Either gate_up, or up with or without gate; always down.
struct expert_layer {
    layer_id layer;
    std::uint32_t n_experts = 0;
    std::array<routed_tensor, n_expert_roles> tensors;  ///< by expert_role

    const routed_tensor& operator[](expert_role role) const { return tensors[static_cast<std::size_t>(role)]; }
    /// Values in a row that goes in and in a row that comes out.
    std::int64_t n_in() const;
    std::int64_t n_out() const { return (*this)[expert_role::down].n_out(); }
    /// Width of an expert's hidden row.
    std::int64_t n_ff() const { return (*this)[expert_role::down].n_in(); }
    /// Of one expert: all its tensors with companions.
    std::uint64_t expert_size_bytes() const;
};

struct expert_map {
    std::vector<expert_layer> layers;  ///< ascending by layer; never empty

    const expert_layer* find(layer_id layer) const;
    std::uint64_t n_experts() const;   ///< over all layers
    std::uint64_t size_bytes() const;  ///< of all experts
};

/// Errors: unsupported when the model has no routed experts, or has them as separate tensors; invalid_input when a
/// layer's tensors do not fit each other.
result<expert_map> map_experts(const gguf_model& model);

}  // namespace kvasir::model
