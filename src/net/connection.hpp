// Drives one conversation over one byte stream: reads, writes, time. Either side's; the facades are peer_connection
// (backbone) and served_connection (worker).
//
// Threads: the lock guards the conversation and the writing. Whoever uses the conversation also writes what came of it,
// at once and on its own thread as long as the transport takes it; the rest is written on the strand. Reading, time and
// events happen on the strand alone, and events are handed out without the lock.
//
// It keeps itself alive while the stream is open, and it closes the stream: when the conversation is finished, when the
// stream fails, or when the peer takes nothing or says nothing for too long.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/clock.hpp"
#include "net/asio.hpp"
#include "net/byte_stream.hpp"
#include "net/options.hpp"
#include "net/statistics.hpp"
#include "wire/conversation.hpp"

namespace kvasir::net {

class connection : public std::enable_shared_from_this<connection> {
  public:
    /// Called on the strand, for one event after another; the last is closed_event, after which the handler is
    /// destroyed.
    using event_handler = std::function<void(wire::conversation_event)>;

    /// `ours` must be encodable (wire::encode). No event comes before it returns if it is called on the
    /// stream's strand. With `turn_away` the peer
    /// is only told that.
    static std::shared_ptr<connection> start(std::unique_ptr<byte_stream> stream, wire::hello ours,
                                             const connection_options& options,
                                             std::shared_ptr<wire::byte_budget> budget, event_handler handler,
                                             std::optional<wire::refusal> turn_away = std::nullopt);
    connection(std::unique_ptr<byte_stream> stream, wire::hello ours, const connection_options& options,
               std::shared_ptr<wire::byte_budget> budget, event_handler handler,
               std::optional<wire::refusal> turn_away);

    /// Calls `use(conversation)` under the lock, then writes what it queued. From any thread; `use` must not block.
    template <class Use>
    auto with_conversation(Use use) {
        const std::scoped_lock lock(mutex_);
        if constexpr (std::is_void_v<std::invoke_result_t<Use, wire::conversation&>>) {
            use(conversation_);
            settle();
            announce();
        } else {
            auto value = use(conversation_);
            settle();
            announce();
            return value;
        }
    }

    connection_statistics statistics();
    std::string remote() const { return stream_->remote(); }

  private:
    static asio::awaitable<void> read_loop(std::shared_ptr<connection> self);
    static asio::awaitable<void> write_loop(std::shared_ptr<connection> self);
    static asio::awaitable<void> tick_loop(std::shared_ptr<connection> self);

    // With the lock held.
    void settle();    ///< after every use of the conversation: write, and see to what follows
    void announce();  ///< after a use that was not on the strand: have events handed out there
    void write_now();
    void took(std::size_t count);
    void received(std::size_t count, std::size_t direct_bytes);
    void fail_write(error cause);
    void check_deadlines(time_point now);

    // On the strand.
    void close_stream();
    void dispatch_events();

    const std::unique_ptr<byte_stream> stream_;
    const connection_options options_;
    const duration tick_period_;

    // On the strand.
    event_handler handler_;
    strand_event may_read_;
    asio::steady_timer tick_timer_;
    std::vector<std::byte> spill_;  ///< what is read and has no known place yet

    // Under the lock.
    std::mutex mutex_;
    wire::conversation conversation_;
    std::vector<byte_span> spans_;
    bool stream_closed_ = false;
    bool send_shut_down_ = false;
    bool writing_ = false;         ///< write_loop runs
    bool reading_paused_ = false;  ///< read_loop waits for may_read_
    std::optional<error> write_failure_;
    time_point write_progress_{};
    std::optional<time_point> ending_since_;  ///< the conversation is over, or cannot go on
    std::uint64_t bytes_in_ = 0;
    std::uint64_t bytes_out_ = 0;
};

}  // namespace kvasir::net
