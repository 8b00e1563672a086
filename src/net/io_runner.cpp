#include "net/io_runner.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "net/asio.hpp"

namespace kvasir::net {
namespace {

/// Threads inherit the mask: signals are for the thread that started the runner.
class signals_blocked {
  public:
    signals_blocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before_);
    }
    ~signals_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_{};
};

}  // namespace

io_runner::io_runner(int n_threads) : state_(std::make_unique<state>(std::max(n_threads, 1))) {
    const signals_blocked blocked;
    for (int i = 0; i < std::max(n_threads, 1); ++i) {
        state_->threads.emplace_back([this] { state_->context.run(); });
    }
}

io_runner::~io_runner() {
    stop();
}

void io_runner::stop() {
    state_->work.reset();
    state_->context.stop();
    state_->threads.clear();
}

}  // namespace kvasir::net
