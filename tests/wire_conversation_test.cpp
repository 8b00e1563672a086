// The conversation on a clock of our own: handshake, requests and their ends, cancelling, leaving, silence.
#include <gmock/gmock.h>

#include "wire_support.hpp"

namespace kvasir::wire {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST(wire_conversation, both_are_established_after_one_crossing) {
    talking_pair both;
    EXPECT_FALSE(both.backbone.talk.established());
    talking_pair::carry(both.worker, both.backbone, both.clock.now());
    EXPECT_TRUE(both.backbone.talk.established());
    EXPECT_EQ(both.backbone.count<established_event>(), 1U);
    EXPECT_EQ(both.backbone.talk.peer(), worker_hello());
    // The backbone may ask at once; its HELLO and the request arrive together.
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request()));
    talking_pair::carry(both.backbone, both.worker, both.clock.now());
    EXPECT_TRUE(both.worker.talk.established());
    EXPECT_EQ(both.worker.talk.peer(), backbone_hello());
    EXPECT_EQ(both.worker.count<compute_event>(), 1U);
}

TEST(wire_conversation, mismatches_are_refused_by_name_on_both_sides) {
    hello other = worker_hello();
    other.model.bytes.fill(std::byte{0x44});
    talking_pair both({}, backbone_hello(), other);
    both.settle();
    for (side* each : {&both.backbone, &both.worker}) {
        const auto* closed = each->last<closed_event>();
        ASSERT_NE(closed, nullptr);
        EXPECT_EQ(closed->reason.code, errc::mismatch);
        EXPECT_THAT(closed->reason.message, HasSubstr("model digest"));
        EXPECT_THAT(closed->reason.message, HasSubstr(other.model.hex()));
        EXPECT_THAT(closed->reason.message, HasSubstr(backbone_hello().model.hex()));
        EXPECT_THAT(closed->reason.message, HasSubstr("cut the worker's slice"));
        EXPECT_TRUE(each->talk.finished());
    }
}

TEST(wire_conversation, a_refused_side_is_told_why) {
    // Only the backbone minds other numerics; the worker learns of it by REFUSE.
    hello other = worker_hello();
    other.numerics = "other kernels";
    conversation_options tolerant;
    tolerant.policy.demand_equal_numerics = false;
    side worker(other, tolerant, {});
    side backbone(backbone_hello(), {}, {});
    talking_pair::carry(backbone, worker, {});
    EXPECT_TRUE(worker.talk.established());
    talking_pair::carry(worker, backbone, {});
    EXPECT_TRUE(backbone.talk.closed());
    talking_pair::carry(backbone, worker, {});
    const auto* closed = worker.last<closed_event>();
    ASSERT_NE(closed, nullptr);
    EXPECT_EQ(closed->reason.code, errc::mismatch);
    EXPECT_THAT(closed->reason.message, HasSubstr("numerics fingerprint"));
    EXPECT_THAT(closed->reason.message, HasSubstr("other kernels"));
}

TEST(wire_conversation, another_major_version_is_refused_even_if_it_looks_otherwise) {
    side worker(worker_hello(), {}, {});
    worker.talk.receive(frame(frame_type::hello, 0, from_hex_text("0200 0700 deadbeef")), {});
    worker.collect();
    ASSERT_NE(worker.last<closed_event>(), nullptr);
    EXPECT_EQ(worker.last<closed_event>()->reason.code, errc::mismatch);
    EXPECT_THAT(worker.last<closed_event>()->reason.message, HasSubstr("protocol version"));
}

TEST(wire_conversation, who_has_no_place_says_so_instead_of_hello) {
    conversation_options full;
    full.turn_away = refusal{.code = refusal_code::capacity,
                             .field = "number of connections",
                             .ours = "1",
                             .theirs = "one more",
                             .remedy = "later"};
    side worker(worker_hello(), full, {});
    side backbone(backbone_hello(), {}, {});
    worker.collect();
    EXPECT_EQ(worker.count<closed_event>(), 1U);
    talking_pair::carry(worker, backbone, {});
    EXPECT_TRUE(worker.talk.finished());
    EXPECT_EQ(backbone.count<established_event>(), 0U);
    ASSERT_NE(backbone.last<closed_event>(), nullptr);
    EXPECT_EQ(backbone.last<closed_event>()->reason.code, errc::busy);
}

