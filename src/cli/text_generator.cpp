#include "cli/text_generator.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>

namespace kvasir::cli {
namespace {

using steady = std::chrono::steady_clock;

double seconds_since(steady::time_point start) {
    return std::chrono::duration<double>(steady::now() - start).count();
}

struct sampler_deleter {
    void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using sampler_ptr = std::unique_ptr<llama_sampler, sampler_deleter>;

sampler_ptr make_sampler(const generation_options& options) {
    sampler_ptr chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    if (options.temperature <= 0.0F) {
        llama_sampler_chain_add(chain.get(), llama_sampler_init_greedy());
        return chain;
    }
    if (options.top_k > 0) llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(options.top_k));
    if (options.top_p < 1.0F) llama_sampler_chain_add(chain.get(), llama_sampler_init_top_p(options.top_p, 1));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_temp(options.temperature));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(options.seed));
    return chain;
}

/// Fills the context with the prompt, batch by batch; the last batch's size, whose last entry predicts.
result<std::size_t> read_prompt(language_context& context, const std::vector<llama_token>& prompt,
                                std::size_t batch_size) {
    std::size_t last_size = 0;
    for (std::size_t begin = 0; begin < prompt.size(); begin += last_size) {
        last_size = std::min(batch_size, prompt.size() - begin);
        std::vector<batch_entry> entries;
        for (std::size_t i = begin; i < begin + last_size; ++i)
            entries.push_back({prompt[i], static_cast<llama_pos>(i), 0});
        if (auto decoded = context.decode(entries); !decoded) return decoded.error();
    }
    return last_size;
}

}  // namespace

result<generation_summary> generate_text(const language_model& model, const generation_options& options,
                                         const std::function<bool(const generated_token&)>& on_token) {
    generation_summary summary;
    auto prompt = model.tokenize(options.prompt);
    if (!prompt) return prompt.error();
    if (prompt->empty()) return error(errc::invalid_input, "the prompt is empty; give some text with -p");
    const std::size_t needed = prompt->size() + options.n_tokens;
    const std::size_t n_ctx = options.n_ctx == 0 ? needed : options.n_ctx;
    if (needed > n_ctx)
        return error(errc::limit_exceeded,
                     fmt::format("the prompt has {} tokens and {} are to be written, more than the context of {}; "
                                 "raise -c or lower -n",
                                 prompt->size(), options.n_tokens, n_ctx));
    auto context =
        language_context::make(model, {static_cast<std::uint32_t>(n_ctx), options.n_batch, 1, options.n_threads});
    if (!context) return context.error();

    const auto prompt_start = steady::now();
    const auto last_size = read_prompt(*context, *prompt, options.n_batch);
    if (!last_size) return last_size.error();
    summary.prompt_seconds = seconds_since(prompt_start);
    summary.n_prompt = static_cast<std::uint32_t>(prompt->size());

    const sampler_ptr sampler = make_sampler(options);
    const auto start = steady::now();
    std::size_t predicting = *last_size - 1;
    auto position = static_cast<llama_pos>(prompt->size());
    while (summary.n_generated < options.n_tokens) {
        const std::span<const float> logits = context->logits(predicting);
        const llama_token token =
            llama_sampler_sample(sampler.get(), context->get(), static_cast<std::int32_t>(predicting));
        if (llama_vocab_is_eog(model.vocabulary(), token)) break;
        ++summary.n_generated;
        if (!on_token({token, model.text_of(token), logits})) break;
        if (summary.n_generated == options.n_tokens) break;
        const batch_entry next{token, position++, 0};
        if (auto decoded = context->decode({&next, 1}); !decoded) return decoded.error();
        predicting = 0;
    }
    summary.generation_seconds = seconds_since(start);
    summary.prompt = std::move(*prompt);
    return summary;
}

result<std::string> as_chat(const language_model& model, const std::string& text) {
    const char* chat_template = llama_model_chat_template(model.get(), nullptr);
    if (chat_template == nullptr)
        return error(errc::unsupported, "the model has no chat template; leave --chat away to continue plain text");
    const llama_chat_message message{"user", text.c_str()};
    const std::int32_t size = llama_chat_apply_template(chat_template, &message, 1, true, nullptr, 0);
    if (size < 0)
        return error(errc::unsupported,
                     "llama.cpp does not know the model's chat template; use `kvasir serve`, which reads all of them");
    std::string prompt(static_cast<std::size_t>(size), '\0');
    llama_chat_apply_template(chat_template, &message, 1, true, prompt.data(), size);
    return prompt;
}

}  // namespace kvasir::cli
