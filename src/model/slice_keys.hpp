// The metadata keys of a slice; what they mean is said at the top of slice.hpp.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvasir::model::slice_keys {

inline constexpr std::string_view prefix = "kvasir.slice.";
inline constexpr std::string_view version = "kvasir.slice.version";
inline constexpr std::string_view model_digest = "kvasir.slice.model_digest";
inline constexpr std::string_view layer = "kvasir.slice.layer";
inline constexpr std::string_view first = "kvasir.slice.first";
inline constexpr std::string_view count = "kvasir.slice.count";
inline constexpr std::string_view n_experts = "kvasir.slice.n_experts";

inline constexpr std::uint32_t current_version = 1;

}  // namespace kvasir::model::slice_keys
