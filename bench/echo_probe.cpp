#include "bench/echo_probe.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <thread>
#include <vector>

#include "bench/delay_proxy.hpp"

namespace kvasir::bench {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

/// About what a small request for a layer is.
using message = std::array<char, 400>;

/// Serves one connection until it ends. Blocks.
void echo(tcp::acceptor& acceptor) {
    error_code cause;
    tcp::socket socket = acceptor.accept(cause);
    if (!cause) socket.set_option(tcp::no_delay(true), cause);
    message words{};
    while (!cause) {
        asio::read(socket, asio::buffer(words), cause);
        if (!cause) asio::write(socket, asio::buffer(words), cause);
    }
}

}  // namespace

result<duration> measure_echo(const link_options& link, int n_rounds) {
    asio::io_context io;
    error_code cause;
    tcp::acceptor acceptor(io);
    acceptor.open(tcp::v4(), cause);
    if (!cause) acceptor.bind({asio::ip::address_v4::loopback(), 0}, cause);
    if (!cause) acceptor.listen(1, cause);
    if (cause) return error(cause, "listening: " + cause.message());
    proxy_options options;
    options.to = {{"127.0.0.1", acceptor.local_endpoint().port()}};
    options.link = link;
    const auto proxy = delay_proxy::start(options);
    if (!proxy) return proxy.error();

    tcp::socket socket(io);
    socket.connect({asio::ip::address_v4::loopback(), (*proxy)->local().port}, cause);
    if (!cause) socket.set_option(tcp::no_delay(true), cause);
    if (cause) return error(cause, "connecting: " + cause.message());
    // The system has accepted for it: the thread finds a connection, and its end when this function's end closes it.
    const std::jthread server([&acceptor] { echo(acceptor); });
    std::vector<duration> times;
    message words{};
    for (int i = 0; i < n_rounds && !cause; ++i) {
        const time_point begun = steady_clock_source().now();
        asio::write(socket, asio::buffer(words), cause);
        if (!cause) asio::read(socket, asio::buffer(words), cause);
        times.push_back(steady_clock_source().now() - begun);
    }
    error_code ignored;
    socket.close(ignored);
    // Should nobody have come, it does not wait for ever.
    ::shutdown(acceptor.native_handle(), SHUT_RDWR);
    if (cause) return error(cause, "talking to the echo: " + cause.message());
    std::ranges::sort(times);
    return times[times.size() / 2];
}

}  // namespace kvasir::bench