TEST(wire_conversation, a_request_and_its_result) {
    talking_pair both;
    both.settle();
    ASSERT_TRUE(both.backbone.talk.begin_compute({7}, small_request(3)));
    EXPECT_EQ(both.backbone.talk.n_in_flight(), 1U);
    both.settle();
    auto* asked = both.worker.last<compute_event>();
    ASSERT_NE(asked, nullptr);
    EXPECT_EQ(asked->id, request_id{7});
    EXPECT_EQ(asked->request.layer, layer_id{3});
    EXPECT_EQ(asked->request.pairs.size(), 3U);
    EXPECT_EQ(both.worker.talk.n_in_flight(), 1U);
    both.worker.talk.finish_result({7}, result_for(asked->request, 4));
    EXPECT_EQ(both.worker.talk.n_in_flight(), 0U);
    both.settle();
    const auto* answered = both.backbone.last<result_event>();
    ASSERT_NE(answered, nullptr);
    EXPECT_EQ(answered->id, request_id{7});
    EXPECT_EQ(answered->result.n_pairs, 3U);
    EXPECT_EQ(answered->result.values().size(), 12U);
    EXPECT_EQ(answered->result.values()[11], 1.5F);
    EXPECT_EQ(both.backbone.talk.n_in_flight(), 0U);
    // The id may be used again.
    EXPECT_TRUE(both.backbone.talk.begin_compute({7}, small_request()));
}

TEST(wire_conversation, answers_come_in_any_order) {
    talking_pair both;
    both.settle();
    for (std::uint64_t id = 1; id <= 10; ++id)
        ASSERT_TRUE(both.backbone.talk.begin_compute({id}, small_request(static_cast<std::uint32_t>(id))));
    both.settle();
    ASSERT_EQ(both.worker.count<compute_event>(), 10U);
    for (auto at = both.worker.events.rbegin(); at != both.worker.events.rend(); ++at)
        if (const auto* asked = std::get_if<compute_event>(&*at))
            both.worker.talk.finish_result(asked->id, result_for(asked->request, 4));
    both.settle();
    EXPECT_EQ(both.backbone.count<result_event>(), 10U);
    for (const auto& event : both.backbone.events) {
        const auto* answered = std::get_if<result_event>(&event);
        if (answered != nullptr) {
            EXPECT_EQ(answered->result.n_pairs, answered->id.value);
        }
    }
}

TEST(wire_conversation, an_error_ends_one_request_only) {
    talking_pair both;
    both.settle();
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request()));
    ASSERT_TRUE(both.backbone.talk.begin_compute({2}, small_request()));
    both.settle();
    both.worker.talk.finish_error({1}, error_code::busy, "full");
    both.settle();
    const auto* failed = both.backbone.last<request_failed_event>();
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(failed->id, request_id{1});
    EXPECT_EQ(failed->failure, (error_message{error_code::busy, "full"}));
    EXPECT_TRUE(both.backbone.talk.established());
    EXPECT_EQ(both.backbone.talk.n_in_flight(), 1U);
}

TEST(wire_conversation, a_backbone_does_not_send_what_cannot_work) {
    hello cramped = worker_hello();
    cramped.accepts.max_message_bytes = min_max_message_bytes;
    cramped.accepts.max_requests_in_flight = 2;
    talking_pair both({}, backbone_hello(), cramped);
    const auto code_of = [&both](std::uint64_t id, compute_request request) {
        const auto sent = both.backbone.talk.begin_compute({id}, std::move(request));
        return sent ? boost::system::error_code() : sent.error().code;
    };
    EXPECT_EQ(code_of(1, small_request()), errc::closed);  // not established
    both.settle();
    EXPECT_EQ(code_of(0, small_request()), errc::invalid_input);
    compute_request wrong = small_request();
    wrong.layer = {4};
    EXPECT_EQ(code_of(1, wrong), errc::invalid_input);
    wrong = small_request();
    wrong.pairs[0].expert = 4;
    EXPECT_EQ(code_of(1, wrong), errc::invalid_input);
    wrong = small_request();
    wrong.pairs[0].row = 1;
    EXPECT_EQ(code_of(1, wrong), errc::invalid_input);
    wrong = small_request();
    wrong.n_values = 4;
    EXPECT_EQ(code_of(1, wrong), errc::invalid_input);
    wrong = small_request();
    wrong.encoding = row_encoding::q8_k;
    EXPECT_EQ(code_of(1, wrong), errc::invalid_input);
    EXPECT_EQ(code_of(1, small_request(2000)), errc::limit_exceeded);
    EXPECT_EQ(code_of(1, small_request()), boost::system::error_code());
    EXPECT_EQ(code_of(1, small_request()), errc::invalid_input);  // in flight
    EXPECT_EQ(code_of(2, small_request()), boost::system::error_code());
    EXPECT_EQ(code_of(3, small_request()), errc::busy);
    both.settle();
    EXPECT_EQ(both.worker.count<compute_event>(), 2U);
}

