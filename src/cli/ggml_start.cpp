#include "cli/ggml_start.hpp"

#include <ggml-backend.h>

#include <mutex>

namespace kvasir::cli {
namespace {

struct log_state {
    std::mutex mutex;
    std::string last_error;
};

log_state& the_log() {
    static log_state log;
    return log;
}

}  // namespace

void keep_last_error(ggml_log_level level, const char* text, void*) {
    if (level != GGML_LOG_LEVEL_ERROR) return;
    log_state& log = the_log();
    const std::lock_guard lock(log.mutex);
    log.last_error = text;
    while (!log.last_error.empty() && log.last_error.back() == '\n')
        log.last_error.pop_back();
}

void start_ggml() {
    static const bool started = [] {
        ggml_log_set(keep_last_error, nullptr);
        ggml_backend_load_all();
        return true;
    }();
    static_cast<void>(started);
}

std::string last_ggml_complaint() {
    log_state& log = the_log();
    const std::lock_guard lock(log.mutex);
    return log.last_error.empty() ? "llama.cpp gives no reason" : log.last_error;
}

}  // namespace kvasir::cli
