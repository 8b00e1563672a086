// Runs a program to its end and keeps what it printed.
#pragma once

#include <string>
#include <vector>

namespace kvasir::test_support {

struct program_result {
    int status = -1;  ///< exit status; 128 + signal when a signal ended it
    std::string out;
    std::string err;
};

/// `words[0]` is the program's path. `environment` holds NAME=value additions to this process's. Throws when the
/// program cannot be started.
program_result run_program(const std::vector<std::string>& words, const std::vector<std::string>& environment = {});

}  // namespace kvasir::test_support