TEST(wire_conversation, a_worker_answers_busy_beyond_its_limit) {
    hello few = worker_hello();
    few.accepts.max_requests_in_flight = 2;
    talking_pair both({}, backbone_hello(), few);
    both.settle();
    const byte_vector payload = joined(*encode(small_request()));
    for (std::uint64_t id = 1; id <= 4; ++id)
        both.worker.talk.receive(frame(frame_type::compute, id, payload, 3), both.clock.now());
    both.worker.collect();
    EXPECT_EQ(both.worker.count<compute_event>(), 2U);
    EXPECT_TRUE(both.worker.talk.established());
    both.worker.talk.finish_error({1}, error_code::internal, "");
    both.worker.talk.receive(frame(frame_type::compute, 5, payload, 3), both.clock.now());
    both.worker.collect();
    EXPECT_EQ(both.worker.count<compute_event>(), 3U);
}

TEST(wire_conversation, an_id_in_flight_cannot_be_used_again) {
    talking_pair both;
    both.settle();
    const byte_vector payload = joined(*encode(small_request()));
    both.worker.talk.receive(frame(frame_type::compute, 1, payload, 3), both.clock.now());
    both.worker.talk.receive(frame(frame_type::compute, 1, payload, 3), both.clock.now());
    EXPECT_TRUE(both.worker.talk.closed());
}

TEST(wire_conversation, cancelled_before_it_was_sent_nothing_is_said) {
    talking_pair both;
    both.settle();
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request()));
    EXPECT_TRUE(both.backbone.talk.cancel({1}));
    EXPECT_FALSE(both.backbone.talk.cancel({1}));
    EXPECT_EQ(both.backbone.talk.output().pending_bytes(), 0U);
    EXPECT_EQ(both.backbone.talk.n_in_flight(), 0U);
}

TEST(wire_conversation, cancelled_while_the_worker_has_it) {
    talking_pair both;
    both.settle();
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request()));
    both.settle();
    EXPECT_TRUE(both.backbone.talk.cancel({1}));
    // Until the worker answers, the id and the place stay taken.
    EXPECT_EQ(both.backbone.talk.n_in_flight(), 1U);
    EXPECT_FALSE(both.backbone.talk.begin_compute({1}, small_request()));
    both.settle();
    EXPECT_EQ(both.worker.count<cancel_event>(), 1U);
    // Computed meanwhile: the rows do not travel.
    both.worker.talk.finish_result({1}, result_for(both.worker.last<compute_event>()->request, 4));
    EXPECT_LT(both.worker.talk.output().pending_bytes(), 100U);
    both.settle();
    EXPECT_EQ(both.backbone.talk.n_in_flight(), 0U);
    EXPECT_EQ(both.backbone.count<result_event>(), 0U);
    EXPECT_EQ(both.backbone.count<request_failed_event>(), 0U);
    EXPECT_TRUE(both.backbone.talk.begin_compute({1}, small_request()));
}

TEST(wire_conversation, cancel_crosses_with_the_result) {
    talking_pair both;
    both.settle();
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request()));
    both.settle();
    both.worker.talk.finish_result({1}, result_for(both.worker.last<compute_event>()->request, 4));
    const byte_vector under_way = drain(both.worker.talk.output());
    EXPECT_TRUE(both.backbone.talk.cancel({1}));
    both.backbone.talk.receive(under_way, both.clock.now());
    both.settle();
    EXPECT_EQ(both.backbone.count<result_event>(), 0U);
    EXPECT_EQ(both.worker.count<cancel_event>(), 0U);
    EXPECT_TRUE(both.backbone.talk.established());
    EXPECT_TRUE(both.worker.talk.established());
    EXPECT_EQ(both.backbone.talk.n_in_flight(), 0U);
}

TEST(wire_conversation, cancelled_in_the_middle_of_a_long_request) {
    talking_pair both;
    both.settle();
    const std::uint32_t n_rows = 100000;  // 3.2 MB of rows
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request(n_rows)));
    std::vector<byte_span> spans;
    both.backbone.talk.output().gather(spans, 1, 16);
    EXPECT_TRUE(both.backbone.talk.cancel({1}));
    EXPECT_LT(both.backbone.talk.output().pending_bytes(), 300000U);
    both.settle();
    EXPECT_EQ(both.worker.count<compute_event>(), 0U);
    EXPECT_EQ(both.backbone.talk.n_in_flight(), 0U);
    EXPECT_EQ(both.backbone.count<request_failed_event>(), 0U);
    EXPECT_TRUE(both.backbone.talk.established());
    EXPECT_TRUE(both.worker.talk.established());
}

