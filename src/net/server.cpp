#include "net/server.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "net/connection.hpp"
#include "net/tcp_stream.hpp"

namespace kvasir::net {
namespace {

using asio::ip::tcp;

/// Connections beyond the maximum that are told so. Still more are closed without a word.
constexpr std::uint32_t max_politely_refused = 64;
/// After the system could not accept, most likely for want of file descriptors.
constexpr duration accept_retry_delay = std::chrono::milliseconds(100);
/// How often shut_down() looks whether everything is answered.
constexpr duration shut_down_poll = std::chrono::milliseconds(2);
/// For backbones to close their side after our goodbye.
constexpr duration goodbye_timeout = std::chrono::seconds(1);

class served final : public served_connection {
  public:
    explicit served(std::string remote) : remote_(std::move(remote)) {}

    void finish_result(request_id id, wire::compute_result result) override {
        with_conversation([&](wire::conversation& talk) { talk.finish_result(id, std::move(result)); });
    }
    void finish_error(request_id id, wire::error_code code, std::string text) override {
        with_conversation([&](wire::conversation& talk) { talk.finish_error(id, code, std::move(text)); });
    }
    const wire::hello& hello() const override { return hello_; }
    std::string remote() const override { return remote_; }
    connection_statistics statistics() const override {
        const auto driven = driven_.lock();
        return driven ? driven->statistics() : connection_statistics{};
    }

    /// Nothing happens when the connection is gone.
    template <class Use>
    void with_conversation(Use use) const {
        if (const auto driven = driven_.lock()) driven->with_conversation(std::move(use));
    }
    void attach(const std::shared_ptr<connection>& driven) { driven_ = driven; }
    void learn(wire::hello theirs) {
        hello_ = std::move(theirs);
        established_ = true;
    }
    bool established() const { return established_; }

  private:
    const std::string remote_;
    /// Set before the first event. Weak: the connection's handler holds this object, and the connection is kept by
    /// what runs on it.
    std::weak_ptr<connection> driven_;
    wire::hello hello_;         ///< set before on_connected
    bool established_ = false;  ///< on the strand
};

/// Everything that connections refer to; lives as long as one of them.
struct server_state : std::enable_shared_from_this<server_state> {
    server_state(io_runner& io, wire::hello hello, server_options chosen, server_handlers told)
        : context(io.get().context),
          strand(asio::make_strand(context)),
          acceptor(strand),
          ours(std::move(hello)),
          options(std::move(chosen)),
          handlers(std::move(told)) {}

    asio::io_context& context;
    asio::any_io_executor strand;
    tcp::acceptor acceptor;  ///< on the strand, once accepting
    const wire::hello ours;
    const server_options options;
    const server_handlers handlers;

    std::mutex mutex;
    std::vector<std::shared_ptr<served>> connections;  ///< that are open, shaking hands included
    std::uint32_t n_places_taken = 0;                  ///< the same, and those about to be added
    std::uint32_t n_refused = 0;                       ///< being told that there is no place
    bool leaving = false;

    static asio::awaitable<void> accept_loop(std::shared_ptr<server_state> self);
    void welcome(tcp::socket socket);
    std::optional<wire::refusal> take_place();
    void turn_away(tcp::socket socket, const wire::refusal& reason);
    void forget(const std::shared_ptr<served>& gone);
    std::vector<std::shared_ptr<served>> open_connections();

