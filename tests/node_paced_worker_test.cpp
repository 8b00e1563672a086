// A worker with a limit on rows per second: right answers, no sooner than they are due, and never deaf.
#include <gmock/gmock.h>

#include "node/worker.hpp"
#include "node_support.hpp"

namespace kvasir::node {
namespace {

using namespace std::chrono_literals;

class node_paced_worker : public ::testing::Test {
  protected:
    void start(double max_rows_per_second) {
        auto held =
            held_slice::load({.path = shared_model().slice_path(), .manifest = {}, .skip_check = true, .progress = {}});
        ASSERT_TRUE(held);
        worker_options options;
        options.max_rows_per_second = max_rows_per_second;
        auto started = worker::start(*std::move(held), std::move(options));
        ASSERT_TRUE(started) << started.error().message;
        worker_ = *std::move(started);
    }
    asked_and_expected ask(std::uint32_t n_pairs) {
        return reference_.ask(worker_->held().layers()[0], 4, n_pairs, row_encoding::f32, random_);
    }
    static void say_hello(net::raw_client& client) {
        ASSERT_TRUE(
            client.send(wire::frame(wire::frame_type::hello, 0, *wire::encode(shared_model().backbone_hello()))));
        ASSERT_TRUE(client.receive(wire::frame_type::hello));
    }
    static void send_compute(net::raw_client& client, std::uint64_t id, const wire::compute_request& request) {
        ASSERT_TRUE(client.send(wire::frame(wire::frame_type::compute, id, wire::joined(*wire::encode(request)), 1)));
    }

    std::mt19937_64 random_{11};
    reference reference_{shared_model()};
    std::unique_ptr<worker> worker_;
};

TEST_F(node_paced_worker, computes_the_same_bits_no_faster_than_allowed) {
    constexpr double rate = 200.0;  // a burst of 10 rows
    start(rate);
    net::raw_client client(worker_->local().port);
    say_hello(client);
    const auto asked = ask(30);
    const auto begun = std::chrono::steady_clock::now();
    for (std::uint64_t id = 1; id <= 3; ++id)
        send_compute(client, id, asked.request);
    for (std::uint32_t id = 1; id <= 3; ++id) {
        const auto answer = client.receive(wire::frame_type::result);
        ASSERT_TRUE(answer);
        EXPECT_EQ(answer->header.request.value, id);
        const auto result = wire::decode_result({id}, wire::payload_buffer::copy_of(answer->payload));
        ASSERT_TRUE(result);
        EXPECT_TRUE(same_bits(result->values(), asked.expected));
        // The limit is what the worker says of its speed: 20 rows had to be waited for.
        if (id == 1) {
            EXPECT_GE(result->compute_time_us, 100'000U);
        }
    }
    EXPECT_GE(std::chrono::steady_clock::now() - begun, 400ms);
}

TEST_F(node_paced_worker, pings_and_cancels_do_not_wait) {
    start(1.0);
    net::raw_client client(worker_->local().port);
    say_hello(client);
    send_compute(client, 1, ask(1).request);  // the burst
    ASSERT_TRUE(client.receive(wire::frame_type::result));
    send_compute(client, 2, ask(1000).request);  // a quarter of an hour
    send_compute(client, 3, ask(1000).request);
    ASSERT_TRUE(client.send(wire::frame(wire::frame_type::ping, 0, wire::byte_vector(8))));
    ASSERT_TRUE(client.receive(wire::frame_type::pong));
    for (const std::uint64_t id : {2U, 3U}) {
        ASSERT_TRUE(client.send(wire::frame(wire::frame_type::cancel, id, {})));
        const auto failed = client.receive(wire::frame_type::error);
        ASSERT_TRUE(failed);
        EXPECT_EQ(failed->header.request.value, id);
        EXPECT_EQ(wire::decode_error(failed->payload)->code, wire::error_code::cancelled);
    }
    // What was cancelled at the front has used nothing up.
    const auto asked = ask(1);
    send_compute(client, 4, asked.request);
    const auto answer = client.receive(wire::frame_type::result);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->header.request.value, 4U);
    EXPECT_TRUE(
        same_bits(wire::decode_result({4}, wire::payload_buffer::copy_of(answer->payload))->values(), asked.expected));
}

TEST_F(node_paced_worker, ends_although_a_request_waits_for_its_turn) {
    start(1.0);
    net::raw_client client(worker_->local().port);
    say_hello(client);
    send_compute(client, 1, ask(1000).request);
    ASSERT_TRUE(client.send(wire::frame(wire::frame_type::ping, 0, wire::byte_vector(8))));
    ASSERT_TRUE(client.receive(wire::frame_type::pong));
    worker_.reset();
    EXPECT_TRUE(client.sees_end());
}

TEST_F(node_paced_worker, who_leaves_makes_room_for_the_next) {
    start(1.0);
    {
        net::raw_client first(worker_->local().port);
        say_hello(first);
        send_compute(first, 1, ask(1000).request);
        ASSERT_TRUE(first.send(wire::frame(wire::frame_type::ping, 0, wire::byte_vector(8))));
        ASSERT_TRUE(first.receive(wire::frame_type::pong));
    }
    net::raw_client second(worker_->local().port);
    say_hello(second);
    send_compute(second, 1, ask(1).request);
    EXPECT_TRUE(second.receive(wire::frame_type::result));
}

TEST_F(node_paced_worker, the_program_takes_the_limit) {
    worker_process process({"--slice", shared_model().slice_path(), "--threads", "1", "--max-rows-per-second", "100"});
    net::raw_client client(process.port());
    say_hello(client);
    start(1e9);  // for its slice
    const auto begun = std::chrono::steady_clock::now();
    send_compute(client, 1, ask(25).request);
    ASSERT_TRUE(client.receive(wire::frame_type::result));
    EXPECT_GE(std::chrono::steady_clock::now() - begun, 200ms);
}

}  // namespace
}  // namespace kvasir::node
