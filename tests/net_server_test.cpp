// The server against sockets that misbehave.
#include "net/server.hpp"

#include <gmock/gmock.h>

#include <atomic>

#include "net_support.hpp"

namespace kvasir::net {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class net_server : public ::testing::Test {
  protected:
    void listen(server_options options = {}) {
        server_handlers handlers;
        handlers.on_compute = [](const auto& whom, request_id id, wire::received_compute request) {
            whom->finish_result(id, wire::result_for(request, 4));
        };
        handlers.on_closed = [this](const auto&, const error& why) {
            const std::scoped_lock lock(mutex_);
            ends_.push_back(why);
        };
        handlers.on_rejected = [this](const std::string&, const error& why) {
            const std::scoped_lock lock(mutex_);
            ends_.push_back(why);
        };
        server_ = server::listen(io_, {"127.0.0.1", 0}, wire::worker_hello(), std::move(options), handlers).value();
    }
    ~net_server() override {
        server_.reset();
        io_.stop();
    }
    std::uint16_t port() const { return server_->local().port; }
    wire::byte_vector hello_frame() const {
        return wire::frame(wire::frame_type::hello, 0, *wire::encode(wire::backbone_hello()));
    }
    wire::byte_vector compute_frame(std::uint64_t id, std::uint32_t n_rows = 1) const {
        return wire::frame(wire::frame_type::compute, id, wire::joined(*wire::encode(wire::small_request(n_rows))), 3);
    }
    bool serves() {
        raw_client good(port());
        return good.connected() && good.send(hello_frame()) && good.send(compute_frame(1)) &&
               good.receive(wire::frame_type::result).has_value();
    }
    std::optional<error> end(std::size_t which) {
        eventually([&] {
            const std::scoped_lock lock(mutex_);
            return ends_.size() > which;
        });
        const std::scoped_lock lock(mutex_);
        return ends_.size() > which ? std::optional(ends_[which]) : std::nullopt;
    }

