// A backbone's connection against a worker's over TCP and over memory: requests, cancelling, silence, ends.
#include "net/connection.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <thread>

#include "net/memory_stream.hpp"
#include "net/peer_establish.hpp"
#include "net/server.hpp"
#include "net_support.hpp"

namespace kvasir::net {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

/// The sum of a row's values and the local expert id, in every value of the result row: wrong if anything is mixed up.
wire::compute_result echo(const wire::received_compute& request, std::uint32_t n_out) {
    std::vector<float> rows;
    for (const row_expert_pair& pair : request.pairs) {
        float sum = static_cast<float>(pair.expert);
        const std::size_t row_bytes = std::size_t{request.n_values} * sizeof(float);
        byte_reader row(request.rows.subspan(pair.row * row_bytes, row_bytes));
        for (std::uint32_t i = 0; i < request.n_values; ++i)
            sum += *row.read_f32();
        rows.insert(rows.end(), n_out, sum);
    }
    wire::compute_result result;
    result.n_pairs = static_cast<std::uint32_t>(request.pairs.size());
    result.n_values = n_out;
    result.rows = wire::shared_bytes::own(std::move(rows));
    return result;
}

wire::compute_request request_of(float value, std::uint32_t n_rows = 1) {
    wire::compute_request request = wire::small_request(n_rows);
    std::vector<float> rows(std::size_t{n_rows} * 8, 0.0F);
    for (std::uint32_t row = 0; row < n_rows; ++row)
        rows[row * 8] = value + static_cast<float>(row);
    request.rows = wire::shared_bytes::own(std::move(rows));
    return request;
}

/// A worker that echoes. Requests can be held back.
class echo_server {
  public:
    explicit echo_server(server_options options = {}, wire::hello ours = wire::worker_hello(), int n_threads = 1)
        : io_(n_threads) {
        server_handlers handlers;
        handlers.on_compute = [this](const auto& whom, request_id id, wire::received_compute request) {
            const std::scoped_lock lock(mutex_);
            ++n_requests_;
            if (holding_) {
                held_.push_back({whom, id, std::move(request)});
            } else {
                whom->finish_result(id, echo(request, 4));
            }
        };
        handlers.on_cancel = [this](const auto&, request_id) { ++n_cancels_; };
        handlers.on_closed = [this](const auto&, const error&) { ++n_closed_; };
        handlers.on_rejected = [this](const std::string&, const error&) { ++n_rejected_; };
        server_ = server::listen(io_, {"127.0.0.1", 0}, std::move(ours), std::move(options), handlers).value();
    }
    ~echo_server() {
        server_.reset();
        io_.stop();
    }

    endpoint where() const { return server_->local(); }
    server& get() { return *server_; }
    void hold() {
        const std::scoped_lock lock(mutex_);
        holding_ = true;
    }
    void release() {
        const std::scoped_lock lock(mutex_);
        holding_ = false;
        for (auto& one : held_)
            one.whom->finish_result(one.id, echo(one.request, 4));
        held_.clear();
    }
    std::size_t n_held() {
        const std::scoped_lock lock(mutex_);
        return held_.size();
    }
    int n_requests() {
        const std::scoped_lock lock(mutex_);
        return n_requests_;
    }
    int n_cancels() const { return n_cancels_; }
    int n_closed() const { return n_closed_; }
    int n_rejected() const { return n_rejected_; }

  private:
    struct held_request {
        std::shared_ptr<served_connection> whom;
        request_id id;
        wire::received_compute request;
    };
    io_runner io_;
    std::mutex mutex_;
    bool holding_ = false;
    int n_requests_ = 0;
    std::vector<held_request> held_;
    std::atomic<int> n_cancels_ = 0;
    std::atomic<int> n_closed_ = 0;
    std::atomic<int> n_rejected_ = 0;
    std::unique_ptr<server> server_;
};

class net_connection : public ::testing::Test {
  protected:
    result<peer_connection::ptr> try_connect(const endpoint& where, connection_options options = {},
                                             wire::hello ours = wire::backbone_hello()) {
        return peer_connection::connect_and_wait(io_, where, std::move(ours), options, seen_.handlers());
    }
    peer_connection::ptr connect(const endpoint& where, connection_options options = {}) {
        auto connected = try_connect(where, options);
        EXPECT_TRUE(connected) << (connected ? "" : connected.error().message);
        return connected ? *connected : nullptr;
    }

