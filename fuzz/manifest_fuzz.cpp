// Manifests from anybody: parsed or refused, and what is parsed survives the way through JSON.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/manifest.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using kvasir::model::manifest;
    const auto parsed = manifest::parse({reinterpret_cast<const char*>(data), size});
    if (!parsed) {
        if (parsed.error().message.empty()) __builtin_trap();
        return 0;
    }
    const auto again = manifest::parse(parsed->to_json());
    if (!again || again->model_digest() != parsed->model_digest() || again->to_json() != parsed->to_json())
        __builtin_trap();
    return 0;
}
