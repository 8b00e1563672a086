#include "expert/weight_types.hpp"

#include <ggml.h>

#include <algorithm>
#include <array>

namespace kvasir::expert {
namespace {

constexpr weight_type_traits plain(ggml_type type) {
    return {type, false, false};
}
constexpr weight_type_traits k_quant(ggml_type type) {
    return {type, true, false};
}
constexpr weight_type_traits i_quant(ggml_type type) {
    return {type, false, true};
}

// IQ1_M and IQ4_XS are counted among the batch-sensitive types even where a ggml build has no panel kernel for them: it
// costs a little freedom in cutting calls, and a build that has one stays exact.
constexpr std::array all_types = {
    plain(GGML_TYPE_F32),       plain(GGML_TYPE_F16),     plain(GGML_TYPE_BF16),     plain(GGML_TYPE_Q1_0),
    plain(GGML_TYPE_Q2_0),      plain(GGML_TYPE_Q4_0),    plain(GGML_TYPE_Q4_1),     plain(GGML_TYPE_Q5_0),
    plain(GGML_TYPE_Q5_1),      plain(GGML_TYPE_Q8_0),    plain(GGML_TYPE_MXFP4),    plain(GGML_TYPE_NVFP4),
    plain(GGML_TYPE_TQ1_0),     plain(GGML_TYPE_TQ2_0),   plain(GGML_TYPE_IQ4_NL),   k_quant(GGML_TYPE_Q2_K),
    k_quant(GGML_TYPE_Q3_K),    k_quant(GGML_TYPE_Q4_K),  k_quant(GGML_TYPE_Q5_K),   k_quant(GGML_TYPE_Q6_K),
    i_quant(GGML_TYPE_IQ1_S),   i_quant(GGML_TYPE_IQ1_M), i_quant(GGML_TYPE_IQ2_S),  i_quant(GGML_TYPE_IQ2_XS),
    i_quant(GGML_TYPE_IQ2_XXS), i_quant(GGML_TYPE_IQ3_S), i_quant(GGML_TYPE_IQ4_XS), i_quant(GGML_TYPE_IQ3_XXS),
};

}  // namespace

std::span<const weight_type_traits> weight_types() {
    return all_types;
}

std::optional<weight_type_traits> weight_type(std::int32_t type) {
    const auto found = std::ranges::find(all_types, type, &weight_type_traits::type);
    if (found == all_types.end()) return std::nullopt;
    return *found;
}

}  // namespace kvasir::expert
