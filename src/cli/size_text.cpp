#include "cli/size_text.hpp"

#include <fmt/core.h>

namespace kvasir::cli {

std::string size_text(std::uint64_t size_bytes) {
    if (size_bytes < 1'000) return count_text(size_bytes, "byte");
    constexpr const char* units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    double size = static_cast<double>(size_bytes) / 1'000.0;
    std::size_t unit = 0;
    // 999.95 would be printed as 1000.0.
    while (size >= 999.95 && unit + 1 < std::size(units)) {
        size /= 1'000.0;
        ++unit;
    }
    return fmt::format("{:.1f} {}", size, units[unit]);
}

std::string size_range_text(std::uint64_t min_bytes, std::uint64_t max_bytes) {
    const std::string low = size_text(min_bytes);
    const std::string high = size_text(max_bytes);
    return low == high ? low : fmt::format("{} to {}", low, high);
}

std::string count_text(std::uint64_t count, const char* noun) {
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace kvasir::cli
