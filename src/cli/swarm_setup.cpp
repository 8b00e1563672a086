#include "cli/swarm_setup.hpp"

#include <fmt/core.h>
#include <ggml-backend.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "backend/backend.hpp"
#include "cli/commands.hpp"
#include "cli/progress_bar.hpp"
#include "cli/size_text.hpp"
#include "model/model.hpp"

namespace kvasir::cli {

result<void> add_worker(std::vector<net::endpoint>& workers, const std::string& text) {
    auto parsed = net::endpoint::parse(text);
    if (!parsed) return parsed.error();
    if (std::ranges::find(workers, *parsed) != workers.end())
        return error(errc::invalid_input, fmt::format("worker {} is named twice", text));
    workers.push_back(std::move(*parsed));
    return {};
}

void add_worker_option(CLI::App& app, std::vector<net::endpoint>& workers) {
    app.add_option_function<std::vector<std::string>>(
           "--worker",
           [&workers](const std::vector<std::string>& texts) {
               workers.clear();
               for (const std::string& text : texts)
                   if (auto added = add_worker(workers, text); !added)
                       throw CLI::ValidationError("--worker", added.error().message);
           },
           "A worker that holds experts of the model, HOST:PORT; once for each")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

result<double> parse_audit_share(const std::string& text) {
    double share = 0.0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), share);
    if (fault == std::errc() && end == text.data() + text.size() && share >= 0.0 && share <= 1.0) return share;
    return error(errc::invalid_input, fmt::format("--audit-share takes a number from 0 to 1, not {}", text));
}

namespace {

/// "2G" as 2000000000; empty for what is no size, or too large.
std::optional<std::uint64_t> size_from(std::string text) {
    try {
        // Replaces the text by its number of bytes, or says what is wrong, one way or the other.
        if (!CLI::AsSizeValue(true)(text).empty()) return std::nullopt;
    } catch (const CLI::ParseError&) {
        return std::nullopt;
    }
    std::uint64_t n_bytes = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), n_bytes);
    if (fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return n_bytes;
}

}  // namespace

result<std::uint64_t> parse_hot_experts(const std::string& text) {
    if (const auto n_bytes = size_from(text)) return *n_bytes;
    return error(errc::invalid_input, fmt::format("--hot-experts takes a size such as 500M or 2G, not {}", text));
}

void add_hot_experts_option(CLI::App& app, std::uint64_t& hot_experts_bytes) {
    app.add_option_function<std::string>(
        "--hot-experts",
        [&hot_experts_bytes](const std::string& text) {
            const auto parsed = parse_hot_experts(text);
            if (!parsed) throw CLI::ValidationError(parsed.error().message);
            hot_experts_bytes = *parsed;
        },
        "Keep so much of the most used experts in memory here, such as 2G, and compute them here when that is quicker");
}

void register_backend() {
    if (ggml_backend_reg_by_name("KVASIR") == nullptr) ggml_backend_register(backend::registry());
}

namespace {

result<swarm::options> options_for(const swarm_request& request) {
    const auto model = model::gguf_model::open(request.model_path);
    if (!model) return model.error();
    // A model without routed experts has nothing to share: better said now than found out later.
    if (auto experts = model::map_experts(*model); !experts) return experts.error();
    progress_bar progress("hashing " + model->path().filename().string());
    const auto manifest = model::manifest_for(*model, {0, std::ref(progress)});
    if (!manifest) return manifest.error();

    swarm::options options;
    options.workers = request.workers;
    options.model = manifest->model_digest();
    options.build = "kvasir " KVASIR_VERSION;
    options.audit_share = request.audit_share;
    options.hot_experts_bytes = request.hot_experts_bytes;
    return options;
}

/// What the swarm says goes to stderr, but not before joining has succeeded: if it fails, the error is the one line
/// that people get.
class announcer {
  public:
    announcer(std::string command, swarm_talk talk) : command_(std::move(command)), talk_(talk) {}

