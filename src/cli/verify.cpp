// kvasir verify: the same tokens through the monolithic model and through the swarm, all logits compared bit for bit.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.hpp"
#include "cli/commands.hpp"
#include "cli/language_model.hpp"
#include "cli/logits_comparison.hpp"
#include "cli/swarm_setup.hpp"
#include "model/model.hpp"

namespace kvasir::cli {
namespace {

constexpr std::string_view command = "verify";

// Used when no prompt is given. Any text does: what counts is that the router sees many different rows.
constexpr const char* default_prompt =
    "In the beginning there was one machine, and it was full. Then the experts went out into the world, each to the "
    "place where it was wanted, and the answer that came back was the same answer, to the last bit.";

struct verify_arguments {
    std::string model;
    std::vector<net::endpoint> workers;
    std::string prompt = default_prompt;
    std::vector<std::uint32_t> batch_sizes = {1, 7, 32, 512};
    std::uint32_t n_decode = 16;
    std::uint32_t n_sequences = 3;
    int n_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
};

/// The two ways to compute, side by side.
struct model_pair {
    language_model monolithic;
    language_model swarmed;
};

struct context_pair {
    language_context monolithic;
    language_context swarmed;

    static result<context_pair> make(const model_pair& models, const context_options& options) {
        auto monolithic = language_context::make(models.monolithic, options);
        if (!monolithic) return monolithic.error();
        auto swarmed = language_context::make(models.swarmed, options);
        if (!swarmed) return swarmed.error();
        return context_pair{std::move(*monolithic), std::move(*swarmed)};
    }

    result<void> decode(std::span<const batch_entry> entries, logits_comparison& comparison) {
        if (auto done = monolithic.decode(entries); !done) return done.error().while_doing("monolithic");
        if (auto done = swarmed.decode(entries); !done) return done.error().while_doing("with the swarm");
        comparison.count_batch(entries.size());
        for (std::size_t i = 0; i < entries.size(); ++i)
            comparison.add(monolithic.logits(i), swarmed.logits(i));
        return {};
    }
};

/// Models without a vocabulary get tokens drawn at random, the same in every run.
result<std::vector<llama_token>> tokens_for(const language_model& model, const std::string& prompt) {
    if (model.has_vocabulary()) return model.tokenize(prompt);
    constexpr std::size_t n_random = 64;
    std::mt19937 random(20240611);
    std::vector<llama_token> tokens(n_random);
    for (llama_token& token : tokens)
        token = static_cast<llama_token>(random() % static_cast<std::uint32_t>(model.n_vocabulary()));
    return tokens;
}

struct verification {
    const model_pair& models;
    const std::vector<llama_token>& tokens;
    const verify_arguments& arguments;

    context_options options(std::uint32_t n_batch, std::uint32_t n_sequences) const {
        const auto n_tokens = static_cast<std::uint32_t>(tokens.size());
        return {n_sequences * (n_tokens + arguments.n_decode), n_batch, n_sequences, arguments.n_threads};
    }

    /// One sequence: the prompt in batches of n_batch, then token by token.
    result<logits_comparison> one_sequence(std::uint32_t n_batch) const {
        auto contexts = context_pair::make(models, options(n_batch, 1));
        if (!contexts) return contexts.error();
        logits_comparison comparison(fmt::format("prompt in batches of {}, decode", n_batch));
        std::size_t last = 0;
        for (std::size_t begin = 0; begin < tokens.size(); begin += n_batch) {
            std::vector<batch_entry> entries;
            for (std::size_t i = begin; i < std::min(tokens.size(), begin + n_batch); ++i)
                entries.push_back({tokens[i], static_cast<llama_pos>(i), 0});
            if (auto done = contexts->decode(entries, comparison); !done) return done.error();
            last = entries.size() - 1;
        }
        for (std::uint32_t i = 0; i < arguments.n_decode; ++i) {
            const batch_entry next{most_likely(contexts->monolithic.logits(last)),
                                   static_cast<llama_pos>(tokens.size() + i), 0};
            if (auto done = contexts->decode({&next, 1}, comparison); !done) return done.error();
            last = 0;
        }
        return comparison;
    }

