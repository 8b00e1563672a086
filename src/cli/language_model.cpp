#include "cli/language_model.hpp"

#include <fmt/core.h>
#include <ggml-backend.h>

#include <algorithm>
#include <array>

#include "cli/ggml_start.hpp"

namespace kvasir::cli {
void start_llama() {
    llama_log_set(keep_last_error, nullptr);
    start_ggml();
    llama_backend_init();
}

result<language_model> language_model::load(const model_options& options) {
    if (options.experts == expert_home::monolithic && ggml_backend_reg_by_name("KVASIR") != nullptr)
        return error(errc::internal, "the monolithic model must be loaded before the backend is registered");
    llama_model_params params = llama_model_default_params();
    params.use_extra_bufts = !options.plain_layout;
    params.tensor_buft_overrides = options.placement;
    if (options.placement != nullptr) params.n_gpu_layers = 0;
    language_model loaded;
    loaded.model_.reset(llama_model_load_from_file(options.path.c_str(), params));
    if (!loaded.model_)
        return error(errc::invalid_input,
                     fmt::format("llama.cpp cannot load {}: {}", options.path, last_ggml_complaint()));
    return loaded;
}

result<std::vector<llama_token>> language_model::tokenize(const std::string& text) const {
    if (!has_vocabulary()) return error(errc::unsupported, "the model has no vocabulary: it cannot read text");
    const auto size = static_cast<std::int32_t>(text.size());
    const std::int32_t needed = -llama_tokenize(vocabulary(), text.data(), size, nullptr, 0, true, true);
    std::vector<llama_token> tokens(static_cast<std::size_t>(std::max(0, needed)));
    const std::int32_t made = llama_tokenize(vocabulary(), text.data(), size, tokens.data(), needed, true, true);
    if (made != needed) return error(errc::internal, "llama.cpp could not tokenise the prompt");
    return tokens;
}

std::string language_model::text_of(llama_token token) const {
    std::array<char, 512> piece{};
    const std::int32_t size =
        llama_token_to_piece(vocabulary(), token, piece.data(), static_cast<std::int32_t>(piece.size()), 0, false);
    return size > 0 ? std::string(piece.data(), static_cast<std::size_t>(size)) : std::string();
}

result<language_context> language_context::make(const language_model& model, const context_options& options) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = options.n_ctx;
    params.n_batch = options.n_batch;
    params.n_ubatch = options.n_batch;
    params.n_seq_max = options.n_sequences;
    params.kv_unified = true;
    params.n_threads = options.n_threads;
    params.n_threads_batch = options.n_threads;
    params.no_perf = true;
    language_context made;
    made.context_.reset(llama_init_from_model(model.get(), params));
    if (!made.context_) return error(errc::internal, "llama.cpp cannot make a context: " + last_ggml_complaint());
    made.n_vocabulary_ = static_cast<std::size_t>(model.n_vocabulary());
    return made;
}

result<void> language_context::decode(std::span<const batch_entry> entries) {
    llama_batch batch = llama_batch_init(static_cast<std::int32_t>(entries.size()), 0, 1);
    for (const batch_entry& entry : entries) {
        const auto i = static_cast<std::size_t>(batch.n_tokens++);
        batch.token[i] = entry.token;
        batch.pos[i] = entry.position;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = entry.sequence;
        batch.logits[i] = entry.with_logits ? 1 : 0;
    }
    const std::int32_t status = llama_decode(context_.get(), batch);
    llama_batch_free(batch);
    if (status != 0)
        return error(errc::internal, fmt::format("llama.cpp could not compute a batch of {} tokens (status {}): {}",
                                                 entries.size(), status, last_ggml_complaint()));
    return {};
}

std::span<const float> language_context::logits(std::size_t entry) const {
    return {llama_get_logits_ith(context_.get(), static_cast<std::int32_t>(entry)), n_vocabulary_};
}

llama_token most_likely(std::span<const float> logits) {
    return static_cast<llama_token>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace kvasir::cli
