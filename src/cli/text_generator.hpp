// From a prompt to a text, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cli/language_model.hpp"

namespace kvasir::cli {

struct generation_options {
    std::string prompt;
    std::uint32_t n_tokens = 128;
    std::uint32_t n_ctx = 0;  ///< 0: the prompt and n_tokens
    std::uint32_t n_batch = 512;
    float temperature = 0.8F;
    int top_k = 40;
    float top_p = 0.95F;
    std::uint32_t seed = 1;
    int n_threads = 1;
};

struct generated_token {
    llama_token token = 0;
    std::string text;
    std::span<const float> logits;  ///< from which it was drawn; valid during the call
};

struct generation_summary {
    std::vector<llama_token> prompt;
    std::uint32_t n_prompt = 0;
    std::uint32_t n_generated = 0;
    double prompt_seconds = 0.0;
    double generation_seconds = 0.0;
};

/// Calls `on_token` for every token written; false ends the text. It ends by itself at n_tokens, or when the model says
/// so.
result<generation_summary> generate_text(const language_model& model, const generation_options& options,
                                         const std::function<bool(const generated_token&)>& on_token);

/// The text as a user's message in the model's own chat template, ready for the answer. errc::unsupported when the
/// model has none.
result<std::string> as_chat(const language_model& model, const std::string& text);

}  // namespace kvasir::cli
