// One worker as the backbone sees it, over a connection that the test plays by hand: every callback in every order.
#include <gmock/gmock.h>

#include <optional>
#include <utility>

#include "swarm/worker_link.hpp"
#include "swarm_support.hpp"

namespace kvasir::swarm {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

time_point now() {
    return steady_clock_source().now();
}

/// Records what is asked; answers nothing by itself.
class hand_peer final : public net::peer_connection {
  public:
    result<void> send_compute(request_id id, wire::compute_request) override {
        if (during_send) during_send();
        if (refuse_with) return *refuse_with;
        asked.push_back(id);
        return {};
    }
    bool cancel(request_id id) override {
        cancelled.push_back(id);
        return true;
    }
    void close() override { ++n_closes; }
    const wire::hello& hello() const override { return said; }
    std::string remote() const override { return "hand"; }
    bool usable() const override { return is_usable; }
    net::connection_statistics statistics() const override { return counts; }

    wire::hello said;
    net::connection_statistics counts;
    bool is_usable = true;
    std::optional<error> refuse_with;
    std::function<void()> during_send;
    std::vector<request_id> asked;
    std::vector<request_id> cancelled;
    int n_closes = 0;
};

/// A link and the connections it asked for.
struct link_under_test {
    struct attempt {
        net::peer_handlers handlers;
        net::peer_connection::connect_handler done;
    };

    std::vector<attempt> attempts;
    int n_changes = 0;
    const std::shared_ptr<worker_link> link = std::make_shared<worker_link>(
        net::endpoint{"hand", 1}, default_min_hedge,
        [this](const net::endpoint&, net::peer_handlers handlers, net::peer_connection::connect_handler done) {
            attempts.push_back({std::move(handlers), std::move(done)});
        },
        [this](worker_link&) { ++n_changes; });

