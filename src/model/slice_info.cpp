// Reading what a slice says about itself, and holding it to its tensors.
#include <fmt/core.h>

#include <algorithm>

#include "model/slice.hpp"
#include "model/slice_keys.hpp"

namespace kvasir::model {
namespace {

class slice_reader {
  public:
    explicit slice_reader(const gguf_model& slice) : slice_(slice) {}

    result<slice_info> read() {
        if (!is_slice(slice_))
            return error(errc::unsupported, fmt::format("{} is no slice (it has no {}); make one with `kvasir slice`",
                                                        slice_.path().string(), slice_keys::version));
        const auto version = slice_.integer(slice_keys::version);
        if (version != slice_keys::current_version)
            return error(errc::unsupported,
                         fmt::format("{} is a slice of format version {}, this program reads version {}; cut it again",
                                     slice_.path().string(), version.value_or(0), slice_keys::current_version));
        const auto digest = sha256_digest::from_hex(slice_.text(slice_keys::model_digest).value_or(""));
        if (!digest) return refuse(fmt::format("{} is no digest of 64 hexadecimal digits", slice_keys::model_digest));
        info_.model_digest = *digest;
        info_.architecture = slice_.architecture();
        if (auto read = read_ranges(); !read) return read.error();
        if (auto checked = check_tensors(); !checked) return checked.error();
        return std::move(info_);
    }

  private:
    error refuse(std::string_view what) const {
        return error(errc::invalid_input,
                     fmt::format("{} is no valid slice: {}; cut or download it again", slice_.path().string(), what));
    }

    result<void> read_ranges() {
        const auto layers = slice_.integers(slice_keys::layer);
        const auto firsts = slice_.integers(slice_keys::first);
        const auto counts = slice_.integers(slice_keys::count);
        const auto totals = slice_.integers(slice_keys::n_experts);
        if (!layers || !firsts || !counts || !totals)
            return refuse(
                fmt::format("{} layer, first, count and n_experts must be arrays of integers", slice_keys::prefix));
        if (layers->empty() || firsts->size() != layers->size() || counts->size() != layers->size() ||
            totals->size() != layers->size())
            return refuse(fmt::format("{} layer, first, count and n_experts must have one value per range each",
                                      slice_keys::prefix));
        for (std::size_t i = 0; i < layers->size(); ++i)
            if (auto added = add_range((*layers)[i], (*firsts)[i], (*counts)[i], (*totals)[i]); !added) return added;
        return {};
    }

    result<void> add_range(std::int64_t layer, std::int64_t first, std::int64_t count, std::int64_t n_experts) {
        if (layer < 0 || layer > max_layer_number) return refuse(fmt::format("it claims a range of layer {}", layer));
        if (n_experts < 1 || n_experts > max_experts_per_layer || count < 1 || count > n_experts || first < 0 ||
            first > n_experts - count)
            return refuse(fmt::format("it claims {} experts from {} on of layer {}, which has {}", count, first, layer,
                                      n_experts));
        const layer_id id{static_cast<std::uint32_t>(layer)};
        const expert_range range{expert_id{static_cast<std::uint32_t>(first)}, static_cast<std::uint32_t>(count)};
        auto& held = info_.layers;
        if (held.empty() || id > held.back().held.layer) {
            held.push_back({held_layer{id, {range}}, static_cast<std::uint32_t>(n_experts)});
            return {};
        }
        slice_layer& last = held.back();
        const expert_range& before = last.held.ranges.back();
        if (id < last.held.layer || range.first.value <= before.first.value + before.count ||
            last.n_experts_in_model != n_experts)
            return refuse(fmt::format("its ranges do not ascend at layer {}, expert {}", layer, first));
        last.held.ranges.push_back(range);
        return {};
    }

    result<void> check_tensors() const {
        const auto experts = map_experts(slice_);
        if (!experts) return experts.error();
        for (const tensor_info& tensor : slice_.tensors())
            if (!parse_expert_tensor_name(tensor.name))
                return refuse(fmt::format("it holds tensor {}, which belongs to no expert", tensor.name));
        if (experts->layers.size() != info_.layers.size())
            return refuse(fmt::format("it claims {} layers and holds {}", info_.layers.size(), experts->layers.size()));
        for (std::size_t i = 0; i < info_.layers.size(); ++i) {
            const expert_layer& actual = experts->layers[i];
            const held_layer& claimed = info_.layers[i].held;
            if (actual.layer != claimed.layer || actual.n_experts != claimed.n_experts())
                return refuse(fmt::format("it claims {} experts of layer {} and holds {} of layer {}",
                                          claimed.n_experts(), claimed.layer.value, actual.n_experts,
                                          actual.layer.value));
        }
        return {};
    }

    const gguf_model& slice_;
    slice_info info_;
};

}  // namespace

const slice_layer* slice_info::find(layer_id layer) const {
    const auto found =
        std::ranges::find_if(layers, [layer](const slice_layer& held) { return held.held.layer == layer; });
    return found == layers.end() ? nullptr : &*found;
}

std::uint64_t slice_info::n_experts() const {
    std::uint64_t sum = 0;
    for (const slice_layer& layer : layers)
        sum += layer.held.n_experts();
    return sum;
}

std::vector<held_layer> slice_info::held() const {
    std::vector<held_layer> all;
    for (const slice_layer& layer : layers)
        all.push_back(layer.held);
    return all;
}

bool is_slice(const gguf_model& model) {
    return model.has_key(slice_keys::version);
}

result<slice_info> read_slice_info(const gguf_model& slice) {
    return slice_reader(slice).read();
}

}  // namespace kvasir::model
