// The one thread that computes, and the requests that wait for it in order of arrival.
//
// Invariant: every request that push() took ends in exactly one answer (finish_result or finish_error), or was dropped
// because its connection closed. Memory is bounded: the number of requests here, their payloads and the results by
// budgets. With a limit on rows per second the request at the front waits until its rows may be computed; as it still
// waits, it can be cancelled, and the network's threads never do.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.hpp"
#include "expert/expert.hpp"
#include "net/server.hpp"
#include "node/held_slice.hpp"
#include "node/row_pace.hpp"
#include "wire/messages.hpp"

namespace kvasir::node {

struct queued_request {
    std::shared_ptr<net::served_connection> from;
    request_id id{};
    wire::received_compute request{};
    time_point arrived{};
};

class compute_queue {
  public:
    struct options {
        int n_threads = 1;
        std::uint32_t max_requests = 1024;
        /// Results that are computed and not yet written.
        std::uint64_t max_result_bytes = 256ULL * 1024U * 1024U;
        std::uint64_t max_message_bytes = wire::default_max_message_bytes;
        /// (row, expert) results; see row_pace. Empty: as fast as it can.
        std::optional<double> max_rows_per_second{};
    };
    /// Called on the compute thread before a result is handed to its connection.
    using computed_handler = std::function<void(const net::served_connection&, std::uint64_t n_rows)>;

    /// `held` outlives the queue. Throws std::runtime_error when ggml cannot compute here (start-up).
    compute_queue(const held_slice& held, options chosen, computed_handler on_computed);
    /// Drops what waits.
    ~compute_queue();

    /// False, and nothing taken, when the queue is full.
    bool push(queued_request request);
    /// True when the request was still waiting: it is answered as cancelled.
    bool cancel(const net::served_connection& from, request_id id);
    /// The connection is gone: its requests need no answer.
    void drop(const net::served_connection& from);

  private:
    /// A request that the compute thread has taken.
    struct taken_request {
        queued_request request;
        std::uint16_t n_waiting = 0;  ///< behind it
        /// When its turn came. A pause for the sake of the limit follows it and counts as computing: for who asks, this
        /// is how fast the worker is.
        time_point turn{};
    };
    struct waiting_request {
        queued_request request;
        std::uint64_t number = 0;
    };

    void run(std::stop_token stop);
    std::optional<taken_request> pop(const std::stop_token& stop);
    void answer(taken_request taken);

    const held_slice& held_;
    const options options_;
    const computed_handler on_computed_;
    const std::shared_ptr<wire::byte_budget> result_budget_;
    expert::engine engine_;  ///< of the compute thread

    std::mutex mutex_;
    std::condition_variable_any changed_;  ///< something arrived, or the front is another
    std::deque<waiting_request> waiting_;
    std::uint64_t next_number_ = 0;

    std::optional<row_pace> pace_;  ///< of the compute thread

    std::jthread thread_;  ///< last: it uses everything above
};

}  // namespace kvasir::node
