// The commands of the program `kvasir`. A command is one file with one function that declares its options, and one row
// in main.cpp's table.
//
// The function adds a subcommand to `app`, and lets it set `chosen` when the user picks it. main() runs what was chosen
// after everything was parsed; the action's value is the exit status. Actions print results on stdout and, on failure,
// one line on stderr (report()); they do not throw for what a user can cause.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string_view>

#include "base/error.hpp"

namespace kvasir::cli {

/// Runs a command with the options that were parsed; returns the exit status.
using command_action = std::function<int()>;

inline constexpr int exit_ok = 0;
inline constexpr int exit_failure = 1;  ///< the command could not do what it was asked to
inline constexpr int exit_usage = 2;    ///< the command line makes no sense

/// Prints `kvasir <command>: <message>` on stderr, on one line whatever the message holds.
void report(std::string_view command, std::string_view message);
/// The same for an error; returns exit_failure, so that an action can end with it.
int report(std::string_view command, const error& failure);

// One line per command, in the order of the table.
void add_inspect_command(CLI::App& app, command_action& chosen);
void add_slice_command(CLI::App& app, command_action& chosen);
void add_manifest_command(CLI::App& app, command_action& chosen);
void add_worker_command(CLI::App& app, command_action& chosen);
void add_generate_command(CLI::App& app, command_action& chosen);
void add_serve_command(CLI::App& app, command_action& chosen);  // where llama.cpp's server was built
void add_verify_command(CLI::App& app, command_action& chosen);
void add_demo_command(CLI::App& app, command_action& chosen);

}  // namespace kvasir::cli
