#include "net/peer_connection.hpp"

#include <future>
#include <type_traits>
#include <utility>

#include "net/connection.hpp"
#include "net/peer_establish.hpp"
#include "net/tcp_stream.hpp"

namespace kvasir::net {
namespace {

class peer final : public peer_connection {
  public:
    peer(std::shared_ptr<connection> driven, wire::hello theirs, std::uint64_t max_outgoing_bytes)
        : connection_(std::move(driven)), hello_(std::move(theirs)), max_outgoing_bytes_(max_outgoing_bytes) {}
    ~peer() override { peer::close(); }

    result<void> send_compute(request_id id, wire::compute_request request) override {
        return connection_->with_conversation([&](wire::conversation& talk) -> result<void> {
            const std::uint64_t pending = talk.output().pending_bytes();
            if (pending > 0 && request.payload_bytes() + pending > max_outgoing_bytes_) {
                return error(errc::busy, std::to_string(pending) + " bytes wait to be sent to the worker already");
            }
            return talk.begin_compute(id, std::move(request));
        });
    }
    bool cancel(request_id id) override {
        return connection_->with_conversation([&](wire::conversation& talk) { return talk.cancel(id); });
    }
    void close() override {
        connection_->with_conversation([](wire::conversation& talk) { talk.goodbye(); });
    }
    const wire::hello& hello() const override { return hello_; }
    std::string remote() const override { return connection_->remote(); }
    bool usable() const override {
        return connection_->with_conversation(
            [](wire::conversation& talk) { return talk.established() && !talk.draining(); });
    }
    connection_statistics statistics() const override { return connection_->statistics(); }

  private:
    const std::shared_ptr<connection> connection_;
    const wire::hello hello_;
    const std::uint64_t max_outgoing_bytes_;
};

/// What is to be told, to whom. Lives as long as the connection has events; only used on its strand.
struct peer_session {
    peer_handlers handlers;
    peer_connection::connect_handler done;
    std::uint64_t max_outgoing_bytes = 0;
    std::shared_ptr<connection> handshaking;  ///< until established

    void on(wire::established_event) {
        const auto established = std::exchange(handshaking, nullptr);
        auto theirs = established->with_conversation([](wire::conversation& talk) { return talk.peer(); });
        std::exchange(done, nullptr)(std::make_shared<peer>(established, std::move(theirs), max_outgoing_bytes));
    }
    void on(wire::result_event event) {
        if (handlers.on_result) handlers.on_result(event.id, std::move(event.result));
    }
    void on(wire::request_failed_event event) {
        if (handlers.on_request_error) handlers.on_request_error(event.id, std::move(event.failure));
    }
    void on(wire::drain_event) {
        if (handlers.on_drain) handlers.on_drain();
    }
    void on(wire::closed_event event) {
        if (const auto failed = std::exchange(handshaking, nullptr)) {
            std::exchange(done, nullptr)(event.reason.while_doing("worker at " + failed->remote()));
        } else if (handlers.on_closed) {
            handlers.on_closed(std::move(event.reason));
        }
    }
    // A backbone's conversation has no such events.
    void on(const wire::compute_event&) {}
    void on(const wire::cancel_event&) {}
};

/// On the strand.
void establish_on_strand(std::unique_ptr<byte_stream> stream, wire::hello ours, const connection_options& options,
                         peer_handlers handlers, peer_connection::connect_handler done) {
    const auto session = std::make_shared<peer_session>();
    session->handlers = std::move(handlers);
    session->done = std::move(done);
    session->max_outgoing_bytes = options.max_outgoing_bytes;
    session->handshaking = connection::start(
        std::move(stream), std::move(ours), options, nullptr, [session](wire::conversation_event event) {
            std::visit([&session](auto& happened) { session->on(std::move(happened)); }, event);
        });
}

asio::awaitable<void> connect_coroutine(asio::any_io_executor strand, endpoint where, wire::hello ours,
                                        connection_options options, peer_handlers handlers,
                                        peer_connection::connect_handler done) {
    if (const auto encoded = wire::encode(ours); !encoded) {
        done(encoded.error());
        co_return;
    }
    auto stream = co_await connect_tcp(strand, where, options.resolve_timeout, options.connect_timeout);
    if (!stream) {
        done(stream.error());
        co_return;
    }
    establish_on_strand(std::move(*stream), std::move(ours), options, std::move(handlers), std::move(done));
}

}  // namespace

void establish_peer(std::unique_ptr<byte_stream> stream, wire::hello ours, connection_options options,
                    peer_handlers handlers, peer_connection::connect_handler done) {
    const auto strand = stream->executor();
    // std::function wants what it holds to be copyable.
    auto shared_stream = std::make_shared<std::unique_ptr<byte_stream>>(std::move(stream));
    asio::post(strand, [shared_stream, ours = std::move(ours), options, handlers = std::move(handlers),
                        done = std::move(done)]() mutable {
        if (const auto encoded = wire::encode(ours); !encoded) return done(encoded.error());
        establish_on_strand(std::move(*shared_stream), std::move(ours), options, std::move(handlers), std::move(done));
    });
}

void peer_connection::connect(io_runner& io, endpoint where, wire::hello ours, connection_options options,
                              peer_handlers handlers, connect_handler done) {
    const asio::any_io_executor strand = asio::make_strand(io.get().context);
    asio::co_spawn(
        strand,
        connect_coroutine(strand, std::move(where), std::move(ours), options, std::move(handlers), std::move(done)),
        asio::detached);
}

result<peer_connection::ptr> peer_connection::connect_and_wait(io_runner& io, endpoint where, wire::hello ours,
                                                               connection_options options, peer_handlers handlers) {
    const auto answer = std::make_shared<std::promise<result<ptr>>>();
    auto answered = answer->get_future();
    connect(io, std::move(where), std::move(ours), options, std::move(handlers),
            [answer](result<ptr> connected) { answer->set_value(std::move(connected)); });
    return answered.get();
}

}  // namespace kvasir::net