    recorder seen_;
    recorder seen_by_others_[2];
    io_runner io_{2};  ///< last: its threads call the recorders
};

TEST_F(net_connection, computes) {
    echo_server worker;
    const auto peer = connect(worker.where());
    ASSERT_TRUE(peer);
    EXPECT_EQ(peer->hello(), wire::worker_hello());
    EXPECT_EQ(peer->remote(), worker.where().text());
    EXPECT_TRUE(peer->usable());
    for (std::uint64_t id = 1; id <= 50; ++id)
        ASSERT_TRUE(peer->send_compute({id}, request_of(static_cast<float>(id), 3)));
    for (std::uint64_t id = 1; id <= 50; ++id) {
        const auto answered = seen_.result(id);
        ASSERT_TRUE(answered) << id;
        EXPECT_EQ(answered->row(2)[3], static_cast<float>(id) + 2 + 1);
    }
    const auto measured = peer->statistics();
    EXPECT_GT(measured.bytes_in, 50U * 48U);
    EXPECT_GT(measured.bytes_out, 50U * 96U);
    EXPECT_EQ(measured.requests_in_flight, 0U);
    EXPECT_EQ(measured.outgoing_bytes, 0U);
    EXPECT_TRUE(eventually([&] { return peer->statistics().round_trip_time.has_value(); }));
    EXPECT_LT(*peer->statistics().round_trip_time, 5s);
    peer->close();
    EXPECT_EQ(seen_.closed()->code, errc::closed);
    EXPECT_FALSE(peer->usable());
    EXPECT_EQ(peer->send_compute({99}, request_of(1)).error().code, errc::closed);
    EXPECT_TRUE(eventually([&] { return worker.n_closed() == 1; }));
}

TEST_F(net_connection, messages_beyond_16_mib_both_ways) {
    echo_server worker;
    const auto peer = connect(worker.where());
    ASSERT_TRUE(peer);
    // 20 MB of rows to the worker; 24 MB of rows back for a small request.
    ASSERT_TRUE(peer->send_compute({1}, request_of(5, 625000)));
    wire::compute_request wide = request_of(3, 1);
    wide.pairs.assign(1500000, {0, 2});
    ASSERT_TRUE(peer->send_compute({2}, wide));
    const auto first = seen_.result(1);
    ASSERT_TRUE(first);
    EXPECT_EQ(first->row(1000)[0], 5.0F + 1000 + 1);
    const auto second = seen_.result(2);
    ASSERT_TRUE(second);
    EXPECT_EQ(second->n_pairs, 1500000U);
    EXPECT_EQ(second->values().front(), 5.0F);
    EXPECT_EQ(second->values().back(), 5.0F);
}

TEST_F(net_connection, cancelling) {
    echo_server worker;
    const auto peer = connect(worker.where());
    ASSERT_TRUE(peer);
    worker.hold();
    ASSERT_TRUE(peer->send_compute({1}, request_of(1)));
    ASSERT_TRUE(peer->send_compute({2}, request_of(2)));
    ASSERT_TRUE(eventually([&] { return worker.n_held() == 2; }));
    EXPECT_TRUE(peer->cancel({1}));
    EXPECT_FALSE(peer->cancel({1}));
    EXPECT_FALSE(peer->cancel({3}));
    EXPECT_TRUE(eventually([&] { return worker.n_cancels() == 1; }));
    worker.release();
    EXPECT_TRUE(seen_.result(2));
    EXPECT_TRUE(eventually([&] { return peer->statistics().requests_in_flight == 0; }));
    EXPECT_EQ(seen_.ends().size(), 1U);
}

TEST_F(net_connection, errors_of_one_request) {
    echo_server worker;
    const auto peer = connect(worker.where());
    ASSERT_TRUE(peer);
    wire::compute_request wrong = request_of(1);
    wrong.layer = {99};
    EXPECT_EQ(peer->send_compute({1}, wrong).error().code, errc::invalid_input);
    EXPECT_TRUE(peer->send_compute({1}, request_of(1)));
    EXPECT_TRUE(seen_.result(1));
}

TEST_F(net_connection, a_worker_that_vanishes) {
    auto worker = std::make_unique<echo_server>();
    const auto peer = connect(worker->where());
    ASSERT_TRUE(peer);
    worker->hold();
    ASSERT_TRUE(peer->send_compute({1}, request_of(1)));
    ASSERT_TRUE(eventually([&] { return worker->n_held() == 1; }));
    worker.reset();
    ASSERT_TRUE(seen_.closed());
    EXPECT_TRUE(seen_.ends().empty());
    EXPECT_FALSE(peer->usable());
}

TEST_F(net_connection, letting_go_of_a_connection_closes_it) {
    echo_server worker;
    connect(worker.where()).reset();
    EXPECT_EQ(seen_.closed()->code, errc::closed);
    EXPECT_TRUE(eventually([&] { return worker.n_closed() == 1; }));
}

TEST_F(net_connection, nobody_listens) {
    const std::uint16_t port = echo_server().where().port;
    const auto connected = try_connect({"127.0.0.1", port});
    ASSERT_FALSE(connected);
    EXPECT_EQ(connected.error().code, boost::system::errc::connection_refused);
    EXPECT_THAT(connected.error().message, HasSubstr("127.0.0.1:" + std::to_string(port)));
}

TEST_F(net_connection, a_host_that_does_not_exist) {
    const auto connected = try_connect({"no-such-host.invalid", 1});
    ASSERT_FALSE(connected);
    EXPECT_THAT(connected.error().message, HasSubstr("no-such-host.invalid"));
}

TEST_F(net_connection, another_model) {
    echo_server worker;
    wire::hello ours = wire::backbone_hello();
    ours.model.bytes.fill(std::byte{0x77});
    const auto connected = try_connect(worker.where(), {}, ours);
    ASSERT_FALSE(connected);
    EXPECT_EQ(connected.error().code, errc::mismatch);
    EXPECT_THAT(connected.error().message, HasSubstr("model digest"));
    EXPECT_THAT(connected.error().message, HasSubstr(worker.where().text()));
    EXPECT_TRUE(eventually([&] { return worker.n_rejected() == 1; }));
    EXPECT_FALSE(try_connect(worker.where(), {}, wire::worker_hello())) << "a worker is no backbone";
}

/// Somebody who listens and says what a test wants, or nothing.
class silent_listener {
  public:
    silent_listener() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof address;
        EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), length), 0);
        EXPECT_EQ(::listen(socket_, 16), 0);
        EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length), 0);
        port_ = ntohs(address.sin_port);
    }
    ~silent_listener() {
        for (const int accepted : accepted_)
            ::close(accepted);
        ::close(socket_);
    }
    endpoint where() const { return {"127.0.0.1", port_}; }
    void accept_and_say(byte_span bytes) {
        accepted_.push_back(::accept(socket_, nullptr, nullptr));
        EXPECT_EQ(::send(accepted_.back(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(bytes.size()));
    }

  private:
    int socket_;
    std::uint16_t port_ = 0;
    std::vector<int> accepted_;
};

TEST_F(net_connection, a_listener_that_says_nothing) {
    const silent_listener nobody;
    const auto connected = try_connect(nobody.where(), {.handshake_timeout = 100ms});
    ASSERT_FALSE(connected);
    EXPECT_EQ(connected.error().code, errc::timeout);
}

TEST_F(net_connection, a_listener_of_another_protocol) {
    silent_listener web;
    std::thread speaker([&] { web.accept_and_say(as_bytes("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")); });
    const auto connected = try_connect(web.where());
    speaker.join();
    ASSERT_FALSE(connected);
    EXPECT_EQ(connected.error().code, errc::invalid_input);
    EXPECT_THAT(connected.error().message, HasSubstr("is the other side a kvasir node?"));
}

TEST_F(net_connection, a_worker_that_falls_silent) {
    silent_listener sleeper;
    const auto said = wire::frame(wire::frame_type::hello, 0, *wire::encode(wire::worker_hello()));
    std::thread speaker([&] { sleeper.accept_and_say(said); });
    const auto peer = connect(sleeper.where(), {.ping_interval = 50ms, .dead_peer_timeout = 200ms});
    speaker.join();
    ASSERT_TRUE(peer);
    ASSERT_TRUE(peer->send_compute({1}, request_of(1)));
    EXPECT_EQ(seen_.closed()->code, errc::timeout);
}

TEST_F(net_connection, a_worker_that_does_not_read) {
    silent_listener sleeper;
    wire::hello big = wire::worker_hello();
    const auto said = wire::frame(wire::frame_type::hello, 0, *wire::encode(big));
    std::thread speaker([&] { sleeper.accept_and_say(said); });
    connection_options options;
    options.max_outgoing_bytes = 40 << 20;
    options.write_stall_timeout = 1s;
    wire::compute_request first = request_of(1, 1000000);
    wire::compute_request second = first;
    const auto peer = connect(sleeper.where(), options);
    speaker.join();
    ASSERT_TRUE(peer);
    // The sender is told when too much waits, and sees the end when nothing is taken.
    EXPECT_TRUE(peer->send_compute({1}, std::move(first)));
    EXPECT_EQ(peer->send_compute({2}, std::move(second)).error().code, errc::busy);
    EXPECT_EQ(seen_.closed()->code, errc::timeout);
}

TEST_F(net_connection, leaving_workers_answer_first) {
    echo_server worker;
    const auto peer = connect(worker.where());
    ASSERT_TRUE(peer);
    worker.hold();
    ASSERT_TRUE(peer->send_compute({1}, request_of(1)));
    ASSERT_TRUE(eventually([&] { return worker.n_held() == 1; }));
    std::thread leaving([&] { EXPECT_TRUE(worker.get().shut_down(patience)); });
    EXPECT_TRUE(seen_.drained());
    EXPECT_FALSE(peer->usable());
    EXPECT_EQ(peer->send_compute({2}, request_of(1)).error().code, errc::closed);
    EXPECT_FALSE(seen_.ends().contains(1));
    worker.release();
    EXPECT_TRUE(seen_.result(1));
    EXPECT_EQ(seen_.closed()->code, errc::closed);
    leaving.join();
    EXPECT_FALSE(try_connect(worker.where()));
}

TEST_F(net_connection, leaving_has_a_deadline) {
    echo_server worker;
    const auto peer = connect(worker.where());
    ASSERT_TRUE(peer);
    worker.hold();
    ASSERT_TRUE(peer->send_compute({1}, request_of(1)));
    ASSERT_TRUE(eventually([&] { return worker.n_held() == 1; }));
    EXPECT_FALSE(worker.get().shut_down(50ms));
    EXPECT_TRUE(seen_.closed());
    EXPECT_TRUE(seen_.ends().empty());
}

TEST_F(net_connection, too_many_connections) {
    echo_server worker({.max_connections = 2});
    const auto one = connect(worker.where());
    const auto two = peer_connection::connect_and_wait(io_, worker.where(), wire::backbone_hello(), {},
                                                       seen_by_others_[0].handlers());
    ASSERT_TRUE(one);
    ASSERT_TRUE(two);
    const auto three = try_connect(worker.where());
    ASSERT_FALSE(three);
    EXPECT_EQ(three.error().code, errc::busy);
    EXPECT_THAT(three.error().message, HasSubstr("number of connections"));
    one->close();
    EXPECT_TRUE(eventually([&] { return worker.get().n_connections() == 1; }));
    EXPECT_TRUE(peer_connection::connect_and_wait(io_, worker.where(), wire::backbone_hello(), {},
                                                  seen_by_others_[1].handlers()));
}

TEST_F(net_connection, many_threads_ask_and_cancel) {
    wire::hello busy = wire::worker_hello();
    busy.accepts.max_requests_in_flight = 1000;
    echo_server worker({}, busy, 2);
    const auto peer = connect(worker.where());
    ASSERT_TRUE(peer);
    std::atomic<std::uint64_t> next = 1;
    std::atomic<std::uint64_t> n_expected = 0;
    std::mutex cancelled_mutex;
    std::set<std::uint64_t> cancelled;
    {
        std::vector<std::jthread> threads;
        for (unsigned t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                std::mt19937_64 random(t);
                for (int i = 0; i < 300; ++i) {
                    const std::uint64_t id = next++;
                    const auto n_rows = static_cast<std::uint32_t>(random() % 50 == 0 ? 20000 : 1 + random() % 10);
                    const auto sent = peer->send_compute({id}, request_of(static_cast<float>(id), n_rows));
                    if (!sent) {
                        EXPECT_EQ(sent.error().code, errc::busy);
                        continue;
                    }
                    if (random() % 4 == 0 && peer->cancel({id})) {
                        const std::scoped_lock lock(cancelled_mutex);
                        cancelled.insert(id);
                    } else {
                        ++n_expected;
                    }
                }
            });
        }
    }
    EXPECT_TRUE(seen_.wait_for_ends(n_expected));
    EXPECT_TRUE(eventually([&] { return peer->statistics().requests_in_flight == 0; }));
    const auto ends = seen_.ends();
    EXPECT_EQ(ends.size(), n_expected);
    for (const auto& [id, n] : ends) {
        EXPECT_EQ(n, 1);
        EXPECT_FALSE(cancelled.contains(id));
        const auto answered = seen_.result(id);
        ASSERT_TRUE(answered);
        EXPECT_EQ(answered->row(0)[0], static_cast<float>(id) + 1);
    }
}

