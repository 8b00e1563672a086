// TCP: the streams and the connecting.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "net/asio.hpp"
#include "net/byte_stream.hpp"
#include "net/endpoint.hpp"

namespace kvasir::net {

/// A connected socket on a strand.
class tcp_stream final : public byte_stream {
  public:
    /// Sets the socket's options: non-blocking, no delay, little unsent data in the kernel.
    explicit tcp_stream(asio::ip::tcp::socket socket);

    asio::awaitable<result<std::size_t>> read_some(std::span<const std::span<std::byte>> buffers) override;
    asio::awaitable<result<std::size_t>> write_some(std::span<const byte_span> buffers) override;
    result<std::size_t> try_write(std::span<const byte_span> buffers) override;
    void shutdown_send() override;
    void close() override;
    std::string remote() const override { return remote_; }
    asio::any_io_executor executor() const override { return strand_; }

  private:
    asio::ip::tcp::socket socket_;
    asio::any_io_executor strand_;
    std::string remote_;
};

/// "127.0.0.1:4711", "[::1]:4711"
std::string text_of(const asio::ip::tcp::endpoint& address);

/// Resolves and connects, trying every address of the host. Runs on `strand`, which the stream then belongs to. Errors:
/// errc::timeout, or the system's code of the last address tried.
asio::awaitable<result<std::unique_ptr<byte_stream>>> connect_tcp(asio::any_io_executor strand, endpoint where,
                                                                  duration resolve_timeout, duration connect_timeout);

}  // namespace kvasir::net
