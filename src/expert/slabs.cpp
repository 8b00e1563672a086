#include <ggml.h>

#include "expert/expert.hpp"

namespace kvasir::expert {

std::vector<byte_span> slabs_of(const layer_weights& weights, std::int64_t expert) {
    std::vector<byte_span> slabs;
    for (const expert_tensor* tensor : {&weights.gate, &weights.up, &weights.gate_up, &weights.down}) {
        if (!*tensor) continue;
        const std::size_t slab_bytes =
            ggml_row_size(static_cast<ggml_type>(tensor->type), tensor->n_in) * static_cast<std::size_t>(tensor->n_out);
        slabs.emplace_back(tensor->weight + static_cast<std::size_t>(expert) * slab_bytes, slab_bytes);
    }
    return slabs;
}

}  // namespace kvasir::expert
