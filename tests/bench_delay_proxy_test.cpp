// The delaying proxy between two plain TCP ends: what comes out is what went in, late, and ends as it ended.
//
// Times are only ever compared with their lower bound, which a delay line owes whatever else the machine does.
#include "bench/delay_proxy.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "cli/child_process.hpp"
#include "support/run_program.hpp"

namespace kvasir::bench {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using byte_vector = std::vector<std::byte>;

constexpr std::chrono::milliseconds patience = 30s;

time_point now() {
    return steady_clock_source().now();
}

byte_vector random_bytes(std::size_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    byte_vector bytes(count);
    for (std::byte& byte : bytes)
        byte = static_cast<std::byte>(random());
    return bytes;
}

sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/// How a stream ended, or that it has not.
enum class ending { none, end_of_stream, reset };

/// One end of a connection, blocking, with patience.
class tcp_end {
  public:
    explicit tcp_end(int socket = -1) : socket_(socket) {}
    tcp_end(tcp_end&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
    tcp_end& operator=(tcp_end&& other) noexcept {
        std::swap(socket_, other.socket_);
        return *this;
    }
    ~tcp_end() { close(); }

    static tcp_end connect(std::uint16_t port) {
        tcp_end made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const sockaddr_in address = loopback(port);
        EXPECT_EQ(::connect(made.socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
        return made;
    }

    void close() {
        if (socket_ >= 0) ::close(std::exchange(socket_, -1));
    }
    void reset() {
        const linger at_once{.l_onoff = 1, .l_linger = 0};
        ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close();
    }
    void shutdown_send() { ::shutdown(socket_, SHUT_WR); }

    bool send(std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            if (!ready(POLLOUT)) return false;
            const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (count < 0 && errno != EAGAIN) return false;
            if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
        }
        return true;
    }
    /// Up to `count` bytes; fewer when the stream ends.
    byte_vector receive(std::size_t count) {
        byte_vector bytes(count);
        std::size_t size = 0;
        while (size < count && ended_ == ending::none && ready(POLLIN)) {
            const ssize_t got = ::recv(socket_, bytes.data() + size, count - size, 0);
            if (got == 0) ended_ = ending::end_of_stream;
            if (got < 0) ended_ = ending::reset;
            if (got > 0) size += static_cast<std::size_t>(got);
        }
        bytes.resize(size);
        return bytes;
    }
    bool has_something_to_read() const {
        pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
        return ::poll(&waiting, 1, 0) > 0;
    }
    /// Reads to the end.
    ending wait_for_end() {
        while (ended_ == ending::none && !receive(4096).empty()) {
        }
        return ended_;
    }
    /// How many bytes the system takes until it takes no more for a while.
    std::size_t send_until_full(std::size_t at_most) {
        const byte_vector chunk(256U * 1024U);
        std::size_t size = 0;
        while (size < at_most) {
            pollfd waiting{.fd = socket_, .events = POLLOUT, .revents = 0};
            if (::poll(&waiting, 1, 500) <= 0) break;
            const ssize_t count = ::send(socket_, chunk.data(), chunk.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (count > 0) size += static_cast<std::size_t>(count);
        }
        return size;
    }

  private:
    bool ready(short events) const {
        pollfd waiting{.fd = socket_, .events = events, .revents = 0};
        return ::poll(&waiting, 1, static_cast<int>(patience.count())) > 0;
    }

    int socket_ = -1;
    ending ended_ = ending::none;
};

class listener {
  public:
    listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address = loopback(0);
        socklen_t size = sizeof address;
        EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), size), 0);
        EXPECT_EQ(::listen(socket_, 16), 0);
        EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
        port_ = ntohs(address.sin_port);
    }
    ~listener() { ::close(socket_); }
    listener(const listener&) = delete;
    listener& operator=(const listener&) = delete;

    tcp_end accept() const {
        pollfd waiting{.fd = socket_, .events = POLLIN, .revents = 0};
        EXPECT_GT(::poll(&waiting, 1, static_cast<int>(patience.count())), 0);
        return tcp_end(::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC));
    }
    net::endpoint address() const { return {"127.0.0.1", port_}; }

  private:
    int socket_ = -1;
    std::uint16_t port_ = 0;
};

