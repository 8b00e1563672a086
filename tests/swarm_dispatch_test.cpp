// The swarm's question and its answers, with workers that answer, fail, lie, leave or say nothing: the rows always have
// the bits that the local kernels give, and the counts add up.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "swarm_faked.hpp"

namespace kvasir::swarm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr std::uint32_t n_layers = 3;

TEST(swarm, computes_with_the_bits_of_the_local_engine) {
    faked_swarm here;
    here.add({{{{0}, 4}}, {{{0}, 4}}, {{{0}, 4}}});
    here.add({{{{4}, 2}, {{7}, 1}}, {{{4}, 2}, {{7}, 1}}, {{{4}, 2}, {{7}, 1}}});
    here.start();
    EXPECT_EQ(here.swarm().statistics().n_experts_covered, 21U);
    for (std::uint32_t layer = 0; layer < n_layers; ++layer)
        for (const std::size_t n_pairs : {1, 8, 64, 200})
            here.expect_right(layer, 16, n_pairs);
    EXPECT_GT(here.workers()[0]->n_answered(), 8U);
    EXPECT_GT(here.workers()[1]->n_answered(), 8U);
    const statistics counts = here.swarm().statistics();
    EXPECT_GT(counts.local_pairs, 0U) << "nobody holds expert 6";
    EXPECT_EQ(counts.fallback_pairs, 0U);
    here.expect_counts_add_up();
}

TEST(swarm, leaves_layers_and_experts_that_nobody_holds_here) {
    faked_swarm here;
    here.add({{{{2}, 1}}, {}, {}});
    here.start();
    EXPECT_EQ(here.compute(1, 4, 8), outcome::all_local);
    EXPECT_EQ(here.swarm().statistics().layer_calls, 0U);
    EXPECT_EQ(here.workers()[0]->n_asked(), 0U);
    here.expect_right(0, 4, 64);
    EXPECT_EQ(here.swarm().statistics().layer_calls, 1U);
    here.expect_counts_add_up();
}

TEST(swarm, with_no_workers_does_nothing) {
    faked_swarm here;
    here.start();
    EXPECT_EQ(here.compute(0, 4, 8), outcome::all_local);
    here.expect_counts_add_up();
}

struct fault {
    fate what;
    bool is_sent;  ///< false: the request is never accepted, so what it asked for is planned for here
    worker_state afterwards;
};

class swarm_faults : public ::testing::TestWithParam<fault> {};

TEST_P(swarm_faults, change_nothing_but_the_place) {
    const auto [what, is_sent, afterwards] = GetParam();
    for (std::uint32_t layer = 0; layer < n_layers; ++layer) {
        faked_swarm here;
        here.add_whole();
        here.start();
        here.workers()[0]->follow([what = what](const wire::compute_request&) { return what; });
        here.expect_right(layer, 8, 50);
        const statistics counts = here.swarm().statistics();
        EXPECT_EQ(counts.workers[0].pairs, 0U);
        EXPECT_EQ(counts.fallback_pairs, is_sent ? 50U : 0U);
        EXPECT_EQ(counts.local_pairs, is_sent ? 0U : 50U);
        EXPECT_EQ(counts.layer_calls, is_sent ? 1U : 0U);
        EXPECT_EQ(counts.workers[0].failures, is_sent ? 1U : 0U);
        here.expect_counts_add_up();
        EXPECT_TRUE(here.wait_until([&] { return here.swarm().statistics().workers[0].state == afterwards; }))
            << name_of(here.swarm().statistics().workers[0].state);

        // And when it behaves again, it is used again.
        here.workers()[0]->follow([](const wire::compute_request&) { return fate::answer; });
        if (layer > 0) continue;
        EXPECT_TRUE(here.wait_until([&] {
            here.compute(layer, 8, 50);
            return here.swarm().statistics().workers[0].pairs > 0;
        }));
        here.expect_counts_add_up();
    }
}

INSTANTIATE_TEST_SUITE_P(all, swarm_faults,
                         ::testing::Values(fault{fate::error, true, worker_state::live},
                                           fault{fate::too_few_rows, true, worker_state::refused},
                                           fault{fate::too_narrow, true, worker_state::refused},
                                           fault{fate::other_layer, true, worker_state::refused},
                                           fault{fate::close, true, worker_state::gone},
                                           fault{fate::refuse_busy, false, worker_state::live},
                                           fault{fate::refuse_limit, false, worker_state::live}));

/// Calls that teach the swarm how quick its workers are, so that it notices when one is not.
void warm_up(faked_swarm& here) {
    for (int i = 0; i < 20; ++i)
        here.expect_right(0, 8, 100);
}

