#include <fmt/core.h>

#include <cstdio>
#include <string>

#include "cli/commands.hpp"

namespace kvasir::cli {

void report(std::string_view command, std::string_view message) {
    // File names and what a peer said may hold line ends and escape sequences; a terminal must not act on them.
    std::string line(message);
    for (char& character : line) {
        const auto code = static_cast<unsigned char>(character);
        if (code < 0x20 || code == 0x7f) character = ' ';
    }
    if (command.empty()) {
        fmt::print(stderr, "kvasir: {}\n", line);
    } else {
        fmt::print(stderr, "kvasir {}: {}\n", command, line);
    }
}

int report(std::string_view command, const error& failure) {
    report(command, failure.message);
    return exit_failure;
}

}  // namespace kvasir::cli