TEST(wire_conversation, cancelled_in_the_middle_of_a_long_result) {
    talking_pair both;
    both.settle();
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request(100000)));
    both.settle();
    both.worker.talk.finish_result({1}, result_for(both.worker.last<compute_event>()->request, 4));
    // Some chunks are under way.
    std::vector<byte_span> spans;
    both.worker.talk.output().gather(spans, 1, 16);
    byte_vector first;
    for (const byte_span span : spans)
        first.insert(first.end(), span.begin(), span.end());
    both.worker.talk.output().consume(first.size());
    both.backbone.talk.receive(first, both.clock.now());
    EXPECT_TRUE(both.backbone.talk.cancel({1}));
    talking_pair::carry(both.backbone, both.worker, both.clock.now());
    EXPECT_LT(both.worker.talk.output().pending_bytes(), 1000U);  // the rest of 1.6 MB is not sent
    both.settle();
    EXPECT_EQ(both.backbone.talk.n_in_flight(), 0U);
    EXPECT_EQ(both.backbone.count<result_event>(), 0U);
    EXPECT_TRUE(both.backbone.talk.established());
}

TEST(wire_conversation, a_worker_that_leaves) {
    talking_pair both;
    both.settle();
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request()));
    both.settle();
    both.worker.talk.drain();
    // One more crosses with the announcement.
    ASSERT_TRUE(both.backbone.talk.begin_compute({2}, small_request()));
    both.settle();
    EXPECT_EQ(both.backbone.count<drain_event>(), 1U);
    EXPECT_EQ(both.backbone.talk.begin_compute({3}, small_request()).error().code, errc::closed);
    const auto* failed = both.backbone.last<request_failed_event>();
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(failed->id, request_id{2});
    EXPECT_EQ(failed->failure.code, error_code::draining);
    both.worker.talk.finish_result({1}, result_for(both.worker.last<compute_event>()->request, 4));
    both.settle();
    EXPECT_EQ(both.backbone.count<result_event>(), 1U);
    both.worker.talk.goodbye();
    both.settle();
    EXPECT_EQ(both.backbone.last<closed_event>()->reason.code, errc::closed);
    EXPECT_TRUE(both.worker.talk.finished());
}

TEST(wire_conversation, leaving_during_the_handshake) {
    talking_pair both;
    both.worker.talk.drain();
    both.settle();
    EXPECT_EQ(both.backbone.count<drain_event>(), 1U);
}

TEST(wire_conversation, no_hello_in_time) {
    conversation_options options;
    options.handshake_timeout = 3s;
    manual_clock_source clock;
    side worker(worker_hello(), options, clock.now());
    EXPECT_EQ(worker.talk.next_deadline(), clock.now() + 3s);
    clock.advance(3s - 1ns);
    worker.talk.tick(clock.now());
    EXPECT_FALSE(worker.talk.closed());
    clock.advance(1ns);
    worker.talk.tick(clock.now());
    worker.collect();
    ASSERT_NE(worker.last<closed_event>(), nullptr);
    EXPECT_EQ(worker.last<closed_event>()->reason.code, errc::timeout);
}

TEST(wire_conversation, pings_measure_the_round_trip) {
    conversation_options options;
    options.ping_interval = 5s;
    talking_pair both(options);
    both.settle();
    EXPECT_EQ(both.backbone.talk.round_trip_time(), 0ns);
    both.clock.advance(5s);
    EXPECT_LE(both.backbone.talk.next_deadline(), both.clock.now());
    both.backbone.talk.tick(both.clock.now());
    talking_pair::carry(both.backbone, both.worker, both.clock.now());
    both.clock.advance(80ms);
    talking_pair::carry(both.worker, both.backbone, both.clock.now());
    EXPECT_EQ(both.backbone.talk.round_trip_time(), 10ms);  // an eighth of the news
    EXPECT_GT(both.backbone.talk.next_deadline(), both.clock.now());
}