    std::mutex mutex_;
    std::vector<error> ends_;
    io_runner io_{1};
    std::unique_ptr<server> server_;
};

TEST_F(net_server, a_port_in_use) {
    listen();
    const auto second = server::listen(io_, {"127.0.0.1", port()}, wire::worker_hello(), {}, {});
    ASSERT_FALSE(second);
    EXPECT_THAT(second.error().message, HasSubstr("in use"));
    EXPECT_THAT(second.error().message, HasSubstr("choose another port"));
    EXPECT_FALSE(server::listen(io_, {"no-such-host.invalid", 0}, wire::worker_hello(), {}, {}));
    EXPECT_FALSE(server::listen(io_, {"192.0.2.1", 0}, wire::worker_hello(), {}, {})) << "not an address of ours";
}

TEST_F(net_server, garbage_is_answered_by_name_and_closed) {
    listen();
    raw_client rude(port());
    ASSERT_TRUE(rude.send(as_bytes("GET / HTTP/1.1\r\nHost: example\r\n\r\n")));
    const auto said = rude.receive(wire::frame_type::error);
    ASSERT_TRUE(said);
    EXPECT_THAT(wire::decode_error(said->payload)->text, HasSubstr("kvasir node"));
    EXPECT_TRUE(rude.sees_end());
    EXPECT_TRUE(serves());
}

TEST_F(net_server, last_words_arrive_although_more_is_sent) {
    listen();
    // The refusal must not be lost to a reset because bytes of ours were never read.
    for (int i = 0; i < 20; ++i) {
        raw_client rude(port());
        wire::byte_vector bytes(200000, std::byte{0xee});
        rude.send(bytes, 1000ms);
        EXPECT_TRUE(rude.receive(wire::frame_type::error)) << i;
    }
}

TEST_F(net_server, who_says_nothing_is_shown_out) {
    listen({.connection = {.handshake_timeout = 100ms}});
    raw_client silent(port());
    EXPECT_TRUE(silent.sees_end());
    EXPECT_EQ(end(0)->code, errc::timeout);
    raw_client half(port());
    ASSERT_TRUE(half.send(byte_span(hello_frame()).first(30)));
    EXPECT_TRUE(half.sees_end());
    EXPECT_EQ(end(1)->code, errc::timeout);
    EXPECT_TRUE(serves());
}

TEST_F(net_server, disconnects_at_every_place) {
    listen();
    const auto bytes = [&] {
        auto all = hello_frame();
        const auto asked = compute_frame(1);
        all.insert(all.end(), asked.begin(), asked.end());
        return all;
    }();
    std::size_t n = 0;
    for (std::size_t length = 0; length <= bytes.size(); length += 3) {
        raw_client fickle(port());
        ASSERT_TRUE(fickle.send(byte_span(bytes).first(length)));
        if (length % 2 == 0) fickle.abort();
        ++n;
    }
    EXPECT_TRUE(end(n - 1));
    EXPECT_TRUE(eventually([&] { return server_->n_connections() == 0; }));
    EXPECT_TRUE(serves());
}

TEST_F(net_server, an_orderly_end_of_stream_is_the_end) {
    listen();
    raw_client done(port());
    ASSERT_TRUE(done.send(hello_frame()));
    ASSERT_TRUE(done.receive(wire::frame_type::hello));
    done.shutdown_send();
    EXPECT_TRUE(done.sees_end());
}

TEST_F(net_server, a_reader_that_is_slow_is_waited_for_and_one_that_stopped_is_not) {
    listen({.connection = {.write_stall_timeout = 400ms}});
    raw_client slow(port(), 4096);
    ASSERT_TRUE(slow.send(hello_frame()));
    ASSERT_TRUE(slow.receive(wire::frame_type::hello));
    // Many results of 1.6 MB: more than all buffers take.
    std::uint64_t n_sent = 0;
    wire::byte_vector asked = wire::frame(
        wire::frame_type::compute, 0,
        [] {
            wire::compute_request request = wire::small_request(1);
            request.pairs.assign(30000, {0, 1});
            return wire::joined(*wire::encode(request));
        }(),
        3);
    while (n_sent < 64) {
        const std::uint64_t id = ++n_sent;
        std::memcpy(asked.data() + 8, &id, sizeof id);
        if (!slow.send(asked, 200ms)) break;
    }
    // Nobody reads: the worker stops reading, then gives up.
    EXPECT_EQ(end(0)->code, errc::timeout);
    EXPECT_TRUE(serves());
}

TEST_F(net_server, a_flood_of_pings_without_reading) {
    listen({.connection = {.write_stall_timeout = 400ms}});
    raw_client flood(port(), 4096);
    ASSERT_TRUE(flood.send(hello_frame()));
    wire::byte_vector pings;
    for (int i = 0; i < 1000; ++i) {
        const auto ping = wire::frame(wire::frame_type::ping, 0, wire::byte_vector(8));
        pings.insert(pings.end(), ping.begin(), ping.end());
    }
    for (int i = 0; i < 3000 && flood.send(pings, 100ms); ++i) {
    }
    ASSERT_TRUE(end(0));
    EXPECT_TRUE(serves());
}

TEST_F(net_server, two_hundred_at_once) {
    listen();
    std::vector<std::unique_ptr<raw_client>> crowd;
    for (int i = 0; i < 200; ++i) {
        crowd.push_back(std::make_unique<raw_client>(port()));
        ASSERT_TRUE(crowd.back()->connected());
        ASSERT_TRUE(crowd.back()->send(hello_frame()));
    }
    for (std::uint64_t id = 1; id <= 3; ++id) {
        for (auto& one : crowd)
            ASSERT_TRUE(one->send(compute_frame(id)));
        for (auto& one : crowd) {
            const auto answered = one->receive(wire::frame_type::result);
            ASSERT_TRUE(answered);
            EXPECT_EQ(answered->header.request.value, id);
        }
    }
    EXPECT_EQ(server_->n_connections(), 200U);
    crowd.clear();
    EXPECT_TRUE(eventually([&] { return server_->n_connections() == 0; }));
}

TEST_F(net_server, answers_nobody_when_full_of_strangers_but_recovers) {
    listen({.connection = {.handshake_timeout = 200ms}, .max_connections = 8});
    std::vector<std::unique_ptr<raw_client>> strangers;
    for (int i = 0; i < 100; ++i)
        strangers.push_back(std::make_unique<raw_client>(port()));
    EXPECT_TRUE(eventually([&] { return serves(); }));
}

}  // namespace
}  // namespace kvasir::net
