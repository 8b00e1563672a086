// What this ggml's CPU backend can multiply, and what is proven about each weight type.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace kvasir::expert {

struct weight_type_traits {
    std::int32_t type = 0;  ///< a ggml_type
    /// Rows quantised to Q8_K beforehand give the bits that F32 rows give (tests/expert_test.cpp proves it per type).
    bool q8_k_rows_are_lossless = false;
    /// The kernel changes with the number of rows per expert (ggml-cpu/iqp.cpp: from 8 rows on, a panel kernel).
    bool batch_sensitive = false;
};

/// All weight types that MUL_MAT_ID accepts.
std::span<const weight_type_traits> weight_types();
/// Empty for types that ggml's CPU backend cannot multiply by (Q8_1, Q8_K, integers, F64) and for unknown numbers.
std::optional<weight_type_traits> weight_type(std::int32_t type);

}  // namespace kvasir::expert
