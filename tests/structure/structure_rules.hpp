// The rules that keep the source tree habitable, as data and one function: which part may include which, where headers
// of other projects may be used, and how long a file may be. docs/architecture.md gives the reasons.
//
// It reads text, not C++: an include line inside a block comment counts as one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace kvasir::structure {

struct violation {
    std::string file;      ///< relative to the root, with forward slashes
    std::size_t line = 0;  ///< from 1; 0 where the whole file is meant
    std::string message;   ///< what is wrong and what would be right
};

struct report {
    std::vector<violation> violations;
    std::size_t n_files = 0;         ///< C++ files that were read
    std::vector<std::string> parts;  ///< folders of src that hold C++ files, sorted
};

/// Checks all C++ files under src, tests, fuzz and bench of `root`. Include rules hold for src; length and include
/// guards for all. Throws std::runtime_error when there is no src or a file cannot be read.
report check(const std::filesystem::path& root);

}  // namespace kvasir::structure
