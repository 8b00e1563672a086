// The program `kvasir`: a table of commands. What a command does is in its own file; here are only parsing and exit
// status.
#include <fmt/core.h>
#include <ggml.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/commands.hpp"

namespace kvasir::cli {
namespace {

using add_command = void (*)(CLI::App& app, command_action& chosen);

// One row per command.
constexpr add_command commands[] = {
    add_inspect_command, add_slice_command, add_manifest_command, add_worker_command, add_generate_command,
#ifdef KVASIR_HAS_SERVER
    add_serve_command,
#endif
    add_verify_command,  add_demo_command,
};

std::string version_text() {
    return fmt::format("kvasir {}\nllama.cpp {}, ggml {} ({})", KVASIR_VERSION, KVASIR_LLAMA_CPP_VERSION,
                       ggml_version(), ggml_commit());
}

/// The name of the subcommand the user was in when parsing ended, or nothing.
std::string name_of_used_command(const CLI::App& app) {
    const std::vector<CLI::App*> used = app.get_subcommands();
    return used.empty() ? std::string() : used.back()->get_name();
}

/// Help and version go to stdout with status 0; everything else is one line on stderr with status 2.
int end_parsing(const CLI::App& app, const CLI::ParseError& stop, int argc, char** argv) {
    if (stop.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(stop);
    const std::string command = name_of_used_command(app);
    if (command.empty() && argc > 1 && argv[1][0] != '-') {
        report("", fmt::format("there is no command \"{}\" (see `kvasir --help`)", argv[1]));
        return exit_usage;
    }
    const std::string help = command.empty() ? "kvasir --help" : "kvasir " + command + " --help";
    report(command, fmt::format("{} (see `{}`)", stop.what(), help));
    return exit_usage;
}

int run(int argc, char** argv) {
    CLI::App app("Serves Mixture-of-Experts models with experts spread over many machines.", "kvasir");
    app.set_version_flag("--version", version_text(), "Print the versions of kvasir, llama.cpp and ggml");
    app.require_subcommand(1);
    command_action chosen;
    for (const add_command add : commands)
        add(app, chosen);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& stop) {
        return end_parsing(app, stop, argc, argv);
    }
    const std::string command = name_of_used_command(app);
    try {
        const int status = chosen();
        // A full disk or a closed pipe behind stdout is a failure too.
        if (std::fflush(stdout) != 0) {
            report(command, "cannot write the output");
            return exit_failure;
        }
        return status;
    } catch (const std::bad_alloc&) {
        report(command, "out of memory");
    } catch (const std::exception& failure) {
        report(command, failure.what());
    }
    return exit_failure;
}

}  // namespace
}  // namespace kvasir::cli

int main(int argc, char** argv) {
    return kvasir::cli::run(argc, argv);
}
