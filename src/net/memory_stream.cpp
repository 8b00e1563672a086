#include "net/memory_stream.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <mutex>

namespace kvasir::net {
namespace {

/// One direction. The two ends live on different strands.
struct pipe {
    explicit pipe(std::size_t capacity) : capacity_bytes(capacity) {}

    std::mutex mutex;
    const std::size_t capacity_bytes;
    std::deque<std::byte> bytes;
    bool ended = false;   ///< the writer sends no more
    bool broken = false;  ///< the reader is gone
    std::function<void()> wake_reader;
    std::function<void()> wake_writer;
};

/// A wait that other strands end.
class waiter {
  public:
    explicit waiter(const asio::any_io_executor& strand)
        : strand_(strand), event_(std::make_shared<strand_event>(strand)) {}

    asio::awaitable<void> wait() { return event_->wait(); }
    std::function<void()> waker() const {
        return [strand = strand_, event = event_] { asio::post(strand, [event] { event->notify(); }); };
    }

  private:
    asio::any_io_executor strand_;
    std::shared_ptr<strand_event> event_;
};

class memory_stream final : public byte_stream {
  public:
    memory_stream(asio::any_io_executor strand, std::shared_ptr<pipe> incoming, std::shared_ptr<pipe> outgoing)
        : strand_(std::move(strand)),
          incoming_(std::move(incoming)),
          outgoing_(std::move(outgoing)),
          readable_(strand_),
          writable_(strand_) {
        incoming_->wake_reader = readable_.waker();
        outgoing_->wake_writer = writable_.waker();
    }
    ~memory_stream() override { close(); }

    asio::awaitable<result<std::size_t>> read_some(std::span<const std::span<std::byte>> buffers) override {
        for (;;) {
            {
                const std::scoped_lock lock(incoming_->mutex);
                if (incoming_->broken) co_return error(errc::closed, "reading from a closed stream");
                if (!incoming_->bytes.empty()) co_return take(buffers);
                if (incoming_->ended) co_return std::size_t{0};
            }
            co_await readable_.wait();
        }
    }

    asio::awaitable<result<std::size_t>> write_some(std::span<const byte_span> buffers) override {
        for (;;) {
            auto written = try_write(buffers);
            if (!written || *written > 0) co_return written;
            co_await writable_.wait();
        }
    }

    result<std::size_t> try_write(std::span<const byte_span> buffers) override {
        const std::scoped_lock lock(outgoing_->mutex);
        if (outgoing_->broken || outgoing_->ended) return error(errc::closed, "writing to a closed stream");
        std::size_t written = 0;
        for (const byte_span buffer : buffers) {
            const std::size_t room = outgoing_->capacity_bytes - outgoing_->bytes.size();
            const std::size_t count = std::min(room, buffer.size());
            outgoing_->bytes.insert(outgoing_->bytes.end(), buffer.begin(),
                                    buffer.begin() + static_cast<std::ptrdiff_t>(count));
            written += count;
            if (count < buffer.size()) break;
        }
        if (written > 0) outgoing_->wake_reader();
        return written;
    }

    void shutdown_send() override {
        const std::scoped_lock lock(outgoing_->mutex);
        outgoing_->ended = true;
        if (outgoing_->wake_reader) outgoing_->wake_reader();
    }

    void close() override {
        shutdown_send();
        if (outgoing_->wake_writer) outgoing_->wake_writer();
        const std::scoped_lock lock(incoming_->mutex);
        incoming_->broken = true;
        if (incoming_->wake_reader) incoming_->wake_reader();
        if (incoming_->wake_writer) incoming_->wake_writer();
    }

    std::string remote() const override { return "memory"; }
    asio::any_io_executor executor() const override { return strand_; }

  private:
    std::size_t take(std::span<const std::span<std::byte>> buffers) {
        std::size_t count = 0;
        for (const std::span<std::byte> buffer : buffers) {
            const auto n = static_cast<std::ptrdiff_t>(std::min(buffer.size(), incoming_->bytes.size()));
            std::copy_n(incoming_->bytes.begin(), n, buffer.begin());
            incoming_->bytes.erase(incoming_->bytes.begin(), incoming_->bytes.begin() + n);
            count += static_cast<std::size_t>(n);
        }
        incoming_->wake_writer();
        return count;
    }

    asio::any_io_executor strand_;
    std::shared_ptr<pipe> incoming_;
    std::shared_ptr<pipe> outgoing_;
    waiter readable_;
    waiter writable_;
};

}  // namespace

std::pair<std::unique_ptr<byte_stream>, std::unique_ptr<byte_stream>> make_memory_streams(
    asio::any_io_executor first_strand, asio::any_io_executor second_strand, std::size_t capacity_bytes) {
    const auto there = std::make_shared<pipe>(capacity_bytes);
    const auto back = std::make_shared<pipe>(capacity_bytes);
    auto first = std::make_unique<memory_stream>(std::move(first_strand), back, there);
    auto second = std::make_unique<memory_stream>(std::move(second_strand), there, back);
    return {std::move(first), std::move(second)};
}

}  // namespace kvasir::net
