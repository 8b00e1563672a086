// The worker's side of the network: listens, accepts many backbones at once, and hands their requests on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/ids.hpp"
#include "net/endpoint.hpp"
#include "net/io_runner.hpp"
#include "net/options.hpp"
#include "net/statistics.hpp"
#include "wire/byte_budget.hpp"
#include "wire/hello.hpp"
#include "wire/messages.hpp"

namespace kvasir::net {

/// One backbone that is connected. From any thread. After it closed, everything is ignored.
class served_connection {
  public:
    virtual ~served_connection() = default;

    /// Answers a request. Every on_compute wants exactly one of these two, cancelled or not.
    virtual void finish_result(request_id id, wire::compute_result result) = 0;
    virtual void finish_error(request_id id, wire::error_code code, std::string text) = 0;

    /// The backbone's HELLO.
    virtual const wire::hello& hello() const = 0;
    virtual std::string remote() const = 0;
    virtual connection_statistics statistics() const = 0;
};

/// What a server tells its owner, on io threads: for one connection one at a time and in this order, for several at
/// once if there are several threads. They hold no lock and must not block. Empty functions are not called.
struct server_handlers {
    using connection_ptr = std::shared_ptr<served_connection>;
    std::function<void(const connection_ptr&)> on_connected;
    std::function<void(const connection_ptr&, request_id, wire::received_compute)> on_compute;
    std::function<void(const connection_ptr&, request_id)> on_cancel;
    /// Requests not yet answered need no answer any more.
    std::function<void(const connection_ptr&, const error&)> on_closed;
    /// Somebody connected and was no backbone that fits.
    std::function<void(const std::string& remote, const error&)> on_rejected;
};

struct server_options {
    connection_options connection{};
    std::uint32_t max_connections = 512;
    /// Shared by all connections for what arrives; see wire::conversation_options::budget.
    std::shared_ptr<wire::byte_budget> budget{};
};

/// Destroying it says goodbye to everybody. Handlers may still be called until the io_runner is stopped.
class server {
  public:
    /// Listens at once. Errors: the system's code (port in use, …), errc::limit_exceeded or errc::invalid_input when
    /// `ours` cannot be said in a HELLO.
    static result<std::unique_ptr<server>> listen(io_runner& io, const endpoint& where, wire::hello ours,
                                                  server_options options, server_handlers handlers);
    virtual ~server() = default;

    /// With the port that was chosen if 0 was asked for.
    virtual endpoint local() const = 0;
    virtual std::uint32_t n_connections() const = 0;

    /// Accepts nobody any more, tells all backbones that this worker leaves, waits until their requests are answered
    /// and the answers written, says goodbye and closes. False when the deadline passed first. Blocks; not on an io
    /// thread.
    virtual bool shut_down(duration deadline) = 0;
};

}  // namespace kvasir::net
