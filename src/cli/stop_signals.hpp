// SIGINT and SIGTERM as something that a program's main thread waits for.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace kvasir::cli {

/// SIGINT and SIGTERM wait until somebody asks for them, in this thread and all that it starts from now on.
class stop_signals {
  public:
    stop_signals() {
        sigemptyset(&set_);
        sigaddset(&set_, SIGINT);
        sigaddset(&set_, SIGTERM);
        pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    }
    void wait() const {
        int received = 0;
        while (sigwait(&set_, &received) != 0) {
        }
    }
    /// From now on they end the process at once: for who does not want to wait for the orderly end.
    void let_through() const { pthread_sigmask(SIG_UNBLOCK, &set_, nullptr); }

  private:
    sigset_t set_{};
};

}  // namespace kvasir::cli
