// Making a manifest, and the digest of what is in it.
#include "model/manifest.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>

#include "model/slab_hasher.hpp"
#include "model/slice.hpp"

namespace kvasir::model {
namespace {

void update_u64(sha256& hasher, std::uint64_t value) {
    std::vector<std::byte> bytes;
    byte_writer(bytes).write(value);
    hasher.update(bytes);
}

void update_text(sha256& hasher, std::string_view text) {
    update_u64(hasher, text.size());
    hasher.update(text);
}

sha256_digest digest_of_metadata(const gguf_model& model) {
    std::vector<metadata_entry> entries;
    for (const metadata_entry& entry : model.metadata())
        if (!entry.key.starts_with("split.")) entries.push_back(entry);
    std::ranges::sort(entries, {}, &metadata_entry::key);
    sha256 hasher;
    for (const metadata_entry& entry : entries) {
        update_text(hasher, entry.key);
        hasher.update(entry.value);
    }
    return hasher.finish();
}

/// Still the size and time it had when it was mapped.
bool is_unchanged(const model_file& file) {
    struct stat status {};
    return ::stat(file.path.c_str(), &status) == 0 && static_cast<std::uint64_t>(status.st_size) == file.size_bytes &&
           std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec == file.modified_ns;
}

manifest_tensor describe(const tensor_info& tensor) {
    manifest_tensor described;
    described.name = tensor.name;
    described.type = tensor.type;
    described.ne = tensor.ne;
    described.size_bytes = tensor.size_bytes();
    described.file_index = tensor.file_index;
    described.file_offset = tensor.file_offset;
    described.slabs.resize(static_cast<std::size_t>(slabs_of(tensor.name, tensor.ne, tensor.size_bytes()).n_slabs));
    return described;
}

}  // namespace

result<manifest> manifest::compute(const gguf_model& model, const manifest_options& options) {
    if (is_slice(model))
        return error(errc::unsupported, fmt::format("{} is a slice; a manifest is made of the whole model, and a slice "
                                                    "is checked against it",
                                                    model.path().string()));
    manifest made;
    made.architecture_ = model.architecture();
    if (!std::ranges::all_of(made.architecture_, [](char c) { return c >= ' ' && c <= '~'; }))
        return error(errc::invalid_input, fmt::format("{}: its general.architecture is no printable name; convert the "
                                                      "model again",
                                                      model.path().string()));
    for (const model_file& file : model.files())
        made.files_.push_back({file.path.filename().string(), file.size_bytes, file.modified_ns});
    made.metadata_digest_ = digest_of_metadata(model);

    std::vector<byte_span> slabs;
    for (const tensor_info& tensor : model.tensors()) {
        made.tensors_.push_back(describe(tensor));
        const auto slab_size_bytes = static_cast<std::size_t>(made.tensors_.back().slab_size_bytes());
        for (std::size_t i = 0; i < made.tensors_.back().slabs.size(); ++i)
            slabs.push_back(tensor.data.subspan(i * slab_size_bytes, slab_size_bytes));
    }
    auto digests = hash_slabs(slabs, options.n_threads, options.progress);
    if (!digests) return digests.error();
    auto next = digests->begin();
    for (manifest_tensor& tensor : made.tensors_)
        for (sha256_digest& slab : tensor.slabs)
            slab = *next++;

    for (const model_file& file : model.files())
        if (!is_unchanged(file))
            return error(errc::mismatch,
                         fmt::format("{} changed while it was read; run this again when nobody writes to it",
                                     file.path.string()));
    std::ranges::sort(made.tensors_, {}, &manifest_tensor::name);
    made.model_digest_ = made.digest_of_contents();
    return made;
}

// The canonical serialisation; docs/manifest.md says the same byte by byte.
sha256_digest manifest::digest_of_contents() const {
    sha256 hasher;
    hasher.update("kvasir.model.v1\n");
    hasher.update(metadata_digest_.bytes);
    update_text(hasher, architecture_);
    update_u64(hasher, tensors_.size());
    for (const manifest_tensor& tensor : tensors_) {
        update_text(hasher, tensor.name);
        update_u64(hasher, static_cast<std::uint64_t>(tensor.type));
        for (const std::int64_t size : tensor.ne)
            update_u64(hasher, static_cast<std::uint64_t>(size));
        update_u64(hasher, tensor.slabs.size());
        for (const sha256_digest& slab : tensor.slabs)
            hasher.update(slab.bytes);
    }
    return hasher.finish();
}

const manifest_tensor* manifest::find_tensor(std::string_view name) const {
    const auto found = std::ranges::lower_bound(
        tensors_, name, {}, [](const manifest_tensor& tensor) { return std::string_view(tensor.name); });
    return found == tensors_.end() || found->name != name ? nullptr : &*found;
}

bool manifest::describes(const gguf_model& model) const {
    return std::ranges::equal(files_, model.files(), [](const manifest_file& ours, const model_file& theirs) {
        return ours.name == theirs.path.filename().string() && ours.size_bytes == theirs.size_bytes &&
               ours.modified_ns == theirs.modified_ns;
    });
}

}  // namespace kvasir::model