TEST(swarm, hedges_what_is_late_and_drops_what_comes_later) {
    faked_swarm here;
    here.hedge_early();
    here.add({{{{0}, 4}}, {}, {}});
    here.add({{{{4}, 4}}, {}, {}});
    here.start();
    warm_up(here);
    here.workers()[0]->follow([](const wire::compute_request&) { return fate::late; });
    const statistics before = here.swarm().statistics();
    const std::uint64_t n_cancelled = here.workers()[0]->n_cancelled();
    here.expect_right(0, 8, 100);
    const statistics counts = here.swarm().statistics();
    EXPECT_EQ(here.workers()[0]->n_cancelled(), n_cancelled + 1) << "the loser is not told";
    EXPECT_EQ(counts.workers[0].hedges, before.workers[0].hedges + 1);
    EXPECT_EQ(counts.workers[0].misses, before.workers[0].misses + 1);
    EXPECT_EQ(counts.workers[0].pairs, before.workers[0].pairs);
    EXPECT_EQ(counts.workers[0].failures, 0U);
    EXPECT_GT(counts.fallback_pairs, before.fallback_pairs) << "nobody else holds these experts";
    here.expect_counts_add_up();

    // Its late answer reaches nobody.
    here.workers()[0]->follow([](const wire::compute_request&) { return fate::answer; });
    here.workers()[0]->release();
    here.expect_right(0, 8, 100);
    EXPECT_TRUE(here.wait_until([&] { return !here.workers()[0]->has_held(); }));
    here.expect_right(0, 8, 100);
    here.expect_counts_add_up();
}

TEST(swarm, hedges_at_another_replica_when_that_is_quicker_than_this_machine) {
    faked_swarm here;
    here.hedge_early();
    here.set_here_us_per_pair(1e6);
    here.add_whole();
    here.add_whole();
    here.start();
    warm_up(here);
    // One request is held back, the next ones are answered: nobody becomes suspect.
    std::atomic<bool> armed = false;
    for (const auto& worker : here.workers())
        worker->follow(
            [&armed](const wire::compute_request&) { return armed.exchange(false) ? fate::hold : fate::answer; });
    EXPECT_TRUE(here.wait_until([&] {
        const statistics before = here.swarm().statistics();
        armed = true;
        here.expect_right(0, 8, 100);
        armed = false;
        here.workers()[0]->release();
        here.workers()[1]->release();
        const statistics after = here.swarm().statistics();
        const std::uint64_t n_hedges =
            after.workers[0].hedges + after.workers[1].hedges - before.workers[0].hedges - before.workers[1].hedges;
        here.expect_right(0, 8, 100);
        return n_hedges > 0 && after.fallback_pairs == before.fallback_pairs;
    })) << "the other holder never took over";
    here.expect_counts_add_up();
}

TEST(swarm, suspects_a_worker_that_misses_and_trusts_it_again) {
    faked_swarm here;
    here.hedge_early();
    here.add_whole();
    here.start();
    warm_up(here);
    here.workers()[0]->follow([](const wire::compute_request&) { return fate::hold; });
    const auto state = [&] { return here.swarm().statistics().workers[0].state; };
    EXPECT_TRUE(here.wait_until([&] {
        here.compute(0, 8, 20);
        return state() == worker_state::suspect;
    }));
    // While it is suspect, nothing waits for it.
    const std::uint64_t n_hedges = here.swarm().statistics().workers[0].hedges;
    for (int i = 0; i < 10; ++i)
        here.compute(0, 8, 20);
    EXPECT_EQ(here.swarm().statistics().workers[0].hedges, n_hedges);
    EXPECT_EQ(state(), worker_state::suspect);

    here.workers()[0]->follow([](const wire::compute_request&) { return fate::answer; });
    here.workers()[0]->release();
    EXPECT_TRUE(here.wait_until([&] {
        here.compute(0, 8, 20);
        return state() == worker_state::live;
    }));
    EXPECT_GE(here.swarm().statistics().workers[0].trials, 3U);
    here.expect_right(0, 8, 20);
    here.expect_counts_add_up();
}

