#include "bench/delay_proxy.hpp"

#include <algorithm>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <deque>
#include <utility>
#include <vector>

#include "net/asio.hpp"

// Everything below the class `serving_proxy` runs on the one thread of the proxy's io_runner: there are no locks.

namespace kvasir::bench {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

/// What is read at once. With a cap no more than a millisecond's worth (but a packet), so that the cap is smooth.
constexpr std::size_t max_piece_bytes = 64U * 1024U;
constexpr std::size_t min_piece_bytes = 1448;
/// What keeping a piece costs besides its bytes, about: many small pieces must not take more memory than is promised.
constexpr std::size_t piece_cost_bytes = 128;

constexpr duration accept_retry_delay = std::chrono::milliseconds(100);
constexpr duration connect_timeout = std::chrono::seconds(10);

std::size_t piece_bytes(const link_options& link) {
    if (link.bytes_per_second == 0) return max_piece_bytes;
    return std::clamp<std::size_t>(link.bytes_per_second / 1000, min_piece_bytes, max_piece_bytes);
}

time_point now() {
    return steady_clock_source().now();
}

struct counters {
    std::atomic<std::uint64_t> connections{0};
    std::atomic<std::uint64_t> bytes_to_target{0};
    std::atomic<std::uint64_t> bytes_from_target{0};
    std::atomic<std::uint64_t> turns{0};

    static void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
        counter.fetch_add(n, std::memory_order_relaxed);
    }
};

/// How long before a time the system's timer is set: it wakes an idle processor up to about so much late.
constexpr duration wake_early = std::chrono::microseconds(400);

