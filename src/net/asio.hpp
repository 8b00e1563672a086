// Boost.Asio as net's sources use it. Not for public headers.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <thread>
#include <vector>

#include "net/io_runner.hpp"

namespace kvasir::net {

namespace asio = boost::asio;

struct io_runner::state {
    explicit state(int n_threads) : context(n_threads), work(asio::make_work_guard(context)) {}

    asio::io_context context;
    asio::executor_work_guard<asio::io_context::executor_type> work;
    std::vector<std::jthread> threads;
};

/// Lets coroutines on one strand wait for something that happens elsewhere. wait() and notify() are called on the
/// strand; whoever waits looks at the condition first, so that no notification is lost.
class strand_event {
  public:
    explicit strand_event(const asio::any_io_executor& strand)
        : timer_(strand, asio::steady_timer::time_point::max()) {}

    asio::awaitable<void> wait() {
        boost::system::error_code ignored;
        co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    void notify() { timer_.cancel(); }

  private:
    asio::steady_timer timer_;
};

}  // namespace kvasir::net
