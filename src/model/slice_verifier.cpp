// Holding a slice's bytes to the digests of the model it was cut from.
#include <fmt/core.h>

#include "model/manifest.hpp"
#include "model/slab_hasher.hpp"
#include "model/slice.hpp"

namespace kvasir::model {
namespace {

class slice_verifier {
  public:
    slice_verifier(const gguf_model& slice, const manifest& of_model) : slice_(slice), manifest_(of_model) {}

    result<void> verify(const manifest_options& options) {
        const auto info = read_slice_info(slice_);
        if (!info) return info.error();
        if (info->model_digest != manifest_.model_digest())
            return error(errc::mismatch,
                         fmt::format("{} was cut from model {}, the manifest is of model {}", slice_.path().string(),
                                     info->model_digest.hex(), manifest_.model_digest().hex()));
        if (auto checked = check_complete(*info); !checked) return checked;
        for (const tensor_info& tensor : slice_.tensors())
            if (auto added = add_tensor(tensor, *info); !added) return added;
        const auto digests = hash_slabs(slabs_, options.n_threads, options.progress);
        if (!digests) return digests.error();
        for (std::size_t i = 0; i < digests->size(); ++i)
            if ((*digests)[i] != *expected_[i].digest)
                return refuse(fmt::format("tensor {}, expert {} has digest {}, the manifest says {}",
                                          *expected_[i].tensor, expected_[i].expert.value, (*digests)[i].hex(),
                                          expected_[i].digest->hex()));
        return {};
    }

  private:
    struct expected_slab {
        const std::string* tensor = nullptr;
        expert_id expert;
        const sha256_digest* digest = nullptr;
    };

    error refuse(std::string_view what) const {
        return error(errc::mismatch, fmt::format("{}: {}; the slice is damaged, cut or download it again",
                                                 slice_.path().string(), what));
    }

    /// An expert without its bias would compute something else.
    result<void> check_complete(const slice_info& info) const {
        for (const manifest_tensor& tensor : manifest_.tensors()) {
            const auto name = parse_expert_tensor_name(tensor.name);
            if (name && info.find(name->layer) != nullptr && slice_.find_tensor(tensor.name) == nullptr)
                return refuse(fmt::format("tensor {} is missing", tensor.name));
        }
        return {};
    }

    result<void> add_tensor(const tensor_info& tensor, const slice_info& info) {
        const manifest_tensor* original = manifest_.find_tensor(tensor.name);
        const auto name = parse_expert_tensor_name(tensor.name);
        const slice_layer* layer = name ? info.find(name->layer) : nullptr;
        if (original == nullptr || layer == nullptr)
            return refuse(fmt::format("tensor {} is not in the manifest", tensor.name));
        const slab_layout slabs = slabs_of(tensor.name, tensor.ne, tensor.size_bytes());
        std::array<std::int64_t, 4> shape = tensor.ne;
        shape[slabs.expert_dimension] = layer->n_experts_in_model;
        if (shape != original->ne || tensor.type != original->type ||
            original->slabs.size() != layer->n_experts_in_model || slabs.n_slabs != layer->held.n_experts())
            return refuse(fmt::format("tensor {} has another type or shape than in the manifest", tensor.name));
        std::uint64_t offset = 0;
        for (const expert_range& range : layer->held.ranges)
            for (std::uint32_t i = 0; i < range.count; ++i) {
                const expert_id expert{range.first.value + i};
                expected_.push_back({&tensor.name, expert, &original->slabs[expert.value]});
                slabs_.push_back(tensor.data.subspan(static_cast<std::size_t>(offset),
                                                     static_cast<std::size_t>(slabs.slab_size_bytes)));
                offset += slabs.slab_size_bytes;
            }
        return {};
    }

    const gguf_model& slice_;
    const manifest& manifest_;
    std::vector<byte_span> slabs_;
    std::vector<expected_slab> expected_;  // beside slabs_
};

}  // namespace

result<void> verify_slice(const gguf_model& slice, const manifest& of_model, const manifest_options& options) {
    return slice_verifier(slice, of_model).verify(options);
}

}  // namespace kvasir::model
