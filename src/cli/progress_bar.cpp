#include "cli/progress_bar.hpp"

#include <fmt/core.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>

#include "cli/size_text.hpp"

namespace kvasir::cli {

progress_bar::progress_bar(std::string what) : what_(std::move(what)), on_terminal_(::isatty(STDERR_FILENO) == 1) {
    sigemptyset(&stop_signals_);
    sigaddset(&stop_signals_, SIGINT);
    sigaddset(&stop_signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &stop_signals_, &former_mask_);
}

progress_bar::~progress_bar() {
    if (drawn_percent_ >= 0) fmt::print(stderr, "\r\033[K");
    pthread_sigmask(SIG_SETMASK, &former_mask_, nullptr);
}

bool progress_bar::operator()(std::uint64_t done_bytes, std::uint64_t total_bytes) {
    const timespec no_wait{};
    if (sigtimedwait(&stop_signals_, nullptr, &no_wait) > 0) stopped_ = true;
    if (stopped_) return false;
    if (!on_terminal_ || total_bytes == 0) return true;
    const int percent = static_cast<int>(static_cast<double>(done_bytes) / static_cast<double>(total_bytes) * 100.0);
    if (percent == drawn_percent_) return true;
    drawn_percent_ = percent;
    constexpr int width = 30;
    const int filled = percent * width / 100;
    fmt::print(stderr, "\r{}  [{:#<{}}{:.<{}}] {:3} % of {}\033[K", what_, "", filled, "", width - filled, percent,
               size_text(total_bytes));
    std::fflush(stderr);
    return true;
}

}  // namespace kvasir::cli