    std::shared_ptr<hand_peer> connect() {
        link->maintain(now() + hours(1));
        auto peer = std::make_shared<hand_peer>();
        peer->said.name = "hand";
        peer->said.layers = {{.layer = {3}, .n_in = 8, .n_out = 4, .ranges = {{{4}, 3}, {{9}, 1}}}};
        attempts.back().done(std::static_pointer_cast<net::peer_connection>(peer));
        return peer;
    }
    const net::peer_handlers& handlers() const { return attempts.back().handlers; }
    result<request_id> send(const net::peer_connection::ptr& peer, const std::shared_ptr<call_inbox>& inbox,
                            std::uint32_t position, std::size_t n_pairs = 2) {
        wire::compute_request request;
        request.layer = {3};
        request.pairs.resize(n_pairs);
        const auto sent = link->send(peer, std::move(request), 16, inbox, position, worker_link::purpose::work);
        if (!sent) return sent.error();
        return sent->id;
    }
};

std::optional<arrival> look(call_inbox& inbox) {
    return inbox.wait_until(now());
}

TEST(worker_link, becomes_live_and_says_what_the_worker_holds) {
    link_under_test one;
    EXPECT_EQ(one.link->state(), worker_state::joining);
    EXPECT_EQ(one.link->usable_peer(), nullptr);
    EXPECT_EQ(one.link->maintain(now()), std::nullopt);
    EXPECT_EQ(one.attempts.size(), 1U);
    EXPECT_EQ(one.link->maintain(now()), std::nullopt) << "while it is connecting";
    EXPECT_EQ(one.attempts.size(), 1U);

    const auto peer = one.connect();
    EXPECT_EQ(one.attempts.size(), 1U);
    EXPECT_EQ(one.n_changes, 1);
    EXPECT_EQ(one.link->state(), worker_state::live);
    EXPECT_EQ(one.link->usable_peer(), peer);
    ASSERT_NE(one.link->hello(), nullptr);
    EXPECT_EQ(one.link->hello()->layers.size(), 1U);
    EXPECT_TRUE(one.link->estimate(now(), 0.0).available);
    peer->counts = {milliseconds(7), 100, 200, 0, 0};
    const worker_statistics counts = one.link->statistics();
    EXPECT_EQ(counts.endpoint, "hand:1");
    EXPECT_EQ(counts.name, "hand");
    EXPECT_EQ(counts.n_experts, 4U);
    EXPECT_EQ(counts.bytes_in, 100U);
    EXPECT_EQ(counts.bytes_out, 200U);
    EXPECT_EQ(counts.round_trip_time, milliseconds(7));

    peer->is_usable = false;
    EXPECT_EQ(one.link->usable_peer(), nullptr);
    EXPECT_FALSE(one.link->estimate(now(), 0.0).available);
}

TEST(worker_link, tries_again_after_growing_pauses) {
    link_under_test one;
    time_point when = now();
    duration before{};
    for (int failure = 0; failure < 5; ++failure) {
        ASSERT_EQ(one.link->maintain(when), std::nullopt);
        ASSERT_EQ(one.attempts.size(), static_cast<std::size_t>(failure) + 1);
        const time_point failed_at = now();
        one.attempts.back().done(error(errc::timeout, "nobody answers"));
        EXPECT_EQ(one.link->state(), worker_state::gone);
        EXPECT_EQ(one.link->statistics().reason, "nobody answers");
        const auto again = one.link->maintain(failed_at);
        ASSERT_TRUE(again.has_value());
        EXPECT_EQ(one.link->maintain(*again - duration(1)), again);
        EXPECT_EQ(one.attempts.size(), static_cast<std::size_t>(failure) + 1) << "tried again before its time";
        EXPECT_GE(*again - failed_at, before);
        before = *again - failed_at;
        when = *again;
        // The link reads the real clock; the pause is over when that clock says so too.
        if (failure > 0) break;
        std::this_thread::sleep_until(*again);
    }
    EXPECT_GE(before, seconds(1)) << "the second pause is as short as the first";
    EXPECT_EQ(one.n_changes, 2);
}

TEST(worker_link, shows_why_a_worker_does_not_fit) {
    link_under_test one;
    one.link->maintain(now());
    one.attempts.back().done(error(errc::mismatch, "it holds another model"));
    EXPECT_EQ(one.link->state(), worker_state::refused);
    EXPECT_EQ(one.link->statistics().reason, "it holds another model");
    one.connect();
    EXPECT_EQ(one.link->state(), worker_state::live) << "it may have been mended";
    EXPECT_EQ(one.link->statistics().reason, "");
}

TEST(worker_link, brings_an_answer_to_its_inbox) {
    link_under_test one;
    const auto peer = one.connect();
    const auto inbox = std::make_shared<call_inbox>();
    const auto first = one.send(peer, inbox, 5);
    const auto second = one.send(peer, inbox, 6);
    ASSERT_TRUE(first && second);
    EXPECT_THAT(peer->asked, ElementsAre(*first, *second));
    EXPECT_NE(*first, *second);
    EXPECT_FALSE(look(*inbox));

    one.handlers().on_result(*second, {.n_pairs = 2});
    const auto answer = look(*inbox);
    ASSERT_TRUE(answer && answer->result);
    EXPECT_EQ(answer->request, 6U);
    EXPECT_EQ(one.link->statistics().pairs, 0U) << "counted before anybody has used it";
    one.link->credit(2, true);
    EXPECT_EQ(one.link->statistics().pairs, 2U);
    EXPECT_EQ(one.link->statistics().requests, 1U);

    one.handlers().on_result(*second, {.n_pairs = 2});
    one.handlers().on_result({999}, {.n_pairs = 2});
    EXPECT_FALSE(look(*inbox)) << "answered twice, or not asked";
    one.handlers().on_request_error(*first, {wire::error_code::busy, "full up"});
    const auto failure = look(*inbox);
    ASSERT_TRUE(failure && !failure->result);
    EXPECT_EQ(failure->request, 5U);
    EXPECT_THAT(failure->failure, HasSubstr("full up"));
    EXPECT_EQ(one.link->statistics().failures, 1U);
    EXPECT_FALSE(one.link->estimate(now(), 0.0).available) << "asked again at once";
    EXPECT_TRUE(one.link->estimate(now() + seconds(1), 0.0).available);
    one.link->credit(1, true);
    EXPECT_TRUE(one.link->estimate(now(), 0.0).available);
}

TEST(worker_link, sends_nothing_over_a_refusing_or_an_old_connection) {
    link_under_test one;
    const auto old_peer = one.connect();
    const auto inbox = std::make_shared<call_inbox>();
    old_peer->refuse_with = error(errc::busy, "no more requests");
    const auto refused = one.send(old_peer, inbox, 0);
    ASSERT_TRUE(refused.has_error());
    EXPECT_EQ(refused.error().code, errc::busy);
    one.handlers().on_closed(error(errc::closed, "gone"));
    EXPECT_FALSE(look(*inbox)) << "something arrived for a request that was never sent";

    const auto new_peer = one.connect();
    old_peer->refuse_with.reset();
    const auto late = one.send(old_peer, inbox, 1);
    ASSERT_TRUE(late.has_error());
    EXPECT_EQ(late.error().code, errc::closed);
    EXPECT_THAT(old_peer->asked, IsEmpty());
}

/// The connection ends while a request is handed to it: whichever is told first, it ends exactly once.
TEST(worker_link, ends_a_request_once_when_the_connection_ends_meanwhile) {
    link_under_test one;
    const auto peer = one.connect();
    const auto inbox = std::make_shared<call_inbox>();
    const net::peer_handlers handlers = one.handlers();
    peer->during_send = [&] { handlers.on_closed(error(errc::closed, "gone")); };
    peer->refuse_with = error(errc::closed, "the connection is closed");
    const auto sent = one.send(peer, inbox, 4);
    ASSERT_TRUE(sent) << "it will arrive, so it must count as sent";
    const auto failure = look(*inbox);
    ASSERT_TRUE(failure && !failure->result);
    EXPECT_EQ(failure->request, 4U);
    EXPECT_FALSE(look(*inbox));
}

TEST(worker_link, tells_everyone_who_waits_that_the_connection_ended) {
    link_under_test one;
    const auto peer = one.connect();
    const auto inbox = std::make_shared<call_inbox>();
    for (std::uint32_t position = 0; position < 3; ++position)
        ASSERT_TRUE(one.send(peer, inbox, position));
    peer->counts = {{}, 10, 20, 0, 0};
    const net::peer_handlers old_handlers = one.handlers();
    old_handlers.on_closed(error(errc::timeout, "silent for 20 s"));
    std::vector<std::uint32_t> ended;
    while (const auto one_end = look(*inbox)) {
        EXPECT_FALSE(one_end->result);
        EXPECT_THAT(one_end->failure, HasSubstr("silent for 20 s"));
        ended.push_back(one_end->request);
    }
    EXPECT_THAT(ended, ::testing::UnorderedElementsAre(0, 1, 2));
    EXPECT_EQ(one.link->state(), worker_state::gone);
    EXPECT_EQ(one.link->hello(), nullptr);
    EXPECT_EQ(one.link->statistics().failures, 3U);

    const auto next = one.connect();
    next->counts = {{}, 1, 2, 0, 0};
    EXPECT_EQ(one.link->statistics().bytes_in, 11U) << "what the old connection carried is forgotten";
    EXPECT_EQ(one.link->statistics().bytes_out, 22U);
    // What the old connection still says is about the old connection.
    old_handlers.on_closed(error(errc::closed, "again"));
    old_handlers.on_drain();
    EXPECT_EQ(one.link->state(), worker_state::live);
    EXPECT_EQ(one.link->usable_peer(), next);
}

TEST(worker_link, gives_up_what_is_late) {
    link_under_test one;
    const auto peer = one.connect();
    const auto inbox = std::make_shared<call_inbox>();
    const auto late = one.send(peer, inbox, 0);
    ASSERT_TRUE(late);
    EXPECT_TRUE(one.link->give_up(*late));
    EXPECT_THAT(peer->cancelled, ElementsAre(*late));
    EXPECT_EQ(one.link->statistics().failures, 1U);
    EXPECT_FALSE(one.link->estimate(now(), 0.0).available);
    one.handlers().on_result(*late, {.n_pairs = 2});
    EXPECT_FALSE(look(*inbox)) << "a late answer got through";
    EXPECT_FALSE(one.link->give_up(*late));
    EXPECT_EQ(one.link->statistics().failures, 1U);

    const auto just_in_time = one.send(peer, inbox, 1);
    one.handlers().on_result(*just_in_time, {.n_pairs = 2});
    EXPECT_FALSE(one.link->give_up(*just_in_time)) << "it is in the inbox";
    EXPECT_TRUE(look(*inbox));
}

TEST(worker_link, takes_nothing_new_from_a_draining_worker) {
    link_under_test one;
    const auto peer = one.connect();
    const auto inbox = std::make_shared<call_inbox>();
    const auto before = one.send(peer, inbox, 0);
    one.handlers().on_drain();
    EXPECT_EQ(one.link->state(), worker_state::draining);
    EXPECT_EQ(one.link->usable_peer(), nullptr);
    EXPECT_EQ(one.link->hello(), nullptr);
    EXPECT_FALSE(one.link->estimate(now(), 0.0).available);
    EXPECT_EQ(one.link->maintain(now() + hours(1)), std::nullopt) << "there still is a connection";
    one.handlers().on_result(*before, {.n_pairs = 2});
    EXPECT_TRUE(look(*inbox)) << "what is in flight is still answered";
    one.handlers().on_closed(error(errc::closed, "goodbye"));
    EXPECT_EQ(one.link->state(), worker_state::gone);
    one.connect();
    EXPECT_EQ(one.link->state(), worker_state::live);
}

TEST(worker_link, ends_the_connection_to_whom_it_distrusts) {
    link_under_test one;
    const auto peer = one.connect();
    one.link->distrust("answered nonsense");
    EXPECT_EQ(peer->n_closes, 1);
    EXPECT_EQ(one.link->state(), worker_state::refused);
    EXPECT_EQ(one.link->usable_peer(), nullptr);
    one.handlers().on_closed(error(errc::closed, "we closed"));
    EXPECT_EQ(one.link->state(), worker_state::refused);
    EXPECT_EQ(one.link->statistics().reason, "answered nonsense") << "the reason is lost";
    ASSERT_TRUE(one.link->maintain(now()).has_value());
    one.connect();
    EXPECT_EQ(one.link->state(), worker_state::live);
    EXPECT_FALSE(one.link->estimate(now(), 0.0).available) << "trusted again at once";
}

/// Answering promptly does not make up for answering wrong.
TEST(worker_link, waits_longer_for_whoever_lies_again) {
    link_under_test one;
    duration before{};
    for (int lie = 0; lie < 2; ++lie) {
        const auto peer = one.connect();
        const auto inbox = std::make_shared<call_inbox>();
        const auto sent = one.send(peer, inbox, 0);
        ASSERT_TRUE(sent);
        one.handlers().on_result(*sent, {.n_pairs = 1});
        one.link->distrust("answered nonsense");
        const time_point ended = now();
        one.handlers().on_closed(error(errc::closed, "we closed"));
        const auto again = one.link->maintain(ended);
        ASSERT_TRUE(again.has_value());
        EXPECT_GT(*again - ended, before + milliseconds(100));
        EXPECT_FALSE(one.link->estimate(*again - milliseconds(100), 0.0).available);
        before = *again - ended;
        if (lie == 0) std::this_thread::sleep_until(*again);
    }
}

TEST(worker_link, stays_away_after_shut_down) {
    link_under_test connected;
    const auto peer = connected.connect();
    connected.link->shut_down();
    EXPECT_EQ(peer->n_closes, 1);
    connected.handlers().on_closed(error(errc::closed, "we closed"));
    EXPECT_EQ(connected.link->maintain(now() + hours(1)), std::nullopt);
    EXPECT_EQ(connected.attempts.size(), 1U);

    link_under_test connecting;
    connecting.link->maintain(now());
    connecting.link->shut_down();
    const auto too_late = connecting.connect();
    EXPECT_EQ(too_late->n_closes, 1) << "a connection that nobody wants stays open";
    EXPECT_EQ(connecting.link->usable_peer(), nullptr);
}

TEST(worker_link, may_be_gone_when_callbacks_come) {
    net::peer_handlers handlers;
    net::peer_connection::connect_handler done;
    {
        link_under_test one;
        const auto peer = one.connect();
        handlers = one.handlers();
        done = one.attempts.back().done;
    }
    handlers.on_result({1}, {});
    handlers.on_request_error({1}, {});
    handlers.on_drain();
    handlers.on_closed(error(errc::closed, "gone"));
    done(error(errc::closed, "gone"));
}

}  // namespace
}  // namespace kvasir::swarm
