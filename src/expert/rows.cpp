// How hidden rows travel: which encoding loses nothing, and the encoding itself.
#include <fmt/core.h>
#include <ggml.h>

#include <cstring>

#include "expert/expert.hpp"
#include "expert/weight_types.hpp"

// Exported by libggml-base but declared in a private header. It is the very function that ggml's CPU backend uses for
// F32 rows on the way into a K-quant product, which is why rows quantised here give the same bits there.
extern "C" void quantize_row_q8_K_ref(const float* values, void* blocks, std::int64_t n_values);

namespace kvasir::expert {
namespace {

template <class Property>
bool any_reader_of_rows(const layer_weights& weights, Property has_property) {
    for (const expert_tensor* tensor : {&weights.gate, &weights.up, &weights.gate_up}) {
        if (!*tensor) continue;
        const auto traits = weight_type(tensor->type);
        if (!traits || has_property(*traits)) return true;
    }
    return false;
}

}  // namespace

row_encoding lossless_encoding(const layer_weights& weights) {
    const bool some_need_f32 =
        any_reader_of_rows(weights, [](const weight_type_traits& traits) { return !traits.q8_k_rows_are_lossless; });
    return some_need_f32 ? row_encoding::f32 : row_encoding::q8_k;
}

bool batch_sensitive(const layer_weights& weights) {
    const auto down = weight_type(weights.down.type);
    if (!down || down->batch_sensitive) return true;
    return any_reader_of_rows(weights, [](const weight_type_traits& traits) { return traits.batch_sensitive; });
}

result<void> encode_rows(row_encoding encoding, const std::byte* rows, std::size_t stride_bytes, std::int64_t n_values,
                         std::size_t n_rows, std::span<std::byte> out) {
    const auto row_bytes = row_size_bytes(encoding, static_cast<std::uint32_t>(n_values));
    if (!row_bytes)
        return error(errc::invalid_input,
                     fmt::format("rows of {} values cannot be encoded as {}", n_values, name_of(encoding)));
    if (out.size() / *row_bytes != n_rows || out.size() % *row_bytes != 0)
        return error(errc::internal, fmt::format("room of {} bytes for {} rows of {}", out.size(), n_rows, *row_bytes));
    for (std::size_t i = 0; i < n_rows; ++i) {
        const std::byte* source = rows + i * stride_bytes;
        std::byte* target = out.data() + i * *row_bytes;
        if (encoding == row_encoding::f32) {
            std::memcpy(target, source, *row_bytes);
        } else {
            quantize_row_q8_K_ref(reinterpret_cast<const float*>(source), target, n_values);
        }
    }
    return {};
}

}  // namespace kvasir::expert
