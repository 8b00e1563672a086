// A worker: a held slice behind a listening port. Everything a node does for backbones is tied together here.
//
// Threads: net's io threads receive and send, one thread computes. The owner's thread only starts and stops.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "net/endpoint.hpp"
#include "net/options.hpp"
#include "node/held_slice.hpp"
#include "wire/hello.hpp"

namespace kvasir::node {

/// Something worth a line in a log.
struct worker_event {
    enum class kind { connected, closed, rejected };

    kind what = kind::connected;
    std::string remote{};        ///< address of the backbone
    std::string name{};          ///< what it calls itself; may be empty
    std::string reason{};        ///< why it was closed or rejected
    std::uint64_t requests = 0;  ///< answered with results
    std::uint64_t rows = 0;      ///< returned: (row, expert) pairs
    std::uint64_t bytes_in = 0;
    std::uint64_t bytes_out = 0;
};

struct worker_options {
    net::endpoint listen{"127.0.0.1", 0};
    std::string name{};   ///< display name; may be empty
    std::string build{};  ///< program and version, for people
    int n_threads = 1;    ///< of the engine
    /// (row, expert) results, on average; empty: no limit. Positive.
    std::optional<double> max_rows_per_second{};
    wire::limits accepts{};
    net::connection_options connection{};
    std::uint32_t max_connections = 512;
    std::uint32_t max_queued_requests = 1024;
    /// Payloads of requests that arrive or wait, over all connections.
    std::uint64_t max_request_bytes = 256ULL * 1024U * 1024U;
    /// Results computed and not yet written, over all connections.
    std::uint64_t max_result_bytes = 256ULL * 1024U * 1024U;
    /// May be empty. Called from any thread, one call at a time.
    std::function<void(const worker_event&)> on_event{};
};

/// Since the start.
struct worker_totals {
    std::uint64_t connections = 0;
    std::uint64_t requests = 0;
    std::uint64_t rows = 0;
    std::uint64_t bytes_in = 0;   ///< of connections that have closed
    std::uint64_t bytes_out = 0;  ///< of connections that have closed
};

class worker {
  public:
    /// Serves `held` from now on. Errors: those of net::server::listen; errc::unsupported when ggml cannot compute
    /// here.
    static result<std::unique_ptr<worker>> start(held_slice held, worker_options options);
    virtual ~worker() = default;

    virtual net::endpoint local() const = 0;
    virtual const held_slice& held() const = 0;
    virtual const wire::hello& hello() const = 0;

    /// Tells backbones that it leaves, answers what is in flight, says goodbye. False when the deadline passed first.
    /// Blocks.
    virtual bool shut_down(duration deadline) = 0;
    virtual worker_totals totals() const = 0;
};

}  // namespace kvasir::node
