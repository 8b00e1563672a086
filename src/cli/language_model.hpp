// A model and its context through libllama, for the commands that run models themselves.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace kvasir::cli {

/// Where a model's routed experts are computed.
enum class expert_home {
    kvasir,  ///< in KVASIR buffers: on the workers that are configured, the rest here
    /// In ggml's plain CPU buffers, as if Kvasir did not exist. Such a model must be loaded before register_backend():
    /// llama.cpp gives expert weights to the device KVASIR wherever it is registered, whatever overrides say.
    monolithic,
};

struct model_options {
    std::string path;
    expert_home experts = expert_home::kvasir;
    /// Weights in the file's layout. Exact comparisons need it: llama.cpp's repacked kernels give other bits.
    bool plain_layout = true;
    /// llama.cpp's --override-tensor: which weights go to which buffer type; ended by a null pattern. What is not named
    /// stays on the CPU then. Null: as llama.cpp sees fit. Borrowed for the loading.
    const llama_model_tensor_buft_override* placement = nullptr;
};

struct context_options {
    std::uint32_t n_ctx = 0;
    std::uint32_t n_batch = 512;  ///< tokens in one call and in one micro-batch
    std::uint32_t n_sequences = 1;
    int n_threads = 1;
};

/// One position to compute.
struct batch_entry {
    llama_token token = 0;
    llama_pos position = 0;
    llama_seq_id sequence = 0;
    bool with_logits = true;
};

/// start_ggml() and libllama's own start. Before anything else here.
void start_llama();

/// Move-only.
class language_model {
  public:
    static result<language_model> load(const model_options& options);

    llama_model* get() const { return model_.get(); }
    const llama_vocab* vocabulary() const { return llama_model_get_vocab(model_.get()); }
    std::int32_t n_vocabulary() const { return llama_vocab_n_tokens(vocabulary()); }
    bool has_vocabulary() const { return llama_vocab_type(vocabulary()) != LLAMA_VOCAB_TYPE_NONE; }

    result<std::vector<llama_token>> tokenize(const std::string& text) const;
    std::string text_of(llama_token token) const;

  private:
    struct model_deleter {
        void operator()(llama_model* model) const { llama_model_free(model); }
    };
    std::unique_ptr<llama_model, model_deleter> model_;
};

/// Move-only. Must not outlive its model.
class language_context {
  public:
    static result<language_context> make(const language_model& model, const context_options& options);

    llama_context* get() const { return context_.get(); }

    /// Computes a batch; afterwards logits(i) are those of entries[i], if it is `with_logits`.
    result<void> decode(std::span<const batch_entry> entries);
    std::span<const float> logits(std::size_t entry) const;

  private:
    struct context_deleter {
        void operator()(llama_context* context) const { llama_free(context); }
    };
    std::unique_ptr<llama_context, context_deleter> context_;
    std::size_t n_vocabulary_ = 0;
};

/// Position of the largest value; the first of equal ones.
llama_token most_likely(std::span<const float> logits);

}  // namespace kvasir::cli
