// kvasir demo: three workers and a backbone on this machine, an answer, a killed worker, and the verdict.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "cli/child_process.hpp"
#include "cli/commands.hpp"
#include "cli/language_model.hpp"
#include "cli/logits_comparison.hpp"
#include "cli/size_text.hpp"
#include "cli/swarm_setup.hpp"
#include "cli/text_generator.hpp"
#include "model/model.hpp"

namespace kvasir::cli {
namespace {

constexpr std::string_view command = "demo";
constexpr std::size_t n_workers = 3;
constexpr duration start_patience = std::chrono::seconds(30);

struct demo_arguments {
    std::string model;
    std::string prompt = "And it came to pass";
    std::uint32_t n_tokens = 120;
    std::uint32_t seed = 1;
    int n_threads = 1;
};

/// A directory of our own below the system's temporary one, removed with all it holds.
class scratch_directory {
  public:
    scratch_directory() {
        std::string pattern = (std::filesystem::temp_directory_path() / "kvasir-demo-XXXXXX").string();
        if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
    }
    ~scratch_directory() {
        std::error_code ignored;
        if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
    }
    scratch_directory(const scratch_directory&) = delete;
    scratch_directory& operator=(const scratch_directory&) = delete;

    bool ok() const { return !path_.empty(); }
    std::filesystem::path file(const std::string& name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

struct demo_worker {
    std::string name;
    child_process process;
    net::endpoint address;
};

std::string own_program() {
    std::error_code failure;
    const auto path = std::filesystem::read_symlink("/proc/self/exe", failure);
    return failure ? "kvasir" : path.string();
}

/// Three ranges that overlap at their ends, so that some experts have two holders and every worker has some alone; the
/// last expert of every layer is held by nobody.
std::string selection_of_worker(std::size_t worker, std::uint32_t n_experts) {
    const std::uint32_t last = n_experts > 1 ? n_experts - 2 : 0;
    const std::array<std::array<std::uint32_t, 2>, n_workers> sixteenths = {{{0, 6}, {4, 11}, {10, 16}}};
    const std::uint32_t begin = std::min(n_experts * sixteenths[worker][0] / 16, last);
    const std::uint32_t end = std::clamp(n_experts * sixteenths[worker][1] / 16, begin, last);
    return fmt::format("*:{}-{}", begin, end);
}

result<demo_worker> start_worker(const model::gguf_model& model, const sha256_digest& digest,
                                 const scratch_directory& scratch, std::size_t index, std::uint32_t n_experts) {
    const std::string name = fmt::format("worker-{}", index + 1);
    const std::string selection_text = selection_of_worker(index, n_experts);
    const auto selection = model::expert_selection::parse(selection_text);
    if (!selection) return selection.error();
    const std::filesystem::path slice = scratch.file(name + ".gguf");
    const auto written = model::write_slice(model, *selection, digest, slice);
    if (!written) return written.error().while_doing("cutting a slice");
    auto process = child_process::start(own_program(), {"worker", "--slice", slice.string(), "--listen", "127.0.0.1:0",
                                                        "--name", name, "--threads", "1"});
    if (!process) return process.error();
    constexpr std::string_view listening = "listening on ";
    const auto line = process->read_line(start_patience);
    if (!line || !line->starts_with(listening))
        return error(errc::timeout, fmt::format("{} did not start: {}", name, line.value_or("no answer")));
    auto address = net::endpoint::parse(line->substr(listening.size()));
    if (!address) return address.error();
    fmt::print("  {:<9} process {:<8} {:<16} experts {} of {} in every layer ({})\n", name, process->pid(),
               address->text(), selection_text.substr(2), n_experts, size_text(std::filesystem::file_size(slice)));
    return demo_worker{name, std::move(*process), *address};
}

/// What the backbone wrote, to be held against the monolithic model.
struct transcript {
    std::vector<llama_token> prompt;
    std::vector<llama_token> tokens;
    std::vector<std::vector<float>> logits;  ///< from which each token was drawn
};

/// Streams an answer and kills the middle worker half-way.
result<transcript> answer(const language_model& model, const demo_arguments& arguments,
                          std::vector<demo_worker>& workers) {
    generation_options options;
    options.prompt = arguments.prompt;
    options.n_tokens = arguments.n_tokens;
    options.seed = arguments.seed;
    options.n_threads = arguments.n_threads;
    transcript written;
    fmt::print("\n{}", arguments.prompt);
    std::fflush(stdout);
    auto summary = generate_text(model, options, [&](const generated_token& token) {
        std::fwrite(token.text.data(), 1, token.text.size(), stdout);
        std::fflush(stdout);
        written.tokens.push_back(token.token);
        written.logits.emplace_back(token.logits.begin(), token.logits.end());
        if (written.tokens.size() == arguments.n_tokens / 2) {
            workers[1].process.kill_now();
            fmt::print(" [{} killed] ", workers[1].name);
        }
        return true;
    });
    if (!summary) return summary.error();
    written.prompt = std::move(summary->prompt);
    fmt::print("\n\n{} tokens, {:.1f} tokens/s\n\n", summary->n_generated,
               summary->generation_seconds > 0 ? summary->n_generated / summary->generation_seconds : 0.0);
    return written;
}

/// Feeds the same tokens to the model as if Kvasir did not exist.
result<logits_comparison> compare(const language_model& monolithic, const demo_arguments& arguments,
                                  const transcript& written) {
    const auto n_ctx = static_cast<std::uint32_t>(written.prompt.size()) + arguments.n_tokens;
    auto context = language_context::make(monolithic, {n_ctx, 512, 1, arguments.n_threads});
    if (!context) return context.error();
    std::vector<batch_entry> entries;
    for (const llama_token token : written.prompt)
        entries.push_back({token, static_cast<llama_pos>(entries.size()), 0});
    auto position = static_cast<llama_pos>(entries.size());
    logits_comparison comparison("swarm against monolithic");
    for (std::size_t i = 0; i < written.tokens.size(); ++i) {
        if (auto decoded = context->decode(entries); !decoded) return decoded.error();
        comparison.count_batch(entries.size());
        comparison.add(context->logits(entries.size() - 1), written.logits[i]);
        entries = {{written.tokens[i], position++, 0}};
    }
    return comparison;
}

result<std::vector<demo_worker>> start_workers(const demo_arguments& arguments, const scratch_directory& scratch) {
    const auto model = model::gguf_model::open(arguments.model);
    if (!model) return model.error();
    const auto experts = model::map_experts(*model);
    if (!experts) return experts.error();
    const auto manifest = model::manifest_for(*model);
    if (!manifest) return manifest.error();
    const std::uint32_t n_experts = experts->layers.front().n_experts;
    fmt::print("{}: {} layers with {} experts each, {} an expert, {} of the weight is experts\n\n",
               model->path().filename().string(), experts->layers.size(), n_experts,
               size_text(experts->layers.front().expert_size_bytes()),
               fmt::format("{:.0f}%", 100.0 * static_cast<double>(experts->size_bytes()) /
                                          static_cast<double>(model->size_bytes())));
    std::vector<demo_worker> workers;
    for (std::size_t i = 0; i < n_workers; ++i) {
        auto worker = start_worker(*model, manifest->model_digest(), scratch, i, n_experts);
        if (!worker) return worker.error();
        workers.push_back(std::move(*worker));
    }
    return workers;
}

int demo(const demo_arguments& arguments) {
    const scratch_directory scratch;
    if (!scratch.ok()) return report(command, system_error("cannot make a temporary directory"));
    auto workers = start_workers(arguments, scratch);
    if (!workers) return report(command, workers.error());

    start_llama();
    const auto monolithic = language_model::load({arguments.model, expert_home::monolithic, true});
    if (!monolithic) return report(command, monolithic.error());
    swarm_request request{std::string(command), arguments.model, {}, swarm_talk::nothing, true};
    for (const demo_worker& worker : *workers)
        request.workers.push_back(worker.address);
    if (auto joined = join_swarm(request); !joined) return report(command, joined.error());
    const auto model = language_model::load({arguments.model, expert_home::kvasir, true});
    if (!model) return report(command, model.error());
    const auto written = answer(*model, arguments, *workers);
    if (!written) return report(command, written.error());
    const swarm::statistics counts = backend::swarm_statistics();
    print_swarm_table(counts);
    backend::disconnect();

    fmt::print("\nthe same tokens through the monolithic model:\n");
    const auto comparison = compare(*monolithic, arguments, *written);
    if (!comparison) return report(command, comparison.error());
    print_comparison_header();
    print_comparison(*comparison);
    const bool workers_worked =
        std::ranges::all_of(counts.workers, [](const auto& worker) { return worker.pairs > 0; });
    if (!comparison->equal() || !workers_worked) {
        fmt::print("\n{}\n", comparison->equal() ? "NOT SHOWN: a worker computed nothing."
                                                 : "DIFFERENT: the swarm's logits are not the monolithic model's.");
        return exit_failure;
    }
    fmt::print("\nEXACT: every logit has the same bits, with a worker killed on the way.\n");
    return exit_ok;
}

}  // namespace

void add_demo_command(CLI::App& app, command_action& chosen) {
    const auto arguments = std::make_shared<demo_arguments>();
    CLI::App* sub = app.add_subcommand("demo", "Show it on this machine: three workers, an answer, a kill, a verdict");
    sub->add_option("-m,--model", arguments->model, "A GGUF model with routed experts")->required();
    sub->add_option("-p,--prompt", arguments->prompt, "The text to continue");
    sub->add_option("-n,--tokens", arguments->n_tokens, "How many tokens to write (default 120)")
        ->check(CLI::Range(2U, 100'000U));
    sub->add_option("--seed", arguments->seed, "The same seed gives the same text (default 1)");
    sub->add_option("-t,--threads", arguments->n_threads, "Threads of the backbone (default 1)")
        ->check(CLI::Range(1, 512));
    sub->callback([arguments, &chosen] { chosen = [arguments] { return demo(*arguments); }; });
}

}  // namespace kvasir::cli
