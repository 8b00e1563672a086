// Where manifests are kept: beside the model, or in the user's cache directory.
#include <cstdlib>
#include <optional>

#include "model/manifest.hpp"

namespace kvasir::model {
namespace {

/// Named after the model's full path, because two models may have one file name.
std::optional<std::filesystem::path> manifest_path_in_cache(const gguf_model& model) {
    std::filesystem::path directory;
    // The directory rules of freedesktop.org: a relative path counts as unset.
    if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
        directory = cache;
    } else if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
        directory = std::filesystem::path(home) / ".cache";
    } else {
        return std::nullopt;
    }
    std::error_code failure;
    const std::filesystem::path full_path = std::filesystem::weakly_canonical(model.path(), failure);
    if (failure) return std::nullopt;
    return directory / "kvasir" / "manifests" / (sha256::of(as_bytes(full_path.string())).hex() + ".json");
}

}  // namespace

std::filesystem::path manifest_path_beside(const gguf_model& model) {
    std::filesystem::path path = model.path();
    path += ".manifest.json";
    return path;
}

result<manifest> manifest_for(const gguf_model& model, const manifest_options& options) {
    const std::filesystem::path beside = manifest_path_beside(model);
    const auto cached = manifest_path_in_cache(model);
    // A saved manifest that is damaged, stale or unreadable is as good as none: it is made again.
    if (auto saved = manifest::load(beside); saved && saved->describes(model)) return saved;
    if (cached)
        if (auto saved = manifest::load(*cached); saved && saved->describes(model)) return saved;
    auto made = manifest::compute(model, options);
    if (!made) return made;
    if (!made->save(beside) && cached) {
        std::error_code ignored;
        std::filesystem::create_directories(cached->parent_path(), ignored);
        static_cast<void>(made->save(*cached));
    }
    return made;
}

}  // namespace kvasir::model
