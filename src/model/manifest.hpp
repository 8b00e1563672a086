// The manifest: a digest for every slab of a model, and one digest that names the whole model.
//
// A slab is one expert of one routed-expert tensor, or one whole other tensor (slabs_of). The model digest is the
// SHA-256 of a canonical serialisation (docs/manifest.md) of all tensors with their slab digests and of all metadata
// but split.*: how the model is cut into files does not matter, any other byte does.
//
// As JSON a manifest may come from anybody: parse() checks it against itself, down to the model digest, so that who
// trusts the digest can trust every slab digest. File names, offsets and times in it are not covered by the digest.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/sha256.hpp"
#include "model/gguf_model.hpp"
#include "model/progress.hpp"

namespace kvasir::model {

struct manifest_file {
    std::string name;  ///< without directory
    std::uint64_t size_bytes = 0;
    std::int64_t modified_ns = 0;  ///< of the files that were hashed, nanoseconds since 1970; tells a stale manifest
};

struct manifest_tensor {
    std::string name;
    std::int32_t type = 0;  ///< a ggml_type
    std::array<std::int64_t, 4> ne{};
    std::uint64_t size_bytes = 0;
    std::uint32_t file_index = 0;
    std::uint64_t file_offset = 0;  ///< slab s lies at file_offset + s * size_bytes / slabs.size()
    std::vector<sha256_digest> slabs;

    std::uint64_t slab_size_bytes() const { return size_bytes / slabs.size(); }
};

struct manifest_options {
    unsigned n_threads = 0;  ///< 0: as many as the machine has
    progress_callback progress;
};

class manifest {
  public:
    static constexpr std::uint64_t max_json_size_bytes = 64ULL << 20;

    /// Hashes the whole model with several threads. Errors: mismatch (a file changed meanwhile), cancelled, unsupported
    /// (the model is a slice).
    static result<manifest> compute(const gguf_model& model, const manifest_options& options = {});
    /// Errors: invalid_input, unsupported (later version), limit_exceeded, mismatch (not its own digest).
    static result<manifest> parse(std::string_view json);
    static result<manifest> load(const std::filesystem::path& path);

    std::string to_json() const;
    /// Whole or not at all.
    result<void> save(const std::filesystem::path& path) const;

    const sha256_digest& model_digest() const { return model_digest_; }
    const std::string& architecture() const { return architecture_; }
    const std::vector<manifest_file>& files() const { return files_; }
    /// Ascending by name (as bytes).
    const std::vector<manifest_tensor>& tensors() const { return tensors_; }
    const manifest_tensor* find_tensor(std::string_view name) const;

    /// True when it was made of files with these names, sizes and times.
    bool describes(const gguf_model& model) const;

  private:
    sha256_digest digest_of_contents() const;

    sha256_digest model_digest_;
    sha256_digest metadata_digest_;
    std::string architecture_;
    std::vector<manifest_file> files_;
    std::vector<manifest_tensor> tensors_;
};

/// `<model>.manifest.json` beside the (first) model file.
std::filesystem::path manifest_path_beside(const gguf_model& model);

/// The model's manifest: the saved one if it is there and still describes the files, else computed and saved beside the
/// model, or in the user's cache directory ($XDG_CACHE_HOME or ~/.cache, kvasir/manifests) where the model's directory
/// cannot be written. Not being able to save it anywhere is no error.
result<manifest> manifest_for(const gguf_model& model, const manifest_options& options = {});

/// Hashes every slab of a slice and compares. Errors: mismatch, naming the tensor, the expert and both digests, or the
/// two models when the slice is of another one; those of read_slice_info; cancelled.
result<void> verify_slice(const gguf_model& slice, const manifest& of_model, const manifest_options& options = {});

}  // namespace kvasir::model
