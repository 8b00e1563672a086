#include "net/tcp_stream.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace kvasir::net {
namespace {

using asio::ip::tcp;

/// Spans given to one system call.
constexpr std::size_t max_spans = 64;

/// What the kernel may hold unsent. More would only make pings and cancels wait behind it.
constexpr int unsent_low_water_bytes = 256 * 1024;

error failure(const boost::system::error_code& cause, const std::string& attempt) {
    return {cause, attempt + ": " + cause.message()};
}

struct resolution {
    explicit resolution(const asio::any_io_executor& strand) : resolver(strand), done_or_late(strand) {}

    tcp::resolver resolver;
    asio::steady_timer done_or_late;
    bool done = false;
    boost::system::error_code cause;
    tcp::resolver::results_type addresses;
};

/// The system's resolver cannot be interrupted. When it is late we go on without it, and it finds nobody waiting.
asio::awaitable<result<tcp::resolver::results_type>> resolve(asio::any_io_executor strand, endpoint where,
                                                             duration timeout) {
    const auto lookup = std::make_shared<resolution>(strand);
    lookup->done_or_late.expires_after(timeout);
    lookup->resolver.async_resolve(
        where.host, std::to_string(where.port), tcp::resolver::numeric_service,
        [lookup](const boost::system::error_code& cause, tcp::resolver::results_type addresses) {
            lookup->done = true;
            lookup->cause = cause;
            lookup->addresses = std::move(addresses);
            lookup->done_or_late.cancel();
        });
    boost::system::error_code ignored;
    if (!lookup->done) co_await lookup->done_or_late.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    if (!lookup->done) co_return error(errc::timeout, "resolving " + where.host + " takes too long");
    if (lookup->cause) co_return failure(lookup->cause, "resolving " + where.host);
    co_return lookup->addresses;
}

}  // namespace

std::string text_of(const tcp::endpoint& address) {
    return endpoint{address.address().to_string(), address.port()}.text();
}

tcp_stream::tcp_stream(tcp::socket socket) : socket_(std::move(socket)), strand_(socket_.get_executor()) {
    // Without these options the stream still works, only slower: what cannot be set is left.
    boost::system::error_code ignored;
    socket_.non_blocking(true, ignored);
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::detail::socket_option::integer<IPPROTO_TCP, TCP_NOTSENT_LOWAT>(unsent_low_water_bytes),
                       ignored);
    const auto address = socket_.remote_endpoint(ignored);
    remote_ = ignored ? "a peer already gone" : text_of(address);
}

asio::awaitable<result<std::size_t>> tcp_stream::read_some(std::span<const std::span<std::byte>> buffers) {
    std::array<asio::mutable_buffer, 2> targets;
    const std::size_t n = std::min(buffers.size(), targets.size());
    for (std::size_t i = 0; i < n; ++i)
        targets[i] = asio::buffer(buffers[i].data(), buffers[i].size());
    boost::system::error_code cause;
    const std::size_t count =
        co_await socket_.async_read_some(targets, asio::redirect_error(asio::use_awaitable, cause));
    if (cause == asio::error::eof) co_return std::size_t{0};
    if (cause) co_return failure(cause, "reading from " + remote_);
    co_return count;
}

asio::awaitable<result<std::size_t>> tcp_stream::write_some(std::span<const byte_span> buffers) {
    for (;;) {
        boost::system::error_code cause;
        co_await socket_.async_wait(tcp::socket::wait_write, asio::redirect_error(asio::use_awaitable, cause));
        if (cause) co_return failure(cause, "writing to " + remote_);
        auto written = try_write(buffers);
        if (!written || *written > 0) co_return written;
    }
}

result<std::size_t> tcp_stream::try_write(std::span<const byte_span> buffers) {
    std::array<iovec, max_spans> vectors;
    const std::size_t n = std::min(buffers.size(), vectors.size());
    for (std::size_t i = 0; i < n; ++i) {
        // sendmsg() only reads; its interface predates const.
        vectors[i] = {.iov_base = const_cast<std::byte*>(buffers[i].data()), .iov_len = buffers[i].size()};
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = n;
    for (;;) {
        const ssize_t count = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count >= 0) return static_cast<std::size_t>(count);
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
        return system_error("writing to " + remote_);
    }
}

void tcp_stream::shutdown_send() {
    boost::system::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void tcp_stream::close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
}

asio::awaitable<result<std::unique_ptr<byte_stream>>> connect_tcp(asio::any_io_executor strand, endpoint where,
                                                                  duration resolve_timeout, duration connect_timeout) {
    auto addresses = co_await resolve(strand, where, resolve_timeout);
    if (!addresses) co_return addresses.error();

    auto socket = std::make_shared<tcp::socket>(strand);
    asio::steady_timer deadline(strand);
    const auto expired = std::make_shared<bool>(false);
    deadline.expires_after(connect_timeout);
    deadline.async_wait([socket, expired](const boost::system::error_code& cause) {
        if (cause) return;
        *expired = true;
        boost::system::error_code ignored;
        socket->close(ignored);
    });
    boost::system::error_code cause = asio::error::host_not_found;
    for (const auto& address : *addresses) {
        boost::system::error_code ignored;
        socket->close(ignored);
        cause = {};
        co_await socket->async_connect(address.endpoint(), asio::redirect_error(asio::use_awaitable, cause));
        if (!cause || *expired) break;
    }
    deadline.cancel();
    if (*expired) co_return error(errc::timeout, "connecting to " + where.text() + " takes too long; is it reachable?");
    if (cause) co_return failure(cause, "connecting to " + where.text());
    co_return std::make_unique<tcp_stream>(std::move(*socket));
}

}  // namespace kvasir::net
