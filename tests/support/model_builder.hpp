// Model files for tests, written by ggml's own GGUF writer: an opinion on the format that is not ours.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvasir::test_support {

struct built_tensor {
    std::string name;
    ggml_type type = GGML_TYPE_F32;
    std::vector<std::int64_t> ne;
    std::string data;
};

class model_builder {
  public:
    explicit model_builder(std::string architecture) : architecture_(std::move(architecture)) {}

    void set_integer(std::string key, std::uint32_t value) { integers_.emplace_back(std::move(key), value); }
    void set_text(std::string key, std::string value) { texts_.emplace_back(std::move(key), std::move(value)); }
    /// A vocabulary of so many tokens, with scores.
    void set_vocabulary(std::size_t n_tokens) { n_tokens_ = n_tokens; }

    /// Data is random bytes: nothing here computes with it.
    void add_tensor(std::string name, ggml_type type, std::vector<std::int64_t> ne, std::mt19937& random);

    std::vector<built_tensor>& tensors() { return tensors_; }
    const std::vector<built_tensor>& tensors() const { return tensors_; }
    const std::string& architecture() const { return architecture_; }

    void write(const std::filesystem::path& path) const;
    /// As `n_files` files <prefix>-00001-of-…; the first holds no tensors if `metadata_only_first`. Returns their
    /// paths.
    std::vector<std::filesystem::path> write_split(const std::filesystem::path& prefix, std::size_t n_files,
                                                   bool metadata_only_first) const;

  private:
    void write_part(const std::filesystem::path& path, std::size_t first, std::size_t count, bool with_metadata,
                    const std::vector<std::pair<std::string, std::uint32_t>>& split_keys) const;

    std::string architecture_;
    std::vector<std::pair<std::string, std::uint32_t>> integers_;
    std::vector<std::pair<std::string, std::string>> texts_;
    std::size_t n_tokens_ = 0;
    std::vector<built_tensor> tensors_;
};

/// What kind of experts a built model has.
struct moe_shape {
    std::uint32_t n_layers = 3;
    std::uint32_t n_dense_layers = 1;  ///< of n_layers, the first ones, without experts
    std::int64_t n_experts = 6;
    std::int64_t n_embd = 256;
    std::int64_t n_ff = 256;
    bool merged = false;
    bool gated = true;
    bool biases = false;
    bool scales = false;
    std::vector<ggml_type> types = {GGML_TYPE_Q4_K};  ///< taken in turn, tensor by tensor
};

model_builder build_moe(const moe_shape& shape, std::mt19937& random);
/// Any of the above, by chance.
moe_shape random_moe_shape(std::mt19937& random);

}  // namespace kvasir::test_support
