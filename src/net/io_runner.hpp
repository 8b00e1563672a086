// The threads that all sockets of a process live on.
#pragma once

#include <memory>

namespace kvasir::net {

/// Owns an event loop and the threads that run it. Must outlive everything that was given it. Destruction stops the
/// loop and joins; never destroy it on one of its own threads.
class io_runner {
  public:
    explicit io_runner(int n_threads = 1);
    ~io_runner();
    io_runner(const io_runner&) = delete;
    io_runner& operator=(const io_runner&) = delete;

    /// Stops the loop and joins the threads. Callbacks that have not begun never run.
    void stop();

    struct state;  ///< in asio.hpp, for net's own sources
    state& get() { return *state_; }

  private:
    std::unique_ptr<state> state_;
};

}  // namespace kvasir::net