std::unique_ptr<delay_proxy> start_proxy(const net::endpoint& to, const link_options& link = {},
                                         std::uint32_t max_connections = 256) {
    proxy_options options;
    options.to = {to};
    options.link = link;
    options.max_connections = max_connections;
    return delay_proxy::start(options).value();
}

/// A connection through a proxy of the given kind.
struct joined {
    explicit joined(const link_options& link)
        : proxy(start_proxy(behind.address(), link)),
          near(tcp_end::connect(proxy->local().port)),
          far(behind.accept()) {}

    listener behind;
    std::unique_ptr<delay_proxy> proxy;
    tcp_end near;
    tcp_end far;
};

/// Sends both ways at once and compares.
void expect_unchanged(joined& ends, std::size_t to_far_bytes, std::size_t to_near_bytes) {
    const byte_vector to_far = random_bytes(to_far_bytes, 1);
    const byte_vector to_near = random_bytes(to_near_bytes, 2);
    byte_vector at_far;
    byte_vector at_near;
    {
        std::jthread near_sends([&] { EXPECT_TRUE(ends.near.send(to_far)); });
        std::jthread far_sends([&] { EXPECT_TRUE(ends.far.send(to_near)); });
        std::jthread near_receives([&] { at_near = ends.near.receive(to_near.size()); });
        at_far = ends.far.receive(to_far.size());
    }
    EXPECT_TRUE(at_far == to_far);
    EXPECT_TRUE(at_near == to_near);
}

