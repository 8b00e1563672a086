// Progress of long work on a terminal, and a clean end when the user stops it.
//
// While a bar exists, SIGINT and SIGTERM do not end the process: the next call returns false, the work cancels itself
// and removes what it had begun. One bar at a time, made before the work starts its threads.
#pragma once

#include <signal.h>

#include <cstdint>
#include <string>

namespace kvasir::cli {

class progress_bar {
  public:
    /// `what` is what is being done: "hashing model.gguf".
    explicit progress_bar(std::string what);
    /// Removes the bar from the terminal and lets signals through again.
    ~progress_bar();
    progress_bar(const progress_bar&) = delete;
    progress_bar& operator=(const progress_bar&) = delete;

    /// A model::progress_callback: draws, if stderr is a terminal. False once the user wants to stop.
    bool operator()(std::uint64_t done_bytes, std::uint64_t total_bytes);

  private:
    std::string what_;
    bool on_terminal_;
    int drawn_percent_ = -1;
    bool stopped_ = false;
    sigset_t stop_signals_{};
    sigset_t former_mask_{};
};

}  // namespace kvasir::cli
