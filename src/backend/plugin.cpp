// The entry point of the backend as a shared object inside somebody else's program. The small library
// libggml-kvasir.so (loader.cpp) checks the program's ggml first and then calls this.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "backend/backend.hpp"

namespace {

void print_event(const kvasir::swarm::event& what) {
    std::fprintf(stderr, "kvasir: %s\n", what.text.c_str());
}

void configure_from_environment() {
    auto chosen = kvasir::backend::workers_from_environment([](const char* name) { return std::getenv(name); });
    if (!chosen) {
        std::fprintf(stderr, "kvasir: %s; all experts are computed here\n", chosen.error().message.c_str());
        return;
    }
    chosen->on_event = print_event;
    chosen->build = "kvasir plug-in " KVASIR_VERSION;
    kvasir::backend::configure(std::move(*chosen));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ggml_backend_reg* kvasir_backend_registry() {
    try {
        configure_from_environment();
        return kvasir::backend::registry();
    } catch (const std::exception& failure) {
        std::fprintf(stderr, "kvasir: cannot start: %s\n", failure.what());
        return nullptr;
    }
}
