// A slice: some experts of a model in a GGUF file of their own, cut out byte for byte.
//
// The tensors keep their names; the expert dimension is the number of experts held. The metadata is the model's without
// vocabulary (tokenizer.*) and split.*, plus:
//
//     kvasir.slice.version        u32          1
//     kvasir.slice.model_digest   string       the model's digest (manifest.hpp), 64 hexadecimal digits
//     kvasir.slice.layer          array[u32]   one entry per range, ascending by (layer, first):
//     kvasir.slice.first          array[u32]     its first expert in the whole model
//     kvasir.slice.count          array[u32]     how many
//     kvasir.slice.n_experts      array[u32]     how many experts that layer has in the whole model
//
// A slice is no model: no llama.cpp program can run it. It is what a worker holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/sha256.hpp"
#include "model/expert_map.hpp"
#include "model/gguf_model.hpp"
#include "model/progress.hpp"
#include "model/selection.hpp"

namespace kvasir::model {

/// What of one layer a slice holds, and how many experts the layer has in the whole model.
struct slice_layer {
    held_layer held;
    std::uint32_t n_experts_in_model = 0;
};

struct slice_info {
    sha256_digest model_digest;
    std::string architecture;
    std::vector<slice_layer> layers;  ///< ascending by layer, never empty

    const slice_layer* find(layer_id layer) const;
    std::uint64_t n_experts() const;  ///< held, over all layers
    std::vector<held_layer> held() const;
};

/// True when the file calls itself a slice (it may still be an invalid one).
bool is_slice(const gguf_model& model);

/// What the slice holds, checked against its tensors. Errors: unsupported (no slice, or of a later version),
/// invalid_input (what it claims is not what its tensors hold).
result<slice_info> read_slice_info(const gguf_model& slice);

/// Bytes of tensor data a slice of these experts will have, without header and padding.
std::uint64_t slice_data_size_bytes(const expert_map& experts, const std::vector<held_layer>& held);

/// Writes the slice under a temporary name beside `path` and renames it when it is whole; an existing file is replaced.
/// Bytes go from the mapped model straight to the file. Errors: unsupported (`model` is a slice itself), invalid_input
/// (selection), io, cancelled; then nothing is left behind.
result<slice_info> write_slice(const gguf_model& model, const expert_selection& selection,
                               const sha256_digest& model_digest, const std::filesystem::path& path,
                               const progress_callback& progress = {});

}  // namespace kvasir::model