/// The same conversation over another transport, with buffers so small that everybody must wait all the time.
TEST_F(net_connection, memory_streams_with_small_buffers) {
    const auto executor = io_.get().context.get_executor();
    for (const std::size_t capacity : {1UL, 7UL, 100UL, 65536UL}) {
        SCOPED_TRACE(capacity);
        recorder seen;
        auto [near, far] = make_memory_streams(asio::make_strand(executor), asio::make_strand(executor), capacity);
        std::shared_ptr<connection> worker;
        std::promise<void> worker_closed;
        std::promise<void> worker_started;
        const auto far_strand = far->executor();
        asio::post(far_strand, [&, shared = std::make_shared<std::unique_ptr<byte_stream>>(std::move(far))] {
            worker = connection::start(
                std::move(*shared), wire::worker_hello(), {}, nullptr, [&](wire::conversation_event event) {
                    if (auto* asked = std::get_if<wire::compute_event>(&event)) {
                        worker->with_conversation(
                            [&](wire::conversation& talk) { talk.finish_result(asked->id, echo(asked->request, 4)); });
                    }
                    if (std::holds_alternative<wire::closed_event>(event)) worker_closed.set_value();
                });
            worker_started.set_value();
        });
        worker_started.get_future().wait();
        std::promise<result<peer_connection::ptr>> connected;
        establish_peer(std::move(near), wire::backbone_hello(), {}, seen.handlers(),
                       [&](result<peer_connection::ptr> made) { connected.set_value(std::move(made)); });
        auto made = connected.get_future().get();
        ASSERT_TRUE(made);
        const std::uint32_t n_rows = capacity < 10 ? 20 : 3000;
        for (std::uint64_t id = 1; id <= 20; ++id)
            ASSERT_TRUE((*made)->send_compute({id}, request_of(static_cast<float>(id), n_rows)));
        for (std::uint64_t id = 1; id <= 20; ++id) {
            const auto answered = seen.result(id);
            ASSERT_TRUE(answered);
            EXPECT_EQ(answered->row(n_rows - 1)[0], static_cast<float>(id) + static_cast<float>(n_rows - 1) + 1);
        }
        (*made)->close();
        worker_closed.get_future().wait();
        ASSERT_TRUE(seen.closed());
    }
}

}  // namespace
}  // namespace kvasir::net
