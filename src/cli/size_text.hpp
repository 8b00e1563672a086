// Sizes for people.
#pragma once

#include <cstdint>
#include <string>

namespace kvasir::cli {

/// "999 bytes", "5.3 MB", "77.6 GB": decimal units, as in disk and network sizes.
std::string size_text(std::uint64_t size_bytes);

/// "5.3 MB", or "5.3 to 6.1 MB"-style when the two differ.
std::string size_range_text(std::uint64_t min_bytes, std::uint64_t max_bytes);

/// "1 file", "3 files".
std::string count_text(std::uint64_t count, const char* noun);

}  // namespace kvasir::cli