    void on(const std::shared_ptr<served>& whom, wire::established_event);
    void on(const std::shared_ptr<served>& whom, wire::compute_event event);
    void on(const std::shared_ptr<served>& whom, wire::cancel_event event);
    void on(const std::shared_ptr<served>& whom, wire::closed_event event);
    // A worker's conversation has no such events.
    void on(const std::shared_ptr<served>&, const wire::result_event&) {}
    void on(const std::shared_ptr<served>&, const wire::request_failed_event&) {}
    void on(const std::shared_ptr<served>&, const wire::drain_event&) {}
};

asio::awaitable<void> server_state::accept_loop(std::shared_ptr<server_state> self) {
    asio::steady_timer pause(self->strand);
    for (;;) {
        boost::system::error_code cause;
        tcp::socket socket = co_await self->acceptor.async_accept(asio::make_strand(self->context),
                                                                  asio::redirect_error(asio::use_awaitable, cause));
        if (!self->acceptor.is_open()) co_return;
        if (cause) {
            pause.expires_after(accept_retry_delay);
            boost::system::error_code ignored;
            co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
            continue;
        }
        const auto executor = socket.get_executor();
        asio::post(executor, [self, shared = std::make_shared<tcp::socket>(std::move(socket))] {
            self->welcome(std::move(*shared));
        });
    }
}

std::optional<wire::refusal> server_state::take_place() {
    const std::scoped_lock lock(mutex);
    if (leaving) {
        return wire::refusal{.code = wire::refusal_code::leaving,
                             .field = "state",
                             .ours = "leaving",
                             .theirs = "new",
                             .remedy = "ask another worker"};
    }
    if (n_places_taken >= options.max_connections) {
        return wire::refusal{.code = wire::refusal_code::capacity,
                             .field = "number of connections",
                             .ours = std::to_string(options.max_connections),
                             .theirs = "one more",
                             .remedy = "try again later or elsewhere"};
    }
    ++n_places_taken;
    return std::nullopt;
}

void server_state::welcome(tcp::socket socket) {
    if (const auto reason = take_place()) return turn_away(std::move(socket), *reason);
    auto stream = std::make_unique<tcp_stream>(std::move(socket));
    const auto whom = std::make_shared<served>(stream->remote());
    // We are on the new connection's strand: no event can come before whom is complete.
    whom->attach(connection::start(std::move(stream), ours, options.connection, options.budget,
                                   [self = shared_from_this(), whom](wire::conversation_event event) {
                                       std::visit([&](auto& happened) { self->on(whom, std::move(happened)); }, event);
                                   }));
    const std::scoped_lock lock(mutex);
    connections.push_back(whom);
    if (leaving) whom->with_conversation([](wire::conversation& talk) { talk.drain(); });
}

void server_state::turn_away(tcp::socket socket, const wire::refusal& reason) {
    {
        const std::scoped_lock lock(mutex);
        if (n_refused >= max_politely_refused) return;
        ++n_refused;
    }
    auto stream = std::make_unique<tcp_stream>(std::move(socket));
    const std::string remote = stream->remote();
    connection::start(
        std::move(stream), ours, options.connection, options.budget,
        [self = shared_from_this(), remote](const wire::conversation_event& event) {
            const auto* closed = std::get_if<wire::closed_event>(&event);
            if (closed == nullptr) return;
            {
                const std::scoped_lock lock(self->mutex);
                --self->n_refused;
            }
            if (self->handlers.on_rejected) self->handlers.on_rejected(remote, closed->reason);
        },
        reason);
}

void server_state::forget(const std::shared_ptr<served>& gone) {
    const std::scoped_lock lock(mutex);
    std::erase(connections, gone);
    --n_places_taken;
}

std::vector<std::shared_ptr<served>> server_state::open_connections() {
    const std::scoped_lock lock(mutex);
    return connections;
}

void server_state::on(const std::shared_ptr<served>& whom, wire::established_event) {
    whom->with_conversation([&](wire::conversation& talk) { whom->learn(talk.peer()); });
    if (handlers.on_connected) handlers.on_connected(whom);
}

void server_state::on(const std::shared_ptr<served>& whom, wire::compute_event event) {
    if (handlers.on_compute) {
        handlers.on_compute(whom, event.id, std::move(event.request));
    } else {
        whom->finish_error(event.id, wire::error_code::internal, "nobody computes here");
    }
}

void server_state::on(const std::shared_ptr<served>& whom, wire::cancel_event event) {
    if (handlers.on_cancel) handlers.on_cancel(whom, event.id);
}

void server_state::on(const std::shared_ptr<served>& whom, wire::closed_event event) {
    forget(whom);
    if (whom->established()) {
        if (handlers.on_closed) handlers.on_closed(whom, event.reason);
    } else if (handlers.on_rejected) {
        handlers.on_rejected(whom->remote(), event.reason);
    }
}

class tcp_server final : public server {
  public:
    tcp_server(std::shared_ptr<server_state> state, endpoint local)
        : state_(std::move(state)), local_(std::move(local)) {}