/// One wrong bit in one result: the audit finds it before the layer's answer is used.
TEST(swarm, quarantines_a_worker_whose_result_is_wrong) {
    for (const fate what : {fate::wrong_bit, fate::not_a_number}) {
        for (std::uint32_t layer = 0; layer < n_layers; ++layer) {
            faked_swarm here;
            here.add_whole();
            // NaN is looked at even when nothing is drawn.
            here.set_audit_share(what == fate::wrong_bit ? 1.0 : 0.0);
            here.start();
            here.workers()[0]->follow([what](const wire::compute_request&) { return what; });
            here.expect_right(layer, 8, 50);
            const statistics counts = here.swarm().statistics();
            EXPECT_EQ(counts.workers[0].state, worker_state::quarantined);
            EXPECT_EQ(counts.workers[0].pairs, 0U) << "its right rows are as doubtful as its wrong ones";
            EXPECT_EQ(counts.workers[0].audited_pairs, 50U);
            EXPECT_EQ(counts.workers[0].wrong_pairs, what == fate::wrong_bit ? 1U : 50U);
            EXPECT_EQ(counts.audited_pairs, 50U);
            EXPECT_EQ(counts.fallback_pairs, 50U);
            EXPECT_THAT(here.events(), Contains(AllOf(HasSubstr("quarantined"), HasSubstr("fake:0"),
                                                      HasSubstr("layer " + std::to_string(layer) + ", expert "),
                                                      HasSubstr("SHA-256 "))));
            EXPECT_TRUE(here.wait_until([&] { return here.compute(layer, 8, 50) == outcome::all_local; }));
            here.expect_counts_add_up();
        }
    }
}

TEST(swarm, stays_away_from_a_quarantined_worker) {
    faked_swarm here;
    here.add_whole();
    here.set_audit_share(1.0);
    here.start();
    here.workers()[0]->follow([](const wire::compute_request&) { return fate::wrong_bit; });
    here.expect_right(0, 8, 50);
    here.workers()[0]->close_connections();
    // Several times the keeper's interval and the first pause.
    std::this_thread::sleep_for(seconds(2));
    EXPECT_EQ(here.workers()[0]->n_connections(), 1U);
    EXPECT_EQ(here.swarm().statistics().workers[0].state, worker_state::quarantined);
}

TEST(swarm, audits_find_nothing_wrong_with_honest_workers) {
    faked_swarm here;
    here.add_whole();
    here.add({{{{0}, 4}}, {{{0}, 4}}, {{{0}, 4}}});
    here.set_audit_share(0.5);
    here.start();
    for (std::uint32_t layer = 0; layer < n_layers; ++layer)
        for (const std::size_t n_pairs : {1, 8, 64, 200})
            here.expect_right(layer, 16, n_pairs);
    const statistics counts = here.swarm().statistics();
    EXPECT_GT(counts.audited_pairs, 200U);
    EXPECT_EQ(counts.audited_pairs, counts.workers[0].audited_pairs + counts.workers[1].audited_pairs);
    for (const worker_statistics& worker : counts.workers) {
        EXPECT_EQ(worker.wrong_pairs, 0U);
        EXPECT_EQ(worker.state, worker_state::live);
    }
    here.expect_counts_add_up();
}

TEST(swarm, keeps_what_a_draining_worker_still_answers) {
    faked_swarm here;
    here.add_whole();
    here.start();
    here.workers()[0]->follow([](const wire::compute_request&) { return fate::drain; });
    here.expect_right(1, 8, 50);
    statistics counts = here.swarm().statistics();
    EXPECT_EQ(counts.workers[0].pairs, 50U);
    EXPECT_EQ(counts.workers[0].state, worker_state::draining);
    EXPECT_EQ(here.compute(1, 8, 50), outcome::all_local) << "a worker that leaves gets new work";
    EXPECT_EQ(here.workers()[0]->n_asked(), 1U);
    here.workers()[0]->close_connections();
    EXPECT_TRUE(here.wait_until([&] { return here.workers()[0]->n_connections() == 2; }));
    here.expect_counts_add_up();
}

TEST(swarm, comes_back_to_a_worker_that_was_lost) {
    faked_swarm here;
    here.add_whole();
    here.workers()[0]->refuse_connections(error(errc::timeout, "nobody answers"));
    here.start();
    EXPECT_EQ(here.swarm().statistics().workers[0].state, worker_state::gone);
    EXPECT_EQ(here.compute(0, 8, 50), outcome::all_local);
    here.workers()[0]->refuse_connections({});
    EXPECT_TRUE(here.wait_until([&] { return here.swarm().statistics().workers[0].state == worker_state::live; }));
    EXPECT_TRUE(here.wait_until([&] { return here.swarm().statistics().n_experts_covered == 24; }));
    here.expect_right(0, 8, 50);
    EXPECT_EQ(here.swarm().statistics().workers[0].pairs, 50U);
    here.expect_counts_add_up();
    EXPECT_THAT(here.events(), Contains(HasSubstr("nobody answers")));
    EXPECT_THAT(here.events(), Contains(HasSubstr("joined with 24 experts")));
}

