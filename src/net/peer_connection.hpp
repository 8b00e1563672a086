// The backbone's handle on one worker.
//
// How a backbone talks to a worker:
//
//     net::io_runner io;                                     // once per process
//     wire::hello hello = …;                                 // role backbone, model digest, numerics, no layers
//     net::peer_handlers handlers = {.on_result = …, .on_request_error = …, .on_drain = …, .on_closed = …};
//     net::peer_connection::connect(io, endpoint, hello, options, handlers,
//                                   [](result<std::shared_ptr<net::peer_connection>> peer) { … });
//     // or, at start-up: auto peer = net::peer_connection::connect_and_wait(io, endpoint, hello, options, handlers);
//
//     const wire::held_layer* held = peer->hello().find(layer);           // what it holds; local ids by
//     held->local_of(expert) wire::compute_request request = {.layer = …, .rows =
//     wire::shared_bytes::own(std::move(encoded_rows)), .pairs = …}; if (auto sent = peer->send_compute(request_id{7},
//     std::move(request)); !sent) …  // busy, closed, …: elsewhere
//     // later, on an io thread: on_result(request_id{7}, received_result) or on_request_error(request_id{7},
//     error_message) peer->cancel(request_id{7});                                        // no callback for 7 begins
//     any more
//
// Invariant: every request that send_compute() accepted ends in exactly one of on_result, on_request_error, cancel(),
// or the connection's on_closed(), which ends all that are left. on_closed comes exactly once, last.
//
// All member functions may be called from any thread, from callbacks too. Callbacks run on io threads, one at a
// time per connection, and must not block. They hold no lock. Reconnecting is the caller's policy.
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
#include "wire/hello.hpp"
#include "wire/messages.hpp"

namespace kvasir::net {

/// What a connection tells its owner. Empty functions are not called.
struct peer_handlers {
    std::function<void(request_id, wire::received_result)> on_result;
    std::function<void(request_id, wire::error_message)> on_request_error;
    /// The worker is leaving: what is in flight will still be answered, send_compute() answers errc::closed from now
    /// on.
    std::function<void()> on_drain;
    /// Why the connection ended: errc::closed (the worker said goodbye, or we did), errc::timeout, errc::invalid_input
    /// (the worker broke the protocol), or the system's code. Requests not yet answered never will be.
    std::function<void(error)> on_closed;
};

class peer_connection {
  public:
    using ptr = std::shared_ptr<peer_connection>;
    using connect_handler = std::function<void(result<ptr>)>;

    /// Resolves, connects, shakes hands; then calls `done` on an io thread, once. A worker that does not fit (or
    /// refuses) gives errc::mismatch with a sentence that names what differs. `handlers` are not called unless `done`
    /// got a connection.
    static void connect(io_runner& io, endpoint where, wire::hello ours, connection_options options,
                        peer_handlers handlers, connect_handler done);

    /// The same, waiting for it. Not on an io thread.
    static result<ptr> connect_and_wait(io_runner& io, endpoint where, wire::hello ours, connection_options options,
                                        peer_handlers handlers);

    /// Closes; on_closed comes with errc::closed.
    virtual ~peer_connection() = default;

    /// Queues a request under an id of the caller's choice (not zero, not in flight on this connection) and usually
    /// writes it at once. errc::busy: the worker's limit of requests or our own of queued bytes is reached.
    /// errc::limit_exceeded: the request or its result is larger than the message size agreed on; cut it. errc::closed:
    /// closed or draining.
    virtual result<void> send_compute(request_id id, wire::compute_request request) = 0;

    /// The result is not wanted any more. True when the request was in flight: then neither of its callbacks will begin
    /// after this returns (one that is running on an io thread may still be). A request not yet sent is dropped.
    virtual bool cancel(request_id id) = 0;

    /// Says goodbye and closes. on_closed still comes.
    virtual void close() = 0;

    /// The worker's HELLO; unchanging.
    virtual const wire::hello& hello() const = 0;
    /// "127.0.0.1:4711"
    virtual std::string remote() const = 0;
    virtual bool usable() const = 0;  ///< neither closed nor draining
    virtual connection_statistics statistics() const = 0;
};

}  // namespace kvasir::net