    /// Several sequences that share every batch, each starting elsewhere in the prompt.
    result<logits_comparison> several_sequences() const {
        const std::uint32_t n = arguments.n_sequences;
        auto contexts = context_pair::make(models, options(n, n));
        if (!contexts) return contexts.error();
        logits_comparison comparison(fmt::format("{} sequences at once", n));
        const std::size_t steps = tokens.size() / 2 + arguments.n_decode;
        std::vector<llama_token> next(n);
        for (std::size_t step = 0; step < steps; ++step) {
            std::vector<batch_entry> entries;
            for (std::uint32_t sequence = 0; sequence < n; ++sequence) {
                const bool from_prompt = step < tokens.size() / 2;
                const llama_token token = from_prompt ? tokens[(step + sequence * 5) % tokens.size()] : next[sequence];
                entries.push_back({token, static_cast<llama_pos>(step), static_cast<llama_seq_id>(sequence)});
            }
            if (auto done = contexts->decode(entries, comparison); !done) return done.error();
            for (std::uint32_t sequence = 0; sequence < n; ++sequence)
                next[sequence] = most_likely(contexts->monolithic.logits(sequence));
        }
        return comparison;
    }
};

int finish(const std::vector<logits_comparison>& comparisons, const verify_arguments& arguments) {
    const swarm::statistics counts = backend::swarm_statistics();
    fmt::print("\n");
    print_swarm_table(counts);
    bool equal = true;
    for (const logits_comparison& comparison : comparisons)
        equal = equal && comparison.equal();
    const bool workers_worked =
        std::ranges::any_of(counts.workers, [](const auto& worker) { return worker.pairs > 0; });
    fmt::print("\n");
    if (!equal) {
        fmt::print("DIFFERENT: the swarm's logits are not the monolithic model's.\n");
        return exit_failure;
    }
    if (!arguments.workers.empty() && !workers_worked) {
        report(command, "no worker computed anything: nothing was verified (do they hold experts of this model?)");
        return exit_failure;
    }
    fmt::print("EXACT: every logit has the same bits.\n");
    return exit_ok;
}

int verify(const verify_arguments& arguments) {
    start_llama();
    auto monolithic = language_model::load({arguments.model, expert_home::monolithic, true});
    if (!monolithic) return report(command, monolithic.error());
    swarm_request request{std::string(command), arguments.model, arguments.workers, swarm_talk::warnings, true};
    // Audits would mend what is to be shown.
    request.audit_share = 0.0;
    if (auto joined = join_swarm(request); !joined) return report(command, joined.error());
    auto swarmed = language_model::load({arguments.model, expert_home::kvasir, true});
    if (!swarmed) return report(command, swarmed.error());
    const model_pair models{std::move(*monolithic), std::move(*swarmed)};
    const auto tokens = tokens_for(models.monolithic, arguments.prompt);
    if (!tokens) return report(command, tokens.error());
    if (tokens->empty())
        return report(command, error(errc::invalid_input, "the prompt is empty; give some text with -p"));

    const verification run{models, *tokens, arguments};
    std::vector<logits_comparison> comparisons;
    print_comparison_header();
    for (const std::uint32_t n_batch : arguments.batch_sizes) {
        auto comparison = run.one_sequence(n_batch);
        if (!comparison) return report(command, comparison.error());
        comparisons.push_back(*comparison);
        print_comparison(*comparison);
    }
    if (arguments.n_sequences > 1) {
        auto comparison = run.several_sequences();
        if (!comparison) return report(command, comparison.error());
        comparisons.push_back(*comparison);
        print_comparison(*comparison);
    }
    return finish(comparisons, arguments);
}

}  // namespace

void add_verify_command(CLI::App& app, command_action& chosen) {
    const auto arguments = std::make_shared<verify_arguments>();
    CLI::App* sub = app.add_subcommand("verify", "Compare the swarm's logits with the monolithic model's, bit for bit");
    sub->add_option("-m,--model", arguments->model, "A GGUF model, or the first file of a split one")->required();
    add_worker_option(*sub, arguments->workers);
    sub->add_option("-p,--prompt", arguments->prompt, "The text to run");
    sub->add_option("--batch", arguments->batch_sizes, "Batch sizes for the prompt (default 1,7,32,512)")
        ->delimiter(',')
        ->check(CLI::Range(1U, 65'536U));
    sub->add_option("--decode", arguments->n_decode, "Tokens to decode one by one after it (default 16)")
        ->check(CLI::Range(0U, 100'000U));
    sub->add_option("--sequences", arguments->n_sequences, "Sequences to run at once (default 3; 1: leave that out)")
        ->check(CLI::Range(1U, 64U));
    sub->add_option("-t,--threads", arguments->n_threads, "Threads (default: all processors)")
        ->check(CLI::Range(1, 512));
    sub->callback([arguments, &chosen] { chosen = [arguments] { return verify(*arguments); }; });
}

}  // namespace kvasir::cli