TEST(delay_proxy, bytes_come_through_unchanged) {
    joined ends({.delay = 2ms, .jitter = 3ms, .stall_every = 20ms, .stall_for = 5ms});
    expect_unchanged(ends, 1, 1);
    expect_unchanged(ends, 65'536, 65'537);
    expect_unchanged(ends, 0, 300'000);
    expect_unchanged(ends, 20U << 20U, 20U << 20U);
    const proxy_statistics passed = ends.proxy->statistics();
    EXPECT_EQ(passed.connections, 1U);
    EXPECT_EQ(passed.bytes_to_target, 1U + 65'536U + (20U << 20U));
    EXPECT_EQ(passed.bytes_from_target, 1U + 65'537U + 300'000U + (20U << 20U));
}

TEST(delay_proxy, bytes_come_through_a_capped_link_unchanged) {
    joined ends({.delay = 5ms, .jitter = 1ms, .bytes_per_second = 40'000'000});
    expect_unchanged(ends, 100'000, 3);
    expect_unchanged(ends, 4U << 20U, 4U << 20U);
}

TEST(delay_proxy, an_answer_takes_two_delays) {
    constexpr duration delay = 15ms;
    joined ends({.delay = delay});
    const byte_vector ping(1);
    for (int i = 0; i < 10; ++i) {
        const time_point sent = now();
        ASSERT_TRUE(ends.near.send(ping));
        ASSERT_EQ(ends.far.receive(1).size(), 1U);
        EXPECT_GE(now() - sent, delay);
        ASSERT_TRUE(ends.far.send(ping));
        ASSERT_EQ(ends.near.receive(1).size(), 1U);
        EXPECT_GE(now() - sent, 2 * delay);
    }
    EXPECT_EQ(ends.proxy->statistics().turns, 10U);
}

TEST(delay_proxy, bytes_on_their_way_do_not_wait_for_one_another) {
    // Nothing arrives within this test, and yet all of it is taken and travels.
    joined ends({.delay = 1h});
    const byte_vector bytes = random_bytes(8U << 20U, 3);
    ASSERT_TRUE(ends.near.send(bytes));
    const time_point give_up = now() + patience;
    while (ends.proxy->statistics().bytes_to_target < bytes.size() && now() < give_up)
        std::this_thread::sleep_for(1ms);
    EXPECT_EQ(ends.proxy->statistics().bytes_to_target, bytes.size());
    EXPECT_FALSE(ends.far.has_something_to_read());
}

TEST(delay_proxy, a_cap_takes_at_least_what_arithmetic_says) {
    joined ends({.delay = 10ms, .bytes_per_second = 2'000'000});
    const byte_vector bytes = random_bytes(600'000, 4);
    const time_point begun = now();
    std::jthread sends([&] { EXPECT_TRUE(ends.near.send(bytes)); });
    EXPECT_TRUE(ends.far.receive(bytes.size()) == bytes);
    EXPECT_GE(now() - begun, 310ms);
}

TEST(delay_proxy, what_nobody_reads_is_not_kept_without_bound) {
    // 10 MB and some slack are on their way; the rest is in the two systems' socket buffers.
    const link_options link{.delay = 100ms, .bytes_per_second = 100'000'000};
    const std::uint64_t line_bytes = line_capacity_bytes(link);
    joined ends(link);
    constexpr std::size_t socket_buffers_bytes = 64U << 20U;
    const std::size_t taken = ends.near.send_until_full(1U << 30U);
    EXPECT_LT(taken, line_bytes + socket_buffers_bytes);
    EXPECT_LT(ends.proxy->statistics().bytes_to_target, line_bytes + socket_buffers_bytes);
    // And when somebody reads, it goes on.
    EXPECT_EQ(ends.far.receive(taken).size(), taken);
}

TEST(delay_proxy, half_a_close_leaves_the_other_half) {
    for (const bool near_first : {true, false}) {
        joined ends({.delay = 10ms});
        tcp_end& first = near_first ? ends.near : ends.far;
        tcp_end& second = near_first ? ends.far : ends.near;
        const byte_vector words = random_bytes(100'000, 5);
        ASSERT_TRUE(first.send(words));
        first.shutdown_send();
        EXPECT_TRUE(second.receive(words.size()) == words);
        EXPECT_EQ(second.wait_for_end(), ending::end_of_stream);
        ASSERT_TRUE(second.send(words));
        EXPECT_TRUE(first.receive(words.size()) == words);
        second.shutdown_send();
        EXPECT_EQ(first.wait_for_end(), ending::end_of_stream);
    }
}

TEST(delay_proxy, a_close_follows_the_bytes_before_it) {
    joined ends({.delay = 20ms});
    const byte_vector words = random_bytes(300'000, 6);
    ASSERT_TRUE(ends.near.send(words));
    ends.near.close();
    EXPECT_TRUE(ends.far.receive(words.size()) == words);
    EXPECT_EQ(ends.far.wait_for_end(), ending::end_of_stream);
}

TEST(delay_proxy, a_reset_is_passed_on_late) {
    constexpr duration delay = 30ms;
    for (const bool near_first : {true, false}) {
        joined ends({.delay = delay});
        tcp_end& first = near_first ? ends.near : ends.far;
        tcp_end& second = near_first ? ends.far : ends.near;
        // Before something came through, a target that resets looks to the proxy like one that is not there.
        ASSERT_TRUE(second.send(byte_vector(1)));
        ASSERT_EQ(first.receive(1).size(), 1U);
        const time_point begun = now();
        first.reset();
        EXPECT_EQ(second.wait_for_end(), ending::reset);
        EXPECT_GE(now() - begun, delay);
    }
}

TEST(delay_proxy, a_reset_after_half_a_close_is_passed_on) {
    joined ends({.delay = 10ms});
    ends.near.shutdown_send();
    EXPECT_EQ(ends.far.wait_for_end(), ending::end_of_stream);
    // The far end goes on sending to somebody who has died in the meantime: its connection breaks.
    ends.near.reset();
    const byte_vector words(1000);
    const time_point give_up = now() + patience;
    while (ends.far.send(words) && now() < give_up)
        std::this_thread::sleep_for(1ms);
    EXPECT_LT(now(), give_up);
}

TEST(delay_proxy, several_targets_are_kept_apart) {
    const listener behind[2];
    proxy_options options;
    options.to = {behind[0].address(), behind[1].address()};
    const auto proxy = delay_proxy::start(options).value();
    for (std::size_t i = 0; i < 2; ++i) {
        tcp_end near = tcp_end::connect(proxy->local(i).port);
        tcp_end far = behind[i].accept();
        ASSERT_TRUE(near.send(byte_vector(i + 1)));
        EXPECT_EQ(far.receive(i + 1).size(), i + 1);
        EXPECT_EQ(proxy->statistics(i).bytes_to_target, i + 1);
        EXPECT_EQ(proxy->statistics(i).connections, 1U);
    }
    options.listen.port = proxy->local(0).port;
    EXPECT_FALSE(delay_proxy::start(options));
}

TEST(delay_proxy, an_unreachable_target_is_a_reset) {
    net::endpoint nobody;
    { nobody = listener().address(); }
    const auto proxy = start_proxy(nobody);
    tcp_end near = tcp_end::connect(proxy->local().port);
    EXPECT_EQ(near.wait_for_end(), ending::reset);
}

TEST(delay_proxy, many_connections_and_an_end_in_their_midst) {
    listener behind;
    auto proxy = start_proxy(behind.address(), {.delay = 5ms}, 8);
    std::vector<tcp_end> near;
    std::vector<tcp_end> far;
    for (int i = 0; i < 8; ++i) {
        near.push_back(tcp_end::connect(proxy->local().port));
        far.push_back(behind.accept());
        ASSERT_TRUE(near.back().send(byte_vector(static_cast<std::size_t>(i + 1))));
        EXPECT_EQ(far.back().receive(static_cast<std::size_t>(i + 1)).size(), static_cast<std::size_t>(i + 1));
    }
    // The ninth has to wait for a place, and gets one.
    tcp_end late = tcp_end::connect(proxy->local().port);
    ASSERT_TRUE(late.send(byte_vector(3)));
    near[0].close();
    far[0].close();
    tcp_end late_far = behind.accept();
    EXPECT_EQ(late_far.receive(3).size(), 3U);
    // The proxy goes while connections are open and bytes on their way.
    ASSERT_TRUE(near[1].send(byte_vector(1000)));
    proxy.reset();
    EXPECT_NE(near[1].wait_for_end(), ending::none);
    EXPECT_NE(far[2].wait_for_end(), ending::none);
}

TEST(delay_proxy_program, passes_bytes_on_and_counts_them) {
    listener behind;
    auto started = cli::child_process::start(
        DELAY_PROXY, {"--to", behind.address().text(), "--delay-ms", "2.5", "--bandwidth", "100MB", "--seed", "3"});
    ASSERT_TRUE(started);
    const std::string line = started->read_line(patience).value_or("");
    ASSERT_THAT(line, HasSubstr("listening on 127.0.0.1:"));
    const auto address = net::endpoint::parse(line.substr(line.rfind(' ') + 1)).value();
    tcp_end near = tcp_end::connect(address.port);
    tcp_end far = behind.accept();
    const byte_vector words = random_bytes(70'000, 7);
    const time_point begun = now();
    ASSERT_TRUE(near.send(words));
    EXPECT_TRUE(far.receive(words.size()) == words);
    ASSERT_TRUE(far.send(std::span(words).first(5)));
    EXPECT_EQ(near.receive(5).size(), 5U);
    EXPECT_GE(now() - begun, 5ms);
    ::kill(started->pid(), SIGTERM);
    EXPECT_EQ(started->read_line(patience).value_or(""),
              "passed: connections 1 bytes to target 70000 from target 5 turns 1");
}

TEST(delay_proxy_program, bad_input_ends_with_one_line) {
    const std::vector<std::vector<std::string>> cases = {
        {"--to", "nowhere"},
        {"--to", "127.0.0.1:1", "--listen", "127.0.0.1"},
        {"--to", "127.0.0.1:1", "--stall-every-ms", "100"},
        {"--to", "127.0.0.1:1", "--delay-ms", "100000", "--bandwidth", "1000MB"},
    };
    for (auto words : cases) {
        words.insert(words.begin(), DELAY_PROXY);
        const auto ended = test_support::run_program(words);
        EXPECT_EQ(ended.status, 2) << ended.err;
        EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
        EXPECT_THAT(ended.err, ::testing::StartsWith("kvasir-delay-proxy: "));
    }
}

}  // namespace
}  // namespace kvasir::bench
