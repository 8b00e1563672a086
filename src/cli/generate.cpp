// kvasir generate: one answer on the terminal.
#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.hpp"
#include "cli/commands.hpp"
#include "cli/language_model.hpp"
#include "cli/swarm_setup.hpp"
#include "cli/text_generator.hpp"

namespace kvasir::cli {
namespace {

constexpr std::string_view command = "generate";

struct generate_arguments {
    std::string model;
    std::vector<net::endpoint> workers;
    generation_options generation;
    double audit_share = swarm::default_audit_share;
    std::uint64_t hot_experts_bytes = 0;
    bool chat = false;
    bool statistics = false;
    int n_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
};

int generate(const generate_arguments& arguments) {
    start_llama();
    const swarm_request request{std::string(command),       arguments.model, arguments.workers,
                                swarm_talk::warnings,       false,           arguments.audit_share,
                                arguments.hot_experts_bytes};
    if (auto joined = join_swarm(request); !joined) return report(command, joined.error());
    const auto model = language_model::load({arguments.model, expert_home::kvasir, false});
    if (!model) return report(command, model.error());

    generation_options options = arguments.generation;
    options.n_threads = arguments.n_threads;
    if (arguments.chat) {
        auto prompt = as_chat(*model, options.prompt);
        if (!prompt) return report(command, prompt.error());
        options.prompt = std::move(*prompt);
    }
    const auto generated = generate_text(*model, options, [](const generated_token& token) {
        std::fwrite(token.text.data(), 1, token.text.size(), stdout);
        return std::fflush(stdout) == 0;
    });
    if (!generated) return report(command, generated.error());
    fmt::print("\n");
    if (arguments.statistics) {
        fmt::print("\n{} tokens in {:.2f} s ({:.1f} tokens/s), prompt of {} tokens in {:.2f} s\n\n",
                   generated->n_generated, generated->generation_seconds,
                   generated->generation_seconds > 0 ? generated->n_generated / generated->generation_seconds : 0.0,
                   generated->n_prompt, generated->prompt_seconds);
        print_swarm_table(backend::swarm_statistics());
    }
    return exit_ok;
}

}  // namespace

void add_generate_command(CLI::App& app, command_action& chosen) {
    const auto arguments = std::make_shared<generate_arguments>();
    generation_options& generation = arguments->generation;
    CLI::App* sub = app.add_subcommand("generate", "Continue a text, or answer a question, on the terminal");
    sub->add_option("-m,--model", arguments->model, "A GGUF model, or the first file of a split one")->required();
    sub->add_option("-p,--prompt", generation.prompt, "The text to continue")->required();
    add_worker_option(*sub, arguments->workers);
    sub->add_option("--audit-share", arguments->audit_share,
                    "The share of the workers' results that is computed again here and compared (default 0.01)")
        ->check(CLI::Range(0.0, 1.0));
    add_hot_experts_option(*sub, arguments->hot_experts_bytes);
    sub->add_option("-n,--tokens", generation.n_tokens, "How many tokens to write at most (default 128)")
        ->check(CLI::Range(1U, 1U << 20U));
    sub->add_option("-c,--context", generation.n_ctx, "Context size in tokens (default: as much as is needed)");
    sub->add_option("--temperature", generation.temperature, "0 always takes the likeliest token (default 0.8)")
        ->check(CLI::Range(0.0F, 10.0F));
    sub->add_option("--top-k", generation.top_k, "Choose among this many likeliest tokens (default 40, 0: all)")
        ->check(CLI::Range(0, 1 << 20));
    sub->add_option("--top-p", generation.top_p, "… and as few as have this probability together (default 0.95)")
        ->check(CLI::Range(0.0F, 1.0F));
    sub->add_option("--seed", generation.seed, "The same seed gives the same text (default 1)");
    sub->add_flag("--chat", arguments->chat, "Put the prompt into the model's chat template");
    sub->add_flag("--statistics", arguments->statistics, "Say afterwards how fast it was and who computed what");
    sub->add_option("-t,--threads", arguments->n_threads, "Threads (default: all processors)")
        ->check(CLI::Range(1, 512));
    sub->callback([arguments, &chosen] { chosen = [arguments] { return generate(*arguments); }; });
}

}  // namespace kvasir::cli