TEST(wire_conversation, silence_means_gone) {
    conversation_options options;
    options.ping_interval = 5s;
    options.dead_peer_timeout = 20s;
    talking_pair both(options);
    both.settle();
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request()));
    for (int i = 0; i < 19; ++i) {
        both.clock.advance(1s);
        both.backbone.talk.tick(both.clock.now());
    }
    EXPECT_FALSE(both.backbone.talk.closed());
    both.clock.advance(1s);
    both.backbone.talk.tick(both.clock.now());
    both.backbone.collect();
    ASSERT_NE(both.backbone.last<closed_event>(), nullptr);
    EXPECT_EQ(both.backbone.last<closed_event>()->reason.code, errc::timeout);
    EXPECT_EQ(both.backbone.talk.n_in_flight(), 0U);
}

TEST(wire_conversation, pings_keep_an_idle_connection_alive) {
    talking_pair both;
    both.settle();
    for (int i = 0; i < 100; ++i) {
        both.clock.advance(3s);
        both.backbone.talk.tick(both.clock.now());
        both.worker.talk.tick(both.clock.now());
        both.settle();
    }
    EXPECT_TRUE(both.backbone.talk.established());
    EXPECT_TRUE(both.worker.talk.established());
}

TEST(wire_conversation, an_unfinished_message_must_go_on) {
    conversation_options options;
    options.message_stall_timeout = 30s;
    talking_pair both(options);
    both.settle();
    both.worker.talk.receive(frame(frame_type::compute, 1, byte_vector(5000), 3, flag_more_chunks), both.clock.now());
    for (int i = 0; i < 29; ++i) {
        both.clock.advance(1s);
        both.worker.talk.tick(both.clock.now());
        both.backbone.talk.tick(both.clock.now());
        both.settle();
    }
    EXPECT_TRUE(both.worker.talk.established());
    both.clock.advance(1s);
    both.worker.talk.tick(both.clock.now());
    both.worker.collect();
    ASSERT_NE(both.worker.last<closed_event>(), nullptr);
    EXPECT_EQ(both.worker.last<closed_event>()->reason.code, errc::timeout);
    EXPECT_THAT(both.worker.last<closed_event>()->reason.message, HasSubstr("unfinished"));
}

TEST(wire_conversation, a_worker_does_not_read_on_while_nobody_takes_its_results) {
    conversation_options options;
    options.pause_reading_above_bytes = 1000;
    options.dead_peer_timeout = 20s;
    talking_pair both(options);
    both.settle();
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request(100)));
    both.settle();
    EXPECT_TRUE(both.worker.talk.wants_input());
    both.worker.talk.finish_result({1}, result_for(both.worker.last<compute_event>()->request, 4));
    EXPECT_FALSE(both.worker.talk.wants_input());
    // Silence that it brings on itself is not held against the backbone.
    for (int i = 0; i < 10; ++i) {
        both.clock.advance(10s);
        both.worker.talk.tick(both.clock.now());
    }
    EXPECT_TRUE(both.worker.talk.established());
    both.settle();
    EXPECT_TRUE(both.worker.talk.wants_input());
    EXPECT_EQ(both.backbone.count<result_event>(), 1U);
}

TEST(wire_conversation, a_stream_that_ends_closes_once) {
    talking_pair both;
    both.settle();
    ASSERT_TRUE(both.backbone.talk.begin_compute({1}, small_request()));
    both.backbone.talk.stream_ended();
    both.backbone.talk.stream_ended(error(errc::io, "again"));
    both.backbone.talk.goodbye();
    both.backbone.collect();
    EXPECT_EQ(both.backbone.count<closed_event>(), 1U);
    EXPECT_EQ(both.backbone.last<closed_event>()->reason.code, errc::closed);
    EXPECT_EQ(both.backbone.talk.begin_compute({2}, small_request()).error().code, errc::closed);
    EXPECT_FALSE(both.backbone.talk.cancel({1}));
}

TEST(wire_conversation, an_exhausted_budget_makes_one_request_busy) {
    conversation_options options;
    options.budget = std::make_shared<byte_budget>(1000);
    side worker(worker_hello(), options, {});
    side backbone(backbone_hello(), {}, {});
    talking_pair::carry(backbone, worker, {});
    talking_pair::carry(worker, backbone, {});
    ASSERT_TRUE(backbone.talk.begin_compute({1}, small_request(20)));
    ASSERT_TRUE(backbone.talk.begin_compute({2}, small_request(20)));
    talking_pair::carry(backbone, worker, {});
    talking_pair::carry(worker, backbone, {});
    EXPECT_EQ(worker.count<compute_event>(), 1U);
    const auto* failed = backbone.last<request_failed_event>();
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(failed->id, request_id{2});
    EXPECT_EQ(failed->failure.code, error_code::busy);
    worker.events.clear();
    EXPECT_EQ(options.budget->used_bytes(), 0U);
}

}  // namespace
}  // namespace kvasir::wire
