#include "net/connection.hpp"

#include <algorithm>
#include <random>

namespace kvasir::net {
namespace {

/// Holds a decode COMPUTE or some RESULT rows; longer messages are read to their place after the first of it.
constexpr std::size_t spill_bytes = 32 * 1024;
/// What is committed to be written at a time, and what an urgent frame may have to wait for.
constexpr std::uint64_t write_target_bytes = 128 * 1024;
constexpr std::size_t max_write_spans = 64;
/// How long the last words may take to be written and the peer to close its side, so that they are not lost to a reset.
constexpr duration last_words_timeout = std::chrono::seconds(2);

time_point now() {
    return steady_clock_source().now();
}

/// Deadlines are looked at this often, which is how late they may be noticed.
duration tick_period_for(const connection_options& options) {
    const duration shortest =
        std::min({options.handshake_timeout, options.write_stall_timeout, options.message_stall_timeout,
                  options.ping_interval, options.dead_peer_timeout});
    return std::clamp<duration>(shortest / 8, std::chrono::milliseconds(5), std::chrono::milliseconds(500));
}

wire::conversation_options conversation_options_for(const connection_options& options,
                                                    std::shared_ptr<wire::byte_budget> budget,
                                                    std::optional<wire::refusal> turn_away) {
    wire::conversation_options made;
    made.handshake_timeout = options.handshake_timeout;
    made.ping_interval = options.ping_interval;
    made.dead_peer_timeout = options.dead_peer_timeout;
    made.message_stall_timeout = options.message_stall_timeout;
    made.policy = options.policy;
    made.budget = std::move(budget);
    made.turn_away = std::move(turn_away);
    std::random_device entropy;
    made.token_seed = (std::uint64_t{entropy()} << 32U) | entropy();
    return made;
}

}  // namespace

std::shared_ptr<connection> connection::start(std::unique_ptr<byte_stream> stream, wire::hello ours,
                                              const connection_options& options,
                                              std::shared_ptr<wire::byte_budget> budget, event_handler handler,
                                              std::optional<wire::refusal> turn_away) {
    auto made = std::make_shared<connection>(std::move(stream), std::move(ours), options, std::move(budget),
                                             std::move(handler), std::move(turn_away));
    const auto strand = made->stream_->executor();
    {
        const std::scoped_lock lock(made->mutex_);
        made->settle();
    }
    // Posted, so that whoever starts a connection on its strand has it before the first event.
    asio::post(strand, [strand, made] {
        asio::co_spawn(strand, read_loop(made), asio::detached);
        asio::co_spawn(strand, tick_loop(made), asio::detached);
    });
    return made;
}

connection::connection(std::unique_ptr<byte_stream> stream, wire::hello ours, const connection_options& options,
                       std::shared_ptr<wire::byte_budget> budget, event_handler handler,
                       std::optional<wire::refusal> turn_away)
    : stream_(std::move(stream)),
      options_(options),
      tick_period_(tick_period_for(options)),
      handler_(std::move(handler)),
      may_read_(stream_->executor()),
      tick_timer_(stream_->executor()),
      spill_(spill_bytes),
      conversation_(std::move(ours), conversation_options_for(options, std::move(budget), std::move(turn_away)), now()),
      write_progress_(now()) {}

connection_statistics connection::statistics() {
    const std::scoped_lock lock(mutex_);
    return {.round_trip_time = conversation_.round_trip_time(),
            .bytes_in = bytes_in_,
            .bytes_out = bytes_out_,
            .outgoing_bytes = conversation_.output().pending_bytes(),
            .requests_in_flight = static_cast<std::uint32_t>(conversation_.n_in_flight())};
}

asio::awaitable<void> connection::read_loop(std::shared_ptr<connection> self) {
    for (;;) {
        std::array<std::span<std::byte>, 2> buffers;
        std::size_t n_buffers = 0;
        bool wait = false;
        {
            const std::scoped_lock lock(self->mutex_);
            if (self->stream_closed_) co_return;
            wait = !self->conversation_.closed() && !self->conversation_.wants_input();
            self->reading_paused_ = wait;
            if (const auto direct = self->conversation_.direct_buffer(); !direct.empty()) buffers[n_buffers++] = direct;
        }
        if (wait) {
            co_await self->may_read_.wait();
            continue;
        }
        const std::size_t direct_bytes = n_buffers > 0 ? buffers[0].size() : 0;
        buffers[n_buffers++] = self->spill_;
        const auto count = co_await self->stream_->read_some(std::span(buffers).first(n_buffers));
        {
            const std::scoped_lock lock(self->mutex_);
            if (self->stream_closed_) co_return;
            if (count && *count > 0) {
                self->received(*count, direct_bytes);
            } else {
                self->conversation_.stream_ended(count ? std::nullopt : std::optional(count.error()));
            }
            self->settle();
        }
        if (!count || *count == 0) self->close_stream();
        self->dispatch_events();
    }
}

void connection::received(std::size_t count, std::size_t direct_bytes) {
    const time_point at = now();
    bytes_in_ += count;
    const std::size_t direct = std::min(count, direct_bytes);
    conversation_.commit_direct(direct, at);
    conversation_.receive(byte_span(spill_).first(count - direct), at);
}

asio::awaitable<void> connection::write_loop(std::shared_ptr<connection> self) {
    std::vector<byte_span> spans;
    for (;;) {
        spans.clear();
        {
            const std::scoped_lock lock(self->mutex_);
            if (!self->stream_closed_ && !self->write_failure_) {
                self->conversation_.output().gather(spans, write_target_bytes, max_write_spans);
            }
            if (spans.empty()) {
                self->writing_ = false;
                self->settle();
                co_return;
            }
        }
        const auto count = co_await self->stream_->write_some(spans);
        const std::scoped_lock lock(self->mutex_);
        if (count) {
            self->took(*count);
        } else {
            self->fail_write(count.error());
        }
    }
}

void connection::took(std::size_t count) {
    conversation_.output().consume(count);
    bytes_out_ += count;
    write_progress_ = now();
    if (reading_paused_ && conversation_.wants_input()) {
        reading_paused_ = false;
        asio::post(stream_->executor(), [self = shared_from_this()] { self->may_read_.notify(); });
    }
}

void connection::fail_write(error cause) {
    // What the peer said before it went is still to be read, and says more than the failed write does: the read loop
    // meets the same failure when it is through. tick_loop sees to it that this does not take long.
    write_failure_ = std::move(cause);
    if (!ending_since_) ending_since_ = now();
    conversation_.output().drop_uncommitted();
}

void connection::write_now() {
    while (!writing_ && !write_failure_ && !stream_closed_) {
        spans_.clear();
        conversation_.output().gather(spans_, write_target_bytes, max_write_spans);
        if (spans_.empty()) return;
        const auto count = stream_->try_write(spans_);
        if (!count) return fail_write(count.error());
        if (*count > 0) {
            took(*count);
            continue;
        }
        writing_ = true;
        write_progress_ = now();
        // Posted: a coroutine spawned on its own strand starts at once, and would wait for the lock that we hold.
        asio::post(stream_->executor(), [self = shared_from_this()] {
            asio::co_spawn(self->stream_->executor(), write_loop(self), asio::detached);
        });
    }
}

void connection::settle() {
    write_now();
    if (conversation_.closed() && !ending_since_) ending_since_ = now();
    if (conversation_.finished() && !send_shut_down_ && !stream_closed_) {
        send_shut_down_ = true;
        stream_->shutdown_send();
    }
}

void connection::announce() {
    if (conversation_.has_events() || (conversation_.closed() && reading_paused_)) {
        asio::post(stream_->executor(), [self = shared_from_this()] {
            self->may_read_.notify();
            self->dispatch_events();
        });
    }
}

void connection::check_deadlines(time_point at) {
    conversation_.tick(at);
    if (writing_ && at - write_progress_ >= options_.write_stall_timeout) {
        conversation_.stream_ended(error(errc::timeout, stream_->remote() + " takes nothing of what is sent to it"));
        ending_since_ = at - last_words_timeout;
    }
}

asio::awaitable<void> connection::tick_loop(std::shared_ptr<connection> self) {
    for (;;) {
        boost::system::error_code ignored;
        self->tick_timer_.expires_after(self->tick_period_);
        co_await self->tick_timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        bool expired = false;
        {
            const std::scoped_lock lock(self->mutex_);
            if (self->stream_closed_) co_return;
            const time_point at = now();
            self->check_deadlines(at);
            self->settle();
            expired = self->ending_since_ && at - *self->ending_since_ >= last_words_timeout;
            if (expired) self->conversation_.stream_ended(self->write_failure_);
        }
        if (expired) self->close_stream();
        self->dispatch_events();
    }
}

void connection::close_stream() {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(stream_closed_, true)) return;
    stream_->close();
    tick_timer_.cancel();
    may_read_.notify();
}

void connection::dispatch_events() {
    for (;;) {
        std::vector<wire::conversation_event> events;
        {
            const std::scoped_lock lock(mutex_);
            events = conversation_.take_events();
        }
        if (events.empty()) return;
        for (wire::conversation_event& event : events) {
            const bool last = std::holds_alternative<wire::closed_event>(event);
            if (handler_) handler_(std::move(event));
            // It may own what owns us; this is where the circle opens.
            if (last) handler_ = nullptr;
        }
    }
}

}  // namespace kvasir::net