asio::awaitable<void> pause_until(asio::steady_timer& timer, time_point when) {
    timer.expires_at(when);
    error_code ignored;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

/// To the point. Ends early when `timer` is cancelled, with true in `is_cut`.
asio::awaitable<void> wait_until(asio::steady_timer& timer, time_point when, const bool& is_cut) {
    if (when > now() + wake_early) co_await pause_until(timer, when - wake_early);
    // Others run in between, network events included.
    while (!is_cut && now() < when)
        co_await asio::post(timer.get_executor(), asio::use_awaitable);
}

/// Ends a connection with a reset.
void reset(tcp::socket& socket) {
    error_code ignored;
    socket.set_option(tcp::socket::linger(true, 0), ignored);
    socket.close(ignored);
}

enum class piece_kind { bytes, end_of_stream, reset };

struct piece {
    piece_kind kind = piece_kind::bytes;
    time_point due{};
    std::vector<std::byte> bytes{};
    std::size_t cost() const { return bytes.size() + piece_cost_bytes; }
};

/// What travels in one direction.
struct line {
    line(const asio::any_io_executor& executor, const link_options& link, std::uint64_t seed)
        : schedule(link, seed),
          capacity_bytes(line_capacity_bytes(link)),
          arrived(executor),
          room(executor),
          reader_timer(executor),
          writer_timer(executor) {}

    void put(piece_kind kind, std::vector<std::byte> bytes = {}) {
        piece made{.kind = kind, .due = schedule.arrival(now(), bytes.size()), .bytes = std::move(bytes)};
        held_bytes += made.cost();
        pieces.push_back(std::move(made));
        arrived.notify();
    }
    /// Takes the first piece out; it counts as held until it is delivered().
    piece take() {
        piece first = std::move(pieces.front());
        pieces.pop_front();
        return first;
    }
    void delivered(std::size_t cost) {
        held_bytes -= cost;
        room.notify();
    }
    /// Nothing comes out any more.
    void cut() {
        is_cut = true;
        pieces.clear();
        arrived.notify();
        room.notify();
        reader_timer.cancel();
        writer_timer.cancel();
    }

    link_schedule schedule;
    const std::uint64_t capacity_bytes;
    std::deque<piece> pieces;
    std::uint64_t held_bytes = 0;
    net::strand_event arrived;
    net::strand_event room;
    asio::steady_timer reader_timer;
    asio::steady_timer writer_timer;
    bool is_cut = false;
    bool has_ended = false;  ///< the end of the stream has come out, and nothing follows it
};

/// Two sockets and the two lines between them. Kept alive by the coroutines that run on it.
class session {
  public:
    session(tcp::socket near, tcp::socket far, const proxy_options& options, std::uint64_t number,
            std::shared_ptr<counters> counts)
        : near_(std::move(near), options.link, seed_of(options, 2 * number)),
          far_(std::move(far), options.link, seed_of(options, 2 * number + 1)),
          finished_(near_.socket.get_executor()),
          piece_bytes_(piece_bytes(options.link)),
          counts_(std::move(counts)) {}

    /// Until both directions have ended.
    static asio::awaitable<void> run(std::shared_ptr<session> self) {
        const auto executor = self->near_.socket.get_executor();
        for (auto [from, to] : {std::pair(&self->near_, &self->far_), std::pair(&self->far_, &self->near_)}) {
            error_code ignored;
            from->socket.set_option(tcp::no_delay(true), ignored);
            asio::co_spawn(executor, read(self, from, to), asio::detached);
            asio::co_spawn(executor, write(self, from, to), asio::detached);
        }
        while (!self->over_)
            co_await self->finished_.wait();
    }

  private:
    struct end {
        end(tcp::socket connected, const link_options& link, std::uint64_t seed)
            : socket(std::move(connected)), outgoing(socket.get_executor(), link, seed) {}

        tcp::socket socket;
        line outgoing;  ///< what came from this end and is on its way to the other
        bool lost = false;
    };

    static std::uint64_t seed_of(const proxy_options& options, std::uint64_t number) {
        return options.seed * 0x9E3779B97F4A7C15U + number;
    }

    static asio::awaitable<void> read(std::shared_ptr<session> self, end* from, end* to) {
        line& link = from->outgoing;
        std::vector<std::byte> buffer(self->piece_bytes_);
        while (!link.is_cut) {
            if (link.held_bytes >= link.capacity_bytes) {
                co_await link.room.wait();
                continue;
            }
            co_await wait_until(link.reader_timer, link.schedule.free_at(), link.is_cut);
            if (link.is_cut) break;
            error_code cause;
            const std::size_t count = co_await from->socket.async_read_some(
                asio::buffer(buffer), asio::redirect_error(asio::use_awaitable, cause));
            if (link.is_cut) break;
            if (cause == asio::error::eof) {
                link.put(piece_kind::end_of_stream);
                break;
            }
            if (cause) {
                self->lose(*from, *to);
                break;
            }
            self->count(*from, count);
            link.put(piece_kind::bytes, {buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(count)});
        }
    }

    static asio::awaitable<void> write(std::shared_ptr<session> self, end* from, end* to) {
        line& link = from->outgoing;
        while (!link.is_cut) {
            if (link.pieces.empty()) {
                co_await link.arrived.wait();
                continue;
            }
            co_await wait_until(link.writer_timer, link.pieces.front().due, link.is_cut);
            if (link.is_cut) break;
            const piece first = link.take();
            error_code cause;
            switch (first.kind) {
                case piece_kind::bytes:
                    co_await asio::async_write(to->socket, asio::buffer(first.bytes),
                                               asio::redirect_error(asio::use_awaitable, cause));
                    break;
                case piece_kind::end_of_stream:
                    to->socket.shutdown(tcp::socket::shutdown_send, cause);
                    link.has_ended = !cause;
                    break;
                case piece_kind::reset:
                    reset(to->socket);
                    link.cut();
                    to->outgoing.cut();
                    break;
            }
            if (cause && !link.is_cut) self->lose(*to, *from);
            link.delivered(first.cost());
            self->end_if_over();
        }
        self->end_if_over();
    }

    /// `gone` does not answer any more: the other one is told, one delay later.
    void lose(end& gone, end& other) {
        if (std::exchange(gone.lost, true)) return;
        error_code ignored;
        gone.socket.close(ignored);
        other.outgoing.cut();
        if (gone.outgoing.is_cut) return;
        gone.outgoing.has_ended = false;
        gone.outgoing.put(piece_kind::reset);
    }

    void end_if_over() {
        for (const end* one : {&near_, &far_})
            if (!one->outgoing.has_ended && !one->outgoing.is_cut) return;
        over_ = true;
        for (end* one : {&near_, &far_}) {
            error_code ignored;
            one->socket.close(ignored);
            if (!one->outgoing.is_cut) one->outgoing.cut();
        }
        finished_.notify();
    }

    void count(const end& from, std::size_t n_bytes) {
        if (&from == &near_) {
            counters::add(counts_->bytes_to_target, n_bytes);
            asked_ = true;
            return;
        }
        counters::add(counts_->bytes_from_target, n_bytes);
        if (std::exchange(asked_, false)) counters::add(counts_->turns, 1);
    }

    end near_;  ///< who connected
    end far_;   ///< the target
    net::strand_event finished_;
    const std::size_t piece_bytes_;
    const std::shared_ptr<counters> counts_;
    bool asked_ = false;
    bool over_ = false;
};

/// What accepts for one target; lives as long as it does and its sessions do.
struct proxy_state {
    proxy_state(asio::io_context& io, const proxy_options& chosen, std::size_t number)
        : executor(io.get_executor()),
          options(chosen),
          next_number(static_cast<std::uint64_t>(number) << 32U),
          acceptor(executor),
          place(executor) {}

    const asio::any_io_executor executor;
    const proxy_options options;
    std::uint64_t next_number;  ///< of a session; with the seed it decides the jitter
    tcp::acceptor acceptor;
    tcp::resolver::results_type target;
    net::strand_event place;
    std::uint32_t n_sessions = 0;
    const std::shared_ptr<counters> counts = std::make_shared<counters>();

    static asio::awaitable<void> accept_loop(std::shared_ptr<proxy_state> self);
    static asio::awaitable<void> serve(std::shared_ptr<proxy_state> self, tcp::socket near);
};

asio::awaitable<void> proxy_state::accept_loop(std::shared_ptr<proxy_state> self) {
    asio::steady_timer pause(self->executor);
    for (;;) {
        while (self->n_sessions >= self->options.max_connections)
            co_await self->place.wait();
        error_code cause;
        tcp::socket near = co_await self->acceptor.async_accept(asio::redirect_error(asio::use_awaitable, cause));
        if (cause) {
            // Most likely for want of file descriptors.
            co_await pause_until(pause, now() + accept_retry_delay);
            continue;
        }
        ++self->n_sessions;
        asio::co_spawn(self->executor, serve(self, std::move(near)), asio::detached);
    }
}

asio::awaitable<void> proxy_state::serve(std::shared_ptr<proxy_state> self, tcp::socket near) {
    const auto far = std::make_shared<tcp::socket>(self->executor);
    asio::steady_timer deadline(self->executor);
    deadline.expires_after(connect_timeout);
    deadline.async_wait([far](const error_code& cancelled) {
        error_code ignored;
        if (!cancelled) far->close(ignored);
    });
    error_code cause;
    co_await asio::async_connect(*far, self->target, asio::redirect_error(asio::use_awaitable, cause));
    deadline.cancel();
    if (cause) {
        reset(near);
    } else {
        counters::add(self->counts->connections, 1);
        co_await session::run(std::make_shared<session>(std::move(near), std::move(*far), self->options,
                                                        self->next_number++, self->counts));
    }
    --self->n_sessions;
    self->place.notify();
}

result<tcp::resolver::results_type> resolve(const asio::any_io_executor& executor, const net::endpoint& where) {
    error_code cause;
    auto found =
        tcp::resolver(executor).resolve(where.host, std::to_string(where.port), tcp::resolver::numeric_service, cause);
    if (cause) return error(cause, "resolving " + where.host + ": " + cause.message());
    return found;
}

class serving_proxy final : public delay_proxy {
  public:
    ~serving_proxy() override { io_.stop(); }

    result<void> add_target(const proxy_options& options, const net::endpoint& to) {
        const auto state = std::make_shared<proxy_state>(io_.get().context, options, targets_.size());
        auto target = resolve(state->executor, to);
        if (!target) return target.error();
        state->target = *target;
        const auto here = resolve(state->executor, options.listen);
        if (!here) return here.error();
        const tcp::endpoint address = here->begin()->endpoint();
        error_code cause;
        tcp::acceptor& acceptor = state->acceptor;
        acceptor.open(address.protocol(), cause);
        if (!cause) acceptor.set_option(tcp::acceptor::reuse_address(true), cause);
        if (!cause) acceptor.bind(address, cause);
        if (!cause) acceptor.listen(tcp::acceptor::max_listen_connections, cause);
        if (cause) return error(cause, "listening at " + options.listen.text() + ": " + cause.message());
        targets_.push_back(
            {{acceptor.local_endpoint().address().to_string(), acceptor.local_endpoint().port()}, state});
        return {};
    }
    void serve() {
        for (const target& one : targets_)
            asio::co_spawn(one.state->executor, proxy_state::accept_loop(one.state), asio::detached);
    }

    net::endpoint local(std::size_t number) const override { return targets_.at(number).local; }
    proxy_statistics statistics(std::size_t number) const override {
        const counters& counts = *targets_.at(number).state->counts;
        return {.connections = counts.connections.load(),
                .bytes_to_target = counts.bytes_to_target.load(),
                .bytes_from_target = counts.bytes_from_target.load(),
                .turns = counts.turns.load()};
    }

  private:
    struct target {
        net::endpoint local;
        std::shared_ptr<proxy_state> state;
    };

    net::io_runner io_{1};
    std::vector<target> targets_;  ///< go before the runner, which still has coroutines that hold the states
};

}  // namespace

result<std::unique_ptr<delay_proxy>> delay_proxy::start(const proxy_options& options) {
    if (auto possible = check(options.link); !possible) return possible.error();
    if (options.to.size() > 1 && options.listen.port != 0)
        return error(errc::invalid_input, "several targets cannot share one port");
    auto made = std::make_unique<serving_proxy>();
    for (const net::endpoint& to : options.to)
        if (auto added = made->add_target(options, to); !added) return added.error();
    made->serve();
    return std::unique_ptr<delay_proxy>(std::move(made));
}

}  // namespace kvasir::bench
