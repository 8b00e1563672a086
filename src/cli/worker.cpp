// kvasir worker: serves the experts of a slice until it is told to stop.
//
// On stdout, one line each (flushed): that it listens, what it holds, every backbone that comes, goes or is turned away
// with its counts, and a summary at the end. With --json every line is one JSON object.
#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "base/file.hpp"
#include "cli/commands.hpp"
#include "cli/ggml_start.hpp"
#include "cli/progress_bar.hpp"
#include "cli/size_text.hpp"
#include "cli/stop_signals.hpp"
#include "node/worker.hpp"

namespace kvasir::cli {
namespace {

constexpr std::string_view command = "worker";

struct worker_arguments {
    std::string slice;
    std::string listen = "127.0.0.1:0";
    std::string manifest;
    std::string name;
    std::string port_file;
    int n_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    std::optional<double> max_rows_per_second;
    int drain_timeout_s = 10;
    bool skip_check = false;
    bool json = false;
};

/// Writes the lines, in one form or the other. From any thread.
class log_lines {
  public:
    explicit log_lines(bool json) : json_(json) {}

    /// Others' lines wait as long as the lock lives: that it listens is said first.
    std::unique_lock<std::recursive_mutex> hold() const { return std::unique_lock(mutex_); }

    void listening(const node::worker& serving) const {
        const std::string address = serving.local().text();
        line({{"event", "listening"}, {"address", address}, {"port", serving.local().port}},
             fmt::format("listening on {}", address));
    }

    void holding(const node::held_slice& held) const {
        constexpr std::string_view checks[] = {"checked", "not checked, by request", "not checked, no manifest given"};
        const auto check = static_cast<std::size_t>(held.check());
        constexpr std::string_view check_names[] = {"checked", "skipped", "no manifest"};
        line({{"event", "holding"},
              {"experts", held.n_experts()},
              {"layers", held.layers().size()},
              {"bytes", held.size_bytes()},
              {"model_digest", held.model_digest().hex()},
              {"whole_model", held.is_whole_model()},
              {"check", check_names[check]}},
             fmt::format("holding {} in {}, {} of model {} ({})", count_text(held.n_experts(), "expert"),
                         count_text(held.layers().size(), "layer"), size_text(held.size_bytes()),
                         held.model_digest().hex(), checks[check]));
    }

    void happened(const node::worker_event& event) const {
        using kind = node::worker_event::kind;
        const std::string who = event.name.empty() ? event.remote : fmt::format("{} ({})", event.remote, event.name);
        nlohmann::json object = {{"remote", event.remote}, {"name", event.name}};
        if (event.what == kind::connected) {
            object["event"] = "connected";
            line(object, fmt::format("connected: {}", who));
            return;
        }
        object["reason"] = event.reason;
        if (event.what == kind::rejected) {
            object["event"] = "rejected";
            line(object, fmt::format("rejected: {}: {}", who, event.reason));
            return;
        }
        object["event"] = "closed";
        object["requests"] = event.requests;
        object["rows"] = event.rows;
        object["bytes_in"] = event.bytes_in;
        object["bytes_out"] = event.bytes_out;
        line(object, fmt::format("closed: {}: requests {} rows {} bytes in {} out {}: {}", who, event.requests,
                                 event.rows, event.bytes_in, event.bytes_out, event.reason));
    }

    void leaving() const { line({{"event", "draining"}}, "draining: no new requests are taken"); }

    void summary(const node::worker_totals& totals, bool orderly) const {
        line({{"event", "summary"},
              {"connections", totals.connections},
              {"requests", totals.requests},
              {"rows", totals.rows},
              {"bytes_in", totals.bytes_in},
              {"bytes_out", totals.bytes_out},
              {"orderly", orderly}},
             fmt::format("served: connections {} requests {} rows {} bytes in {} out {}{}", totals.connections,
                         totals.requests, totals.rows, totals.bytes_in, totals.bytes_out,
                         orderly ? "" : "; some requests were left unanswered at the deadline"));
    }