TEST(swarm, uses_a_node_that_is_named_twice_once) {
    faked_swarm here;
    wire::hello hello = hello_holding_all(here.model());
    here.add(hello);
    here.add(hello);
    here.start();
    const auto state_count = [&](worker_state state) {
        const statistics counts = here.swarm().statistics();
        return std::ranges::count(counts.workers, state, &worker_statistics::state);
    };
    EXPECT_TRUE(here.wait_until(
        [&] { return state_count(worker_state::live) == 1 && state_count(worker_state::refused) == 1; }));
    EXPECT_THAT(here.events(), Contains(HasSubstr("the same worker is named twice")));
    here.expect_right(2, 8, 50);
    EXPECT_TRUE(here.workers()[0]->n_asked() == 0 || here.workers()[1]->n_asked() == 0);
    here.expect_counts_add_up();
}

TEST(swarm, refuses_a_worker_with_its_reason) {
    faked_swarm here;
    here.add_whole();
    here.workers()[0]->refuse_connections(error(errc::mismatch, "it holds slices of another model"));
    here.start();
    EXPECT_EQ(here.swarm().statistics().workers[0].state, worker_state::refused);
    EXPECT_THAT(here.events(), Contains(HasSubstr("is refused: it holds slices of another model")));
}

/// Rows of another width, or an encoding it does not take: such a layer is no use to us, the others are.
TEST(swarm, asks_no_worker_whose_layer_has_another_shape) {
    for (const int what : {0, 1, 2}) {
        faked_swarm here;
        wire::hello hello = hello_holding_all(here.model());
        if (what == 0) hello.layers[1].n_in = 512;
        if (what == 1) hello.layers[1].n_out = 128;
        if (what == 2) hello.layers[1].encodings = {row_encoding::f32};
        here.add(hello);
        here.start();
        here.expect_right(1, 8, 50);
        EXPECT_EQ(here.workers()[0]->n_asked(), 0U) << what;
        EXPECT_EQ(here.swarm().statistics().local_pairs, 50U);
        here.expect_right(0, 8, 50);
        EXPECT_EQ(here.workers()[0]->n_answered(), 1U) << what;
        here.expect_counts_add_up();
    }
}

/// A worker that takes 64 KiB at a time gets a large call in pieces; experts that must stay whole are not divided.
TEST(swarm, cuts_large_calls_for_small_workers) {
    faked_swarm here;
    wire::hello hello = hello_holding_all(here.model());
    hello.accepts.max_message_bytes = wire::min_max_message_bytes;
    here.add(hello);
    here.start();
    std::atomic<std::uint64_t> largest_bytes = 0;
    here.workers()[0]->follow([&](const wire::compute_request& request) {
        largest_bytes = std::max({largest_bytes.load(), request.payload_bytes(),
                                  *wire::result_payload_bytes(request.pairs.size(), request.n_values)});
        return fate::answer;
    });
    for (std::uint32_t layer = 0; layer < n_layers; ++layer)
        here.expect_right(layer, 64, 600);
    EXPECT_GE(here.workers()[0]->n_asked(), 20U);
    EXPECT_EQ(here.workers()[0]->n_asked(), here.workers()[0]->n_answered());
    EXPECT_LE(largest_bytes.load(), wire::min_max_message_bytes);
    here.expect_counts_add_up();
}

/// What a worker could send is more than we take: the result limits the request too.
TEST(swarm, asks_for_no_more_than_it_takes_itself) {
    constexpr std::int64_t n_out = 4096;
    faked_swarm here({.type = 0, .n_experts = 4, .n_in = 8, .n_ff = 8, .n_out = n_out});
    wire::hello hello = hello_holding_all(here.model());
    hello.accepts.max_message_bytes = wire::max_max_message_bytes;
    here.add(hello);
    here.start();
    std::atomic<std::uint64_t> largest_bytes = 0;
    here.workers()[0]->follow([&](const wire::compute_request& request) {
        largest_bytes = std::max(largest_bytes.load(), *wire::result_payload_bytes(request.pairs.size(), n_out));
        return fate::refuse_busy;
    });
    here.expect_right(0, 16, wire::default_max_message_bytes / (n_out * sizeof(float)) + 100);
    EXPECT_GT(here.workers()[0]->n_asked(), 1U) << "the call was not cut";
    EXPECT_LE(largest_bytes.load(), wire::default_max_message_bytes);
    here.expect_counts_add_up();
}

TEST(swarm, waits_for_slow_workers_no_longer_than_it_was_told_to) {
    faked_swarm here;
    here.add_whole();
    here.set_connect_timeout(milliseconds(300));
    here.never_connect(0);
    const time_point begun = steady_clock_source().now();
    here.start();
    const duration taken = steady_clock_source().now() - begun;
    EXPECT_GE(taken, milliseconds(300));
    EXPECT_LT(taken, seconds(5));
    EXPECT_EQ(here.swarm().statistics().workers[0].state, worker_state::joining);
    EXPECT_EQ(here.compute(0, 4, 8), outcome::all_local);
}

}  // namespace
}  // namespace kvasir::swarm
