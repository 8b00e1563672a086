// A worker in this process, asked over TCP: the bits are those of the whole model, whatever else happens.
#include "node/worker.hpp"

#include <gmock/gmock.h>

#include <thread>

#include "node_support.hpp"

namespace kvasir::node {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class node_worker : public ::testing::Test {
  protected:
    void start(const std::function<void(worker_options&)>& change = [](worker_options&) {}) {
        worker_options options;
        change(options);
        options.on_event = [this](const worker_event& event) {
            const std::scoped_lock lock(mutex_);
            events_.push_back(event);
        };
        auto held =
            held_slice::load({.path = shared_model().slice_path(), .manifest = {}, .skip_check = true, .progress = {}});
        ASSERT_TRUE(held);
        auto started = worker::start(*std::move(held), std::move(options));
        ASSERT_TRUE(started) << started.error().message;
        worker_ = *std::move(started);
    }
    net::peer_connection::ptr connect(net::recorder& seen, wire::hello ours = shared_model().backbone_hello()) {
        auto peer = net::peer_connection::connect_and_wait(io_, worker_->local(), std::move(ours), {}, seen.handlers());
        EXPECT_TRUE(peer) << (peer ? "" : peer.error().message);
        return peer ? *peer : nullptr;
    }
    std::vector<worker_event> events() {
        const std::scoped_lock lock(mutex_);
        return events_;
    }

