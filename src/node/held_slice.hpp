// What a worker holds: a slice (or a whole model) mapped into memory, as the layers that experts are computed from.
//
// Owns the mapping; the weights point into it. Immutable after load(): any number of threads may read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/ids.hpp"
#include "base/sha256.hpp"
#include "expert/expert.hpp"
#include "model/gguf_model.hpp"
#include "model/progress.hpp"
#include "wire/hello.hpp"

namespace kvasir::node {

struct load_options {
    std::filesystem::path path;
    /// A manifest to check the slice's bytes against. Empty: the one found beside the slice, if there is one.
    std::filesystem::path manifest;
    bool skip_check = false;
    model::progress_callback progress;
};

/// How far the bytes that are served are known to be the model's.
enum class check_state : std::uint8_t {
    checked,          ///< every slab has the digest that the model's manifest names
    skipped,          ///< by the operator's wish
    nothing_to_check  ///< no manifest is at hand
};

class held_slice {
  public:
    /// Errors name the file, what is wrong with it and what to do; errc::mismatch when bytes are not what the manifest
    /// says.
    static result<held_slice> load(const load_options& options);

    const sha256_digest& model_digest() const { return model_digest_; }
    /// What HELLO says is held, ascending by layer.
    const std::vector<wire::held_layer>& layers() const { return layers_; }
    /// The weights of layers()[i] are weights()[i].
    const std::vector<expert::layer_weights>& weights() const { return weights_; }
    /// Position in both; empty when the layer is not held.
    std::optional<std::size_t> find(layer_id layer) const;

    std::uint64_t n_experts() const;  ///< over all layers
    std::uint64_t size_bytes() const { return model_.size_bytes(); }
    bool is_whole_model() const { return is_whole_model_; }
    check_state check() const { return check_; }

  private:
    explicit held_slice(model::gguf_model model) : model_(std::move(model)) {}

    model::gguf_model model_;
    sha256_digest model_digest_;
    std::vector<wire::held_layer> layers_;
    std::vector<expert::layer_weights> weights_;
    bool is_whole_model_ = false;
    check_state check_ = check_state::nothing_to_check;
};

}  // namespace kvasir::node
