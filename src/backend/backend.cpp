#include "backend/backend.hpp"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "backend/device.hpp"
#include "base/file.hpp"
#include "model/manifest.hpp"

namespace kvasir::backend {
namespace {

constexpr std::size_t max_workers = 4096;
constexpr std::size_t max_config_bytes = 1U << 20U;

struct named_workers {
    std::vector<std::string> endpoints;
    std::string manifest;
};

/// The parts without spaces around them; empty ones are left out.
std::vector<std::string> split_at_commas(std::string_view text) {
    std::vector<std::string> parts;
    while (!text.empty()) {
        const std::size_t comma = std::min(text.find(','), text.size());
        std::string_view part = text.substr(0, comma);
        text.remove_prefix(std::min(comma + 1, text.size()));
        const std::size_t first = part.find_first_not_of(" \t");
        if (first == std::string_view::npos) continue;
        part = part.substr(first, part.find_last_not_of(" \t") - first + 1);
        parts.emplace_back(part);
    }
    return parts;
}

result<named_workers> read_config(const std::string& path) {
    auto file = mapped_file::open(path);
    if (!file) return file.error().while_doing("KVASIR_CONFIG");
    if (file->bytes().size() > max_config_bytes)
        return error(errc::limit_exceeded, "KVASIR_CONFIG names a file of more than 1 MiB: " + path);
    const auto* first = reinterpret_cast<const char*>(file->bytes().data());
    const auto json = nlohmann::json::parse(first, first + file->bytes().size(), nullptr, false);
    const std::string expected =
        path + R"( is not {"workers": ["host:port", …], "manifest": "<path>"}, which KVASIR_CONFIG must name)";
    if (!json.is_object() || !json.contains("workers") || !json["workers"].is_array() || !json.contains("manifest") ||
        !json["manifest"].is_string())
        return error(errc::invalid_input, expected);
    named_workers read;
    read.manifest = json["manifest"].get<std::string>();
    for (const auto& worker : json["workers"]) {
        if (!worker.is_string()) return error(errc::invalid_input, expected);
        read.endpoints.push_back(worker.get<std::string>());
    }
    return read;
}

result<named_workers> read_environment(const std::function<const char*(const char*)>& variable) {
    const auto text_of = [&](const char* name) {
        const char* value = variable(name);
        return std::string(value == nullptr ? "" : value);
    };
    if (const std::string config = text_of("KVASIR_CONFIG"); !config.empty()) return read_config(config);
    return named_workers{split_at_commas(text_of("KVASIR_WORKERS")), text_of("KVASIR_MANIFEST")};
}

}  // namespace

ggml_backend_reg* registry() {
    return the_registry();
}

void configure(swarm::options workers) {
    set_current_session(std::make_shared<session>(std::move(workers)));
}

void connect() {
    if (const auto shared = current_session()) shared->start();
}

void disconnect() {
    if (const auto shared = current_session()) shared->stop();
}

void reset() {
    set_current_session(nullptr);
}

swarm::statistics swarm_statistics() {
    const auto shared = current_session();
    return shared ? shared->swarm_statistics() : swarm::statistics{};
}

graph_counts counts() {
    const auto shared = current_session();
    return shared ? shared->counts() : graph_counts{};
}

result<swarm::options> workers_from_environment(const std::function<const char*(const char*)>& variable) {
    auto named = read_environment(variable);
    if (!named) return named.error();
    swarm::options chosen;
    if (named->endpoints.empty()) return chosen;
    if (named->endpoints.size() > max_workers)
        return error(errc::limit_exceeded, fmt::format("{} workers are named, at most {} are supported",
                                                       named->endpoints.size(), max_workers));
    for (const std::string& text : named->endpoints) {
        auto endpoint = net::endpoint::parse(text);
        if (!endpoint) return endpoint.error().while_doing("the list of workers");
        chosen.workers.push_back(std::move(*endpoint));
    }
    if (named->manifest.empty())
        return error(errc::invalid_input,
                     "workers are named but not the model's manifest: set KVASIR_MANIFEST to the file that "
                     "`kvasir manifest MODEL` wrote");
    auto manifest = model::manifest::load(named->manifest);
    if (!manifest) return manifest.error().while_doing("KVASIR_MANIFEST");
    chosen.model = manifest->model_digest();
    return chosen;
}

}  // namespace kvasir::backend
