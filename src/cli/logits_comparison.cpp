#include "cli/logits_comparison.hpp"

#include <fmt/core.h>

#include <bit>
#include <cmath>
#include <limits>

namespace kvasir::cli {

void logits_comparison::add(std::span<const float> expected, std::span<const float> actual) {
    n_values_ += expected.size();
    for (std::size_t i = 0; i < expected.size(); ++i) {
        if (std::bit_cast<std::uint32_t>(expected[i]) == std::bit_cast<std::uint32_t>(actual[i])) continue;
        ++n_differing_;
        const double difference = std::abs(static_cast<double>(expected[i]) - static_cast<double>(actual[i]));
        max_difference_ =
            std::fmax(max_difference_, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
    }
}

void print_comparison_header() {
    fmt::print("{:<34} {:>8} {:>8} {:>12} {:>12} {:>14}\n", "", "tokens", "batches", "values", "differing",
               "max difference");
}

void print_comparison(const logits_comparison& comparison) {
    fmt::print("{:<34} {:>8} {:>8} {:>12} {:>12} {:>14.3g}\n", comparison.name(), comparison.n_tokens(),
               comparison.n_batches(), comparison.n_values(), comparison.n_differing(), comparison.max_difference());
}

}  // namespace kvasir::cli