    void hear(const swarm::event& what) {
        if (talk_ == swarm_talk::nothing) return;
        if (talk_ == swarm_talk::warnings && what.level == swarm::event::severity::info) return;
        const std::lock_guard lock(mutex_);
        if (speaking_) {
            report(command_, what.text);
        } else {
            waiting_.push_back(what.text);
        }
    }

    void speak() {
        const std::lock_guard lock(mutex_);
        speaking_ = true;
        for (const std::string& text : waiting_)
            report(command_, text);
        waiting_.clear();
    }

  private:
    const std::string command_;
    const swarm_talk talk_;
    std::mutex mutex_;
    bool speaking_ = false;
    std::vector<std::string> waiting_;
};

/// The worker's own words where it gave any; they name it.
std::string complaint_about(const swarm::worker_statistics& worker) {
    if (worker.reason.empty()) return fmt::format("worker {} did not answer in time", worker.endpoint);
    if (worker.reason.find(worker.endpoint) != std::string::npos) return worker.reason;
    return fmt::format("worker {}: {}", worker.endpoint, worker.reason);
}

void print_hot_experts(const swarm::hot_statistics& hot) {
    if (hot.budget_bytes == 0) return;
    const double hit_rate =
        hot.pairs == 0 ? 0.0 : 100.0 * static_cast<double>(hot.hits) / static_cast<double>(hot.pairs);
    fmt::print("hot experts: {} of at most {} ({} experts), chosen for {:.1f}% of all rows, {} evicted\n",
               size_text(hot.size_bytes), size_text(hot.budget_bytes), hot.n_experts, hit_rate, hot.evictions);
    if (!hot.why_not_locked.empty()) fmt::print("hot experts: {}\n", hot.why_not_locked);
}

}  // namespace

result<void> join_swarm(const swarm_request& request) {
    register_backend();
    if (request.workers.empty()) return {};
    auto options = options_for(request);
    if (!options) return options.error();
    const auto announce = std::make_shared<announcer>(request.command, request.talk);
    options->on_event = [announce](const swarm::event& what) { announce->hear(what); };
    backend::configure(std::move(*options));
    backend::connect();
    for (const swarm::worker_statistics& worker : backend::swarm_statistics().workers) {
        if (worker.state == swarm::worker_state::refused) return error(errc::mismatch, complaint_about(worker));
        if (request.demand_all && worker.state != swarm::worker_state::live)
            return error(errc::closed, complaint_about(worker));
    }
    announce->speak();
    return {};
}

void print_swarm_table(const swarm::statistics& counts) {
    std::uint64_t all_rows = counts.local_pairs + counts.fallback_pairs;
    for (const swarm::worker_statistics& worker : counts.workers)
        all_rows += worker.pairs;
    const auto share = [&](std::uint64_t rows) {
        return all_rows == 0 ? 0.0 : 100.0 * static_cast<double>(rows) / static_cast<double>(all_rows);
    };
    fmt::print("{:<28} {:>9} {:>8} {:>10} {:>6} {:>10} {:>10}\n", "computed by", "state", "experts", "rows", "share",
               "sent", "received");
    for (const swarm::worker_statistics& worker : counts.workers) {
        const std::string who = worker.name.empty() ? worker.endpoint : worker.name + " " + worker.endpoint;
        fmt::print("{:<28} {:>9} {:>8} {:>10} {:>5.1f}% {:>10} {:>10}\n", who, swarm::name_of(worker.state),
                   worker.n_experts, worker.pairs, share(worker.pairs), size_text(worker.bytes_out),
                   size_text(worker.bytes_in));
    }
    fmt::print("{:<28} {:>9} {:>8} {:>10} {:>5.1f}%\n", "this machine, as planned", "", "", counts.local_pairs,
               share(counts.local_pairs));
    fmt::print("{:<28} {:>9} {:>8} {:>10} {:>5.1f}%\n", "this machine, as fallback", "", "", counts.fallback_pairs,
               share(counts.fallback_pairs));
    print_hot_experts(counts.hot);
}

}  // namespace kvasir::cli
