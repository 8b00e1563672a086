#include "node/worker.hpp"

#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "net/io_runner.hpp"
#include "net/server.hpp"
#include "node/compute_queue.hpp"

namespace kvasir::node {
namespace {

using connection_ptr = net::server_handlers::connection_ptr;

/// Counts per connection and in all, and the events that carry them.
class ledger {
  public:
    explicit ledger(std::function<void(const worker_event&)> on_event) : on_event_(std::move(on_event)) {}

    void connected(const net::served_connection& whom) {
        const std::scoped_lock lock(mutex_);
        open_[&whom] = {};
        ++totals_.connections;
        tell({.what = worker_event::kind::connected, .remote = whom.remote(), .name = whom.hello().name});
    }
    void computed(const net::served_connection& whom, std::uint64_t n_rows) {
        const std::scoped_lock lock(mutex_);
        ++totals_.requests;
        totals_.rows += n_rows;
        if (const auto at = open_.find(&whom); at != open_.end()) {
            ++at->second.requests;
            at->second.rows += n_rows;
        }
    }
    void closed(const net::served_connection& whom, const error& why) {
        const net::connection_statistics measured = whom.statistics();
        const std::scoped_lock lock(mutex_);
        const counts counted = open_[&whom];
        open_.erase(&whom);
        totals_.bytes_in += measured.bytes_in;
        totals_.bytes_out += measured.bytes_out;
        tell({.what = worker_event::kind::closed,
              .remote = whom.remote(),
              .name = whom.hello().name,
              .reason = why.message,
              .requests = counted.requests,
              .rows = counted.rows,
              .bytes_in = measured.bytes_in,
              .bytes_out = measured.bytes_out});
    }
    void rejected(const std::string& remote, const error& why) {
        const std::scoped_lock lock(mutex_);
        tell({.what = worker_event::kind::rejected, .remote = remote, .reason = why.message});
    }
    worker_totals totals() const {
        const std::scoped_lock lock(mutex_);
        return totals_;
    }

  private:
    struct counts {
        std::uint64_t requests = 0;
        std::uint64_t rows = 0;
    };

    void tell(const worker_event& happened) {
        if (on_event_) on_event_(happened);
    }

    const std::function<void(const worker_event&)> on_event_;
    mutable std::mutex mutex_;
    std::unordered_map<const net::served_connection*, counts> open_;
    worker_totals totals_;
};

wire::hello hello_of(const held_slice& held, const worker_options& options) {
    wire::hello ours;
    ours.role = wire::node_role::worker;
    ours.model = held.model_digest();
    ours.numerics = expert::numerics_fingerprint();
    ours.build = options.build;
    ours.name = options.name;
    ours.node = wire::node_id::random();
    ours.accepts = options.accepts;
    ours.layers = held.layers();
    return ours;
}

class serving_worker final : public worker {
  public:
    /// Throws std::runtime_error when ggml cannot compute here.
    serving_worker(held_slice held, worker_options options)
        : held_(std::move(held)),
          options_(std::move(options)),
          hello_(hello_of(held_, options_)),
          ledger_(options_.on_event),
          io_(1),
          queue_(held_,
                 {.n_threads = options_.n_threads,
                  .max_requests = options_.max_queued_requests,
                  .max_result_bytes = options_.max_result_bytes,
                  .max_message_bytes = options_.accepts.max_message_bytes,
                  .max_rows_per_second = options_.max_rows_per_second},
                 [this](const net::served_connection& whom, std::uint64_t n_rows) { ledger_.computed(whom, n_rows); }) {
    }

    ~serving_worker() override {
        // The server's handlers use the queue: they must have ended before it does.
        server_.reset();
        io_.stop();
    }

    result<void> listen() {
        net::server_options chosen;
        chosen.connection = options_.connection;
        // Whether results are exact is for the backbone to demand.
        chosen.connection.policy.demand_equal_numerics = false;
        chosen.max_connections = options_.max_connections;
        chosen.budget = std::make_shared<wire::byte_budget>(options_.max_request_bytes);
        net::server_handlers handlers;
        handlers.on_connected = [this](const connection_ptr& whom) { ledger_.connected(*whom); };
        handlers.on_compute = [this](const connection_ptr& whom, request_id id, wire::received_compute request) {
            accept(whom, id, std::move(request));
        };
        handlers.on_cancel = [this](const connection_ptr& whom, request_id id) { queue_.cancel(*whom, id); };
        handlers.on_closed = [this](const connection_ptr& whom, const error& why) {
            queue_.drop(*whom);
            ledger_.closed(*whom, why);
        };
        handlers.on_rejected = [this](const std::string& remote, const error& why) { ledger_.rejected(remote, why); };
        auto listening = net::server::listen(io_, options_.listen, hello_, std::move(chosen), std::move(handlers));
        if (!listening) return listening.error();
        server_ = *std::move(listening);
        return {};
    }

    net::endpoint local() const override { return server_->local(); }
    const held_slice& held() const override { return held_; }
    const wire::hello& hello() const override { return hello_; }
    bool shut_down(duration deadline) override { return server_->shut_down(deadline); }
    worker_totals totals() const override { return ledger_.totals(); }

  private:
    void accept(const connection_ptr& whom, request_id id, wire::received_compute request) {
        const bool taken = queue_.push(
            {.from = whom, .id = id, .request = std::move(request), .arrived = steady_clock_source().now()});
        if (!taken)
            whom->finish_error(id, wire::error_code::busy, "the worker's queue is full; ask later or elsewhere");
    }

    const held_slice held_;
    const worker_options options_;
    const wire::hello hello_;
    ledger ledger_;
    net::io_runner io_;
    compute_queue queue_;  ///< its thread answers over connections, which need the runner
    std::unique_ptr<net::server> server_;
};

}  // namespace

result<std::unique_ptr<worker>> worker::start(held_slice held, worker_options options) {
    try {
        auto made = std::make_unique<serving_worker>(std::move(held), std::move(options));
        if (auto listening = made->listen(); !listening) return listening.error();
        return std::unique_ptr<worker>(std::move(made));
    } catch (const std::runtime_error& failure) {
        return error(errc::unsupported, failure.what());
    }
}

}  // namespace kvasir::node