  private:
    void line(const nlohmann::json& object, const std::string& text) const {
        const std::scoped_lock lock(mutex_);
        fmt::print("{}\n", json_ ? object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) : text);
        std::fflush(stdout);
    }

    const bool json_;
    mutable std::recursive_mutex mutex_;
};

result<void> write_port_file(const std::string& path, std::uint16_t port) {
    if (path.empty()) return {};
    auto file = atomic_file::create(path);
    if (!file) return file.error();
    if (auto written = file->write(fmt::format("{}\n", port)); !written) return written.error();
    return file->commit();
}

result<node::held_slice> load(const worker_arguments& arguments) {
    progress_bar progress("checking " + arguments.slice);
    return node::held_slice::load({.path = arguments.slice,
                                   .manifest = arguments.manifest,
                                   .skip_check = arguments.skip_check,
                                   .progress = std::ref(progress)});
}

int run(const worker_arguments& arguments) {
    const auto listen = net::endpoint::parse(arguments.listen);
    if (!listen) {
        report(command, listen.error().message);
        return exit_usage;
    }
    const stop_signals stop;
    // Whoever read our output may go; a worker serves on.
    ::signal(SIGPIPE, SIG_IGN);
    start_ggml();

    auto held = load(arguments);
    if (!held) return report(command, held.error());
    const log_lines lines(arguments.json);
    node::worker_options options;
    options.listen = *listen;
    options.name = arguments.name;
    options.build = fmt::format("kvasir {}, llama.cpp {}", KVASIR_VERSION, KVASIR_LLAMA_CPP_VERSION);
    options.n_threads = arguments.n_threads;
    options.max_rows_per_second = arguments.max_rows_per_second;
    options.on_event = [&lines](const node::worker_event& event) { lines.happened(event); };
    auto quiet = lines.hold();
    const auto serving = node::worker::start(*std::move(held), std::move(options));
    if (!serving) return report(command, serving.error());
    if (auto written = write_port_file(arguments.port_file, (*serving)->local().port); !written) {
        return report(command, written.error());
    }
    lines.listening(**serving);
    lines.holding((*serving)->held());
    quiet.unlock();

    stop.wait();
    stop.let_through();
    lines.leaving();
    const bool orderly = (*serving)->shut_down(std::chrono::seconds(arguments.drain_timeout_s));
    lines.summary((*serving)->totals(), orderly);
    return exit_ok;
}

}  // namespace

void add_worker_command(CLI::App& app, command_action& chosen) {
    const auto arguments = std::make_shared<worker_arguments>();
    CLI::App* sub = app.add_subcommand("worker", "Serve the experts of a slice to backbones");
    sub->add_option("--slice", arguments->slice, "The slice to serve, or a whole model")->required();
    sub->add_option("--listen", arguments->listen, "Where to listen, host:port; port 0 is any free one")
        ->capture_default_str();
    sub->add_option("--threads", arguments->n_threads, "Threads that compute")
        ->check(CLI::Range(1, 512))
        ->capture_default_str();
    sub->add_option("--max-rows-per-second", arguments->max_rows_per_second,
                    "Compute no more (row, expert) results per second than this (default: as many as it can)")
        ->check(CLI::Range(0.1, 1e9));
    sub->add_option("--name", arguments->name, "What the worker calls itself");
    auto* manifest = sub->add_option("--manifest", arguments->manifest,
                                     "The model's manifest, to check the slice's bytes against (default: the one "
                                     "beside the slice, SLICE.manifest.json, if it is there)");
    sub->add_flag("--skip-slice-check", arguments->skip_check, "Serve the slice's bytes as they are")
        ->excludes(manifest);
    sub->add_option("--port-file", arguments->port_file, "Write the port to this file when ready");
    sub->add_option("--drain-timeout", arguments->drain_timeout_s,
                    "Seconds that requests in flight have to be answered when the worker is stopped")
        ->check(CLI::Range(0, 3600))
        ->capture_default_str();
    sub->add_flag("--json", arguments->json, "Print every line as a JSON object");
    sub->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace kvasir::cli
