// Cutting a slice out of a model.
#include <fmt/core.h>
#include <gguf.h>

#include <algorithm>
#include <filesystem>

#include "base/file.hpp"
#include "model/gguf_header_writer.hpp"
#include "model/slice.hpp"
#include "model/slice_keys.hpp"

namespace kvasir::model {
namespace {

/// Copied between two looks at the progress callback.
constexpr std::size_t piece_size_bytes = 4U << 20;

/// One tensor of the slice: where its bytes come from, in order.
struct cut_tensor {
    const tensor_info* source = nullptr;
    std::array<std::int64_t, 4> ne{};
    std::vector<byte_span> pieces;
    std::uint64_t size_bytes = 0;
};

cut_tensor cut(const tensor_info& tensor, const held_layer& held) {
    const slab_layout slabs = slabs_of(tensor.name, tensor.ne, tensor.size_bytes());
    cut_tensor part;
    part.source = &tensor;
    part.ne = tensor.ne;
    part.ne[slabs.expert_dimension] = held.n_experts();
    for (const expert_range& range : held.ranges) {
        part.pieces.push_back(
            tensor.data.subspan(range.first.value * slabs.slab_size_bytes, range.count * slabs.slab_size_bytes));
        part.size_bytes += part.pieces.back().size();
    }
    return part;
}

std::vector<cut_tensor> cut_all(const expert_map& experts, const std::vector<held_layer>& held) {
    std::vector<cut_tensor> parts;
    for (const held_layer& layer : held)
        for (const routed_tensor& tensor : experts.find(layer.layer)->tensors)
            if (tensor)
                for (const tensor_info* part : tensor.parts())
                    parts.push_back(cut(*part, layer));
    return parts;
}

bool belongs_into_slice(std::string_view key) {
    // The vocabulary is most of a header and no worker needs it; split.* describes files that are not the slice's.
    return !key.starts_with("tokenizer.") && !key.starts_with("split.") && !key.starts_with(slice_keys::prefix);
}

void add_slice_keys(gguf_header_writer& header, const slice_info& info) {
    std::vector<std::uint32_t> layers;
    std::vector<std::uint32_t> firsts;
    std::vector<std::uint32_t> counts;
    std::vector<std::uint32_t> totals;
    for (const slice_layer& layer : info.layers)
        for (const expert_range& range : layer.held.ranges) {
            layers.push_back(layer.held.layer.value);
            firsts.push_back(range.first.value);
            counts.push_back(range.count);
            totals.push_back(layer.n_experts_in_model);
        }
    header.add_u32(slice_keys::version, slice_keys::current_version);
    header.add_text(slice_keys::model_digest, info.model_digest.hex());
    header.add_u32_array(slice_keys::layer, layers);
    header.add_u32_array(slice_keys::first, firsts);
    header.add_u32_array(slice_keys::count, counts);
    header.add_u32_array(slice_keys::n_experts, totals);
}

/// What would go wrong only after everything was copied, or would hurt the model.
result<void> check_target(const gguf_model& model, const std::filesystem::path& path, std::uint64_t size_bytes) {
    std::error_code ignored;
    const std::filesystem::path directory = path.has_parent_path() ? path.parent_path() : ".";
    if (!std::filesystem::is_directory(directory, ignored))
        return error(errc::io, fmt::format("cannot write {}: there is no directory {}; create it first", path.string(),
                                           directory.string()));
    const auto status = std::filesystem::status(path, ignored);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
        return error(errc::io, fmt::format("cannot write {}: there is something by that name that is no regular file",
                                           path.string()));
    for (const model_file& file : model.files())
        if (std::filesystem::equivalent(path, file.path, ignored))
            return error(errc::invalid_input,
                         fmt::format("{} is the model itself; give another name for the slice", path.string()));
    const auto space = std::filesystem::space(directory, ignored);
    // File systems that say nothing about their size are not asked.
    if (!ignored && space.capacity > 0 && space.available < size_bytes)
        return error(errc::io, fmt::format("cannot write {}: it needs {} bytes and {} are free there; free some or "
                                           "select fewer experts",
                                           path.string(), size_bytes, space.available));
    return {};
}

class slice_copier {
  public:
    slice_copier(atomic_file& out, std::uint64_t total_bytes, const progress_callback& progress)
        : out_(out), total_bytes_(total_bytes), progress_(progress) {}

    result<void> copy(byte_span bytes) {
        while (!bytes.empty()) {
            const byte_span piece = bytes.first(std::min(bytes.size(), piece_size_bytes));
            if (auto written = out_.write(piece); !written) return written;
            bytes = bytes.subspan(piece.size());
            done_bytes_ += piece.size();
            if (progress_ && !progress_(done_bytes_, total_bytes_))
                return error(errc::cancelled, "cancelled; nothing was written");
        }
        return {};
    }

  private:
    atomic_file& out_;
    std::uint64_t total_bytes_;
    const progress_callback& progress_;
    std::uint64_t done_bytes_ = 0;
};

}  // namespace

std::uint64_t slice_data_size_bytes(const expert_map& experts, const std::vector<held_layer>& held) {
    std::uint64_t sum = 0;
    for (const held_layer& layer : held)
        if (const expert_layer* found = experts.find(layer.layer))
            sum += std::uint64_t{layer.n_experts()} * found->expert_size_bytes();
    return sum;
}

result<slice_info> write_slice(const gguf_model& model, const expert_selection& selection,
                               const sha256_digest& model_digest, const std::filesystem::path& path,
                               const progress_callback& progress) {
    if (is_slice(model))
        return error(errc::unsupported,
                     fmt::format("{} is a slice itself; cut from the whole model", model.path().string()));
    const auto experts = map_experts(model);
    if (!experts) return experts.error();
    const auto held = selection.resolve(*experts);
    if (!held) return held.error();

    slice_info info;
    info.model_digest = model_digest;
    info.architecture = model.architecture();
    for (const held_layer& layer : *held)
        info.layers.push_back({layer, experts->find(layer.layer)->n_experts});

    gguf_header_writer header(
        static_cast<std::uint64_t>(model.integer(GGUF_KEY_GENERAL_ALIGNMENT).value_or(GGUF_DEFAULT_ALIGNMENT)));
    for (const metadata_entry& entry : model.metadata())
        if (belongs_into_slice(entry.key)) header.add_entry(entry);
    add_slice_keys(header, info);
    const std::vector<cut_tensor> parts = cut_all(*experts, *held);
    for (const cut_tensor& part : parts)
        header.add_tensor(part.source->name, part.source->type, part.ne, part.size_bytes);

    const std::vector<std::byte> header_bytes = header.finish();
    const std::uint64_t data_size_bytes = slice_data_size_bytes(*experts, *held);
    if (auto checked = check_target(model, path, header_bytes.size() + data_size_bytes); !checked)
        return checked.error();
    auto out = atomic_file::create(path);
    if (!out) return out.error();
    if (auto written = out->write(header_bytes); !written) return written.error();
    slice_copier copier(*out, data_size_bytes, progress);
    for (const cut_tensor& part : parts) {
        for (const byte_span piece : part.pieces)
            if (auto copied = copier.copy(piece); !copied) return copied.error();
        const std::vector<std::byte> padding(static_cast<std::size_t>(header.padding_after(part.size_bytes)));
        if (auto written = out->write(padding); !written) return written.error();
    }
    if (auto named = out->commit(); !named) return named.error();
    return info;
}

}  // namespace kvasir::model