    ~tcp_server() override {
        stop_accepting();
        say_goodbye();
    }

    endpoint local() const override { return local_; }

    std::uint32_t n_connections() const override {
        return static_cast<std::uint32_t>(state_->open_connections().size());
    }

    bool shut_down(duration deadline) override {
        const auto end = std::chrono::steady_clock::now() + deadline;
        stop_accepting();
        for (const auto& whom : state_->open_connections())
            whom->with_conversation([](wire::conversation& talk) { talk.drain(); });
        const bool answered = wait_until(end, [this] { return all_answered(); });
        say_goodbye();
        wait_until(std::chrono::steady_clock::now() + goodbye_timeout, [this] { return n_connections() == 0; });
        return answered;
    }

  private:
    void stop_accepting() {
        {
            const std::scoped_lock lock(state_->mutex);
            if (std::exchange(state_->leaving, true)) return;
        }
        asio::post(state_->strand, [state = state_] {
            boost::system::error_code ignored;
            state->acceptor.close(ignored);
        });
    }

    void say_goodbye() {
        for (const auto& whom : state_->open_connections())
            whom->with_conversation([](wire::conversation& talk) { talk.goodbye(); });
    }

    bool all_answered() {
        const auto open = state_->open_connections();
        return std::all_of(open.begin(), open.end(), [](const std::shared_ptr<served>& whom) {
            const auto now = whom->statistics();
            return now.requests_in_flight == 0 && now.outgoing_bytes == 0;
        });
    }

    template <class Condition>
    static bool wait_until(std::chrono::steady_clock::time_point end, Condition condition) {
        for (;;) {
            if (condition()) return true;
            if (std::chrono::steady_clock::now() >= end) return false;
            std::this_thread::sleep_for(shut_down_poll);
        }
    }

    const std::shared_ptr<server_state> state_;
    const endpoint local_;
};

result<tcp::endpoint> local_address(asio::io_context& context, const endpoint& where) {
    boost::system::error_code cause;
    tcp::resolver resolver(context);
    const auto found = resolver.resolve(where.host, std::to_string(where.port), tcp::resolver::passive, cause);
    if (cause) return error(cause, "resolving " + where.host + ": " + cause.message());
    return found.begin()->endpoint();
}

result<void> open_acceptor(tcp::acceptor& acceptor, const tcp::endpoint& address, const endpoint& where) {
    boost::system::error_code cause;
    std::string_view remedy;
    acceptor.open(address.protocol(), cause);
    // A worker that was just stopped may be started again at once.
    if (!cause) acceptor.set_option(tcp::acceptor::reuse_address(true), cause);
    if (!cause) acceptor.bind(address, cause);
    if (!cause) acceptor.listen(asio::socket_base::max_listen_connections, cause);
    if (!cause) return {};
    if (cause == asio::error::address_in_use) remedy = "; choose another port, or 0 for any free one";
    if (cause == asio::error::access_denied) remedy = "; choose a port from 1024 on";
    return error(cause, "listening on " + where.text() + ": " + cause.message() + std::string(remedy));
}

}  // namespace

result<std::unique_ptr<server>> server::listen(io_runner& io, const endpoint& where, wire::hello ours,
                                               server_options options, server_handlers handlers) {
    if (const auto encoded = wire::encode(ours); !encoded) return encoded.error();
    const auto address = local_address(io.get().context, where);
    if (!address) return address.error();
    const auto state = std::make_shared<server_state>(io, std::move(ours), std::move(options), std::move(handlers));
    if (auto opened = open_acceptor(state->acceptor, *address, where); !opened) return opened.error();
    boost::system::error_code cause;
    const tcp::endpoint local = state->acceptor.local_endpoint(cause);
    if (cause) return error(cause, "asking for the address listened on: " + cause.message());
    asio::co_spawn(state->strand, server_state::accept_loop(state), asio::detached);
    return std::make_unique<tcp_server>(state, endpoint{local.address().to_string(), local.port()});
}

}  // namespace kvasir::net