    std::mutex mutex_;
    std::vector<worker_event> events_;
    net::recorder seen_[8];
    std::mt19937_64 random_{11};
    reference reference_{shared_model()};
    std::unique_ptr<worker> worker_;
    net::io_runner io_{2};
};

TEST_F(node_worker, computes_the_bits_of_the_whole_model) {
    start([](worker_options& options) { options.name = "shed"; });
    const auto peer = connect(seen_[0]);
    ASSERT_TRUE(peer);
    EXPECT_EQ(peer->hello().name, "shed");
    EXPECT_EQ(peer->hello().layers, worker_->held().layers());
    std::map<std::uint64_t, std::vector<float>> expected;
    std::uint64_t id = 0;
    for (const wire::held_layer& held : peer->hello().layers) {
        for (const row_encoding encoding : held.encodings) {
            for (const auto& [n_rows, n_pairs] : {std::pair{1U, 1U}, {1U, 8U}, {5U, 3U}, {64U, 200U}, {3U, 0U}}) {
                auto asked = reference_.ask(held, n_rows, n_pairs, encoding, random_);
                expected[++id] = std::move(asked.expected);
                ASSERT_TRUE(peer->send_compute({id}, std::move(asked.request)));
            }
        }
    }
    for (const auto& [which, rows] : expected) {
        const auto answered = seen_[0].result(which);
        ASSERT_TRUE(answered) << which;
        EXPECT_EQ(answered->n_pairs * std::size_t{256}, rows.size());
        EXPECT_TRUE(same_bits(answered->values(), rows)) << which;
    }
    EXPECT_EQ(worker_->totals().requests, expected.size());
    peer->close();
    ASSERT_TRUE(net::eventually([&] { return events().size() == 2; }));
    const auto told = events();
    EXPECT_EQ(told[0].what, worker_event::kind::connected);
    EXPECT_EQ(told[1].what, worker_event::kind::closed);
    EXPECT_EQ(told[1].requests, expected.size());
    EXPECT_EQ(told[1].rows, 4U * (1 + 8 + 3 + 200));
    EXPECT_GT(told[1].bytes_in, 64U * 256 * 4);
    EXPECT_GT(told[1].bytes_out, 4U * 212 * 256 * 4);
    EXPECT_EQ(worker_->totals().bytes_out, told[1].bytes_out);
}

TEST_F(node_worker, many_backbones_at_once) {
    start([](worker_options& options) { options.n_threads = 2; });
    std::vector<std::jthread> backbones;
    for (unsigned b = 0; b < 8; ++b) {
        backbones.emplace_back([this, b] {
            const auto peer = connect(seen_[b]);
            ASSERT_TRUE(peer);
            std::mt19937_64 random(b);
            reference mine(shared_model());
            for (std::uint64_t id = 1; id <= 20; ++id) {
                const auto& held = peer->hello().layers[random() % 2];
                auto asked = mine.ask(held, 1 + id % 4, 1 + static_cast<std::uint32_t>(random() % 9),
                                      held.encodings[random() % 2], random);
                ASSERT_TRUE(peer->send_compute({id}, std::move(asked.request)));
                const auto answered = seen_[b].result(id);
                ASSERT_TRUE(answered);
                EXPECT_TRUE(same_bits(answered->values(), asked.expected));
            }
            peer->close();
            seen_[b].closed();
        });
    }
}

TEST_F(node_worker, what_it_cannot_do_is_said_per_request) {
    start();
    net::raw_client client(worker_->local().port);
    ASSERT_TRUE(client.send(wire::frame(wire::frame_type::hello, 0, *wire::encode(shared_model().backbone_hello()))));
    const auto ask = [&](std::uint64_t id, std::uint32_t layer, const wire::compute_request& request) {
        EXPECT_TRUE(
            client.send(wire::frame(wire::frame_type::compute, id, wire::joined(*wire::encode(request)), layer)));
    };
    const auto& held = worker_->held().layers()[0];
    const auto good = reference_.ask(held, 2, 4, row_encoding::f32, random_);
    ask(1, 99, good.request);
    auto bad = good.request;
    bad.pairs[0].expert = 4;
    ask(2, 1, bad);
    bad = wire::small_request();
    ask(3, 1, bad);
    bad = good.request;
    bad.act.kind = activation_kind::relu;
    ask(4, 1, bad);
    ask(5, 1, good.request);
    const std::pair<std::uint64_t, wire::error_code> expected[] = {
        {1, wire::error_code::layer_not_held},
        {2, wire::error_code::expert_not_held},
        {3, wire::error_code::shape_mismatch},
        {4, wire::error_code::activation_not_accepted},
    };
    for (const auto& [id, code] : expected) {
        const auto answer = client.receive(wire::frame_type::error);
        ASSERT_TRUE(answer);
        EXPECT_EQ(answer->header.request.value, id);
        EXPECT_EQ(wire::decode_error(answer->payload)->code, code);
    }
    const auto answer = client.receive(wire::frame_type::result);
    ASSERT_TRUE(answer);
    const auto result = wire::decode_result({1}, wire::payload_buffer::copy_of(answer->payload));
    ASSERT_TRUE(result);
    EXPECT_TRUE(same_bits(result->values(), good.expected));
}

TEST_F(node_worker, results_nobody_may_receive_are_not_computed) {
    start();
    net::raw_client client(worker_->local().port);
    auto ours = shared_model().backbone_hello();
    ours.accepts.max_message_bytes = wire::min_max_message_bytes;
    ASSERT_TRUE(client.send(wire::frame(wire::frame_type::hello, 0, *wire::encode(ours))));
    const auto& held = worker_->held().layers()[0];
    const auto asked = reference_.ask(held, 1, 100, row_encoding::f32, random_);
    ASSERT_TRUE(client.send(wire::frame(wire::frame_type::compute, 1, wire::joined(*wire::encode(asked.request)), 1)));
    const auto answer = client.receive(wire::frame_type::error);
    ASSERT_TRUE(answer);
    EXPECT_EQ(wire::decode_error(answer->payload)->code, wire::error_code::limit_exceeded);
}

TEST_F(node_worker, a_full_queue_says_busy) {
    start([](worker_options& options) {
        options.accepts.max_requests_in_flight = 1000;
        options.max_queued_requests = 2;
    });
    const auto peer = connect(seen_[0]);
    ASSERT_TRUE(peer);
    const auto& held = peer->hello().layers[0];
    const std::uint64_t n = 200;
    const auto asked = reference_.ask(held, 64, 256, row_encoding::f32, random_);
    for (std::uint64_t id = 1; id <= n; ++id)
        ASSERT_TRUE(peer->send_compute({id}, asked.request));
    ASSERT_TRUE(seen_[0].wait_for_ends(n));
    std::size_t n_busy = 0;
    for (std::uint64_t id = 1; id <= n; ++id) {
        if (const auto failed = seen_[0].failure(id)) {
            EXPECT_EQ(failed->code, wire::error_code::busy);
            ++n_busy;
        } else {
            EXPECT_TRUE(same_bits(seen_[0].result(id)->values(), asked.expected));
        }
    }
    EXPECT_GT(n_busy, 0U);
    EXPECT_LT(n_busy, n);
}

TEST_F(node_worker, results_that_wait_to_be_read_are_bounded) {
    // Two results of 256 KiB fit; the third is refused as long as nobody reads.
    start([](worker_options& options) {
        options.connection.write_stall_timeout = 60s;
        options.max_result_bytes = 600 * 1024;
    });
    net::raw_client client(worker_->local().port, 4096);
    ASSERT_TRUE(client.send(wire::frame(wire::frame_type::hello, 0, *wire::encode(shared_model().backbone_hello()))));
    const auto& held = worker_->held().layers()[0];
    const auto asked = reference_.ask(held, 1, 256, row_encoding::q8_k, random_);
    const auto payload = wire::joined(*wire::encode(asked.request));
    for (std::uint64_t id = 1; id <= 60; ++id)
        ASSERT_TRUE(client.send(wire::frame(wire::frame_type::compute, id, payload, 1)));
    // Until nothing more is computed: results stand in the way, or (in slow builds) all is done.
    std::uint64_t before = 0;
    ASSERT_TRUE(net::eventually([&] {
        std::this_thread::sleep_for(500ms);
        const std::uint64_t computed = worker_->totals().requests;
        return computed > 0 && std::exchange(before, computed) == computed;
    }));
    std::size_t n_results = 0;
    std::size_t n_busy = 0;
    std::map<std::uint64_t, std::size_t> received_bytes;
    while (n_results + n_busy < 60) {
        const auto got = client.receive();
        ASSERT_TRUE(got);
        if (got->header.type == static_cast<std::uint8_t>(wire::frame_type::error)) {
            EXPECT_EQ(wire::decode_error(got->payload)->code, wire::error_code::busy);
            ++n_busy;
        }
        if (got->header.type == static_cast<std::uint8_t>(wire::frame_type::result) && !got->header.more_chunks())
            ++n_results;
    }
    EXPECT_GT(n_results, 0U);
    EXPECT_GT(n_busy, 0U);
}

TEST_F(node_worker, cancelled_requests_are_not_computed) {
    start();
    const auto peer = connect(seen_[0]);
    ASSERT_TRUE(peer);
    const auto& held = peer->hello().layers[0];
    const auto long_one = reference_.ask(held, 256, 2000, row_encoding::f32, random_);
    for (std::uint64_t id = 1; id <= 50; ++id)
        ASSERT_TRUE(peer->send_compute({id}, long_one.request));
    for (std::uint64_t id = 2; id <= 50; ++id)
        EXPECT_TRUE(peer->cancel({id}));
    EXPECT_TRUE(net::eventually([&] { return peer->statistics().requests_in_flight == 0; }));
    EXPECT_TRUE(seen_[0].result(1));
    EXPECT_LT(worker_->totals().requests, 50U);
    EXPECT_EQ(seen_[0].ends().size(), 1U);
}

TEST_F(node_worker, another_model_is_refused_by_name) {
    start();
    auto ours = shared_model().backbone_hello();
    ours.model.bytes[0] ^= std::byte{1};
    const auto peer = net::peer_connection::connect_and_wait(io_, worker_->local(), ours, {}, seen_[0].handlers());
    ASSERT_FALSE(peer);
    EXPECT_THAT(peer.error().message, HasSubstr("model digest"));
    ASSERT_TRUE(net::eventually([&] { return !events().empty(); }));
    EXPECT_EQ(events()[0].what, worker_event::kind::rejected);
    EXPECT_THAT(events()[0].reason, HasSubstr(ours.model.hex()));
}

TEST_F(node_worker, other_numerics_are_the_backbones_choice) {
    start();
    auto ours = shared_model().backbone_hello();
    ours.numerics = "other";
    EXPECT_FALSE(net::peer_connection::connect_and_wait(io_, worker_->local(), ours, {}, seen_[0].handlers()));
    net::connection_options approximate;
    approximate.policy.demand_equal_numerics = false;
    EXPECT_TRUE(net::peer_connection::connect_and_wait(io_, worker_->local(), ours, approximate, seen_[1].handlers()));
}

TEST_F(node_worker, leaves_in_order) {
    start();
    const auto peer = connect(seen_[0]);
    ASSERT_TRUE(peer);
    const auto& held = peer->hello().layers[0];
    std::map<std::uint64_t, std::vector<float>> expected;
    for (std::uint64_t id = 1; id <= 20; ++id) {
        auto asked = reference_.ask(held, 64, 500, row_encoding::f32, random_);
        expected[id] = std::move(asked.expected);
        ASSERT_TRUE(peer->send_compute({id}, std::move(asked.request)));
    }
    ASSERT_TRUE(seen_[0].wait_for_ends(1));
    EXPECT_TRUE(worker_->shut_down(net::patience));
    // What had arrived is answered; what came later says that the worker leaves; for what was still on its way the
    // connection's end is the answer. Nothing ends twice.
    ASSERT_TRUE(seen_[0].closed());
    for (const auto& [id, n_ends] : seen_[0].ends()) {
        EXPECT_EQ(n_ends, 1);
        if (const auto failed = seen_[0].failure(id)) {
            EXPECT_EQ(failed->code, wire::error_code::draining);
        } else {
            const auto answer = seen_[0].result(id);
            ASSERT_TRUE(answer);
            EXPECT_TRUE(same_bits(answer->values(), expected[id]));
        }
    }
}

}  // namespace
}  // namespace kvasir::node
