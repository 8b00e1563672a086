// kvasir serve: llama.cpp's own server with the swarm behind it. Every flag that is not ours goes to it unread.
#include <fmt/core.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.hpp"
#include "cli/commands.hpp"
#include "cli/ggml_start.hpp"
#include "cli/swarm_setup.hpp"

// llama.cpp's server library has no header for its entry point.
int llama_server(int argc, char** argv);

namespace kvasir::cli {
namespace {

constexpr std::string_view command = "serve";

struct serve_arguments {
    std::vector<net::endpoint> workers;
    double audit_share = swarm::default_audit_share;
    std::uint64_t hot_experts_bytes = 0;
    std::string model;
    std::vector<std::string> for_server;
};

/// The value of `--name VALUE` or `--name=VALUE` at `i`, moving `i` over it; empty when arguments[i] is something else.
result<std::optional<std::string>> value_of(const std::vector<std::string>& arguments, std::size_t& i,
                                            std::string_view name) {
    const std::string_view argument = arguments[i];
    if (argument.starts_with(name) && argument.size() > name.size() && argument[name.size()] == '=')
        return std::optional<std::string>(argument.substr(name.size() + 1));
    if (argument != name) return std::optional<std::string>();
    if (i + 1 == arguments.size()) return error(errc::invalid_input, fmt::format("{} needs a value", name));
    return std::optional<std::string>(arguments[++i]);
}

result<serve_arguments> read_arguments(const std::vector<std::string>& given) {
    serve_arguments read;
    if (const char* model = std::getenv("LLAMA_ARG_MODEL"); model != nullptr) read.model = model;
    for (std::size_t i = 0; i < given.size(); ++i) {
        const std::size_t at = i;
        const auto worker = value_of(given, i, "--worker");
        if (!worker) return worker.error();
        if (*worker) {
            if (auto added = add_worker(read.workers, **worker); !added) return added.error();
            continue;
        }
        const auto share = value_of(given, i, "--audit-share");
        if (!share) return share.error();
        if (*share) {
            const auto parsed = parse_audit_share(**share);
            if (!parsed) return parsed.error();
            read.audit_share = *parsed;
            continue;
        }
        const auto hot_experts = value_of(given, i, "--hot-experts");
        if (!hot_experts) return hot_experts.error();
        if (*hot_experts) {
            const auto parsed = parse_hot_experts(**hot_experts);
            if (!parsed) return parsed.error();
            read.hot_experts_bytes = *parsed;
            continue;
        }
        read.for_server.push_back(given[at]);
        if ((given[at] == "-m" || given[at] == "--model") && at + 1 < given.size()) read.model = given[at + 1];
    }
    return read;
}

bool asks_for_help(const std::vector<std::string>& given) {
    for (const std::string& argument : given)
        if (argument == "-h" || argument == "--help" || argument == "--usage") return true;
    return false;
}

void print_help() {
    fmt::print(
        "kvasir serve -m MODEL [--worker HOST:PORT]... [--audit-share SHARE] [--hot-experts SIZE]\n"
        "             [any llama-server option]\n"
        "\n"
        "Serves MODEL with llama.cpp's server (OpenAI-compatible API, streaming). Experts that the\n"
        "workers hold are computed there, all others here.\n"
        "\n"
        "  --worker HOST:PORT     a worker that holds experts of the model; once for each\n"
        "  --audit-share SHARE    the share of the workers' results that is computed again here\n"
        "                         and compared, 0 to 1 (default 0.01)\n"
        "  --hot-experts SIZE     keep so much of the most used experts in memory here, such as 2G,\n"
        "                         and compute them here when that is quicker (default 0)\n"
        "\n"
        "Everything else goes to llama.cpp's server, whose options follow.\n\n");
}

int run_server(const std::vector<std::string>& for_server) {
    std::vector<std::string> arguments = {"kvasir serve"};
    arguments.insert(arguments.end(), for_server.begin(), for_server.end());
    std::vector<char*> pointers;
    for (std::string& argument : arguments)
        pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    return llama_server(static_cast<int>(arguments.size()), pointers.data());
}

int serve(const std::vector<std::string>& given) {
    if (asks_for_help(given)) print_help();
    const auto arguments = read_arguments(given);
    if (!arguments) {
        report(command, arguments.error());
        return exit_usage;
    }
    if (!asks_for_help(given)) {
        if (!arguments->workers.empty() && arguments->model.empty()) {
            report(command, "name the model with -m: workers are joined for a model on this machine's disk");
            return exit_usage;
        }
        start_ggml();
        const swarm_request request{std::string(command),
                                    arguments->model,
                                    arguments->workers,
                                    swarm_talk::everything,
                                    false,
                                    arguments->audit_share,
                                    arguments->hot_experts_bytes};
        if (auto joined = join_swarm(request); !joined) return report(command, joined.error());
    }
    const int status = run_server(arguments->for_server);
    backend::reset();
    return status;
}

}  // namespace

void add_serve_command(CLI::App& app, command_action& chosen) {
    const auto given = std::make_shared<std::vector<std::string>>();
    CLI::App* sub = app.add_subcommand("serve", "Serve a model over HTTP with its experts spread over workers");
    // All of the line is read by serve() itself: llama-server's short options (-mg, -md, …) would be taken apart.
    sub->prefix_command();
    sub->set_help_flag();
    sub->callback([sub, given, &chosen] {
        *given = sub->remaining();
        chosen = [given] { return serve(*given); };
    });
}

}  // namespace kvasir::cli
