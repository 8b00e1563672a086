// An expert_swarm over fake workers, with everything a test asks of it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "swarm/swarm.hpp"
#include "swarm_support.hpp"

namespace kvasir::swarm {

/// One thread at a time, except for what expert_swarm and fake_worker allow.
class faked_swarm {
  public:
    faked_swarm() : random_(31), model_((load_ggml(), make_test_model(random_))), engine_(1) {}
    explicit faked_swarm(const test_layer::shape& only_layer) : random_(31), engine_((load_ggml(), 1)) {
        model_.emplace_back(only_layer, random_);
    }
    ~faked_swarm() {
        // Nobody may call back into a swarm that is gone.
        for (const auto& worker : workers_)
            worker->stop();
    }
    faked_swarm(const faked_swarm&) = delete;
    faked_swarm& operator=(const faked_swarm&) = delete;

    // Before start().
    void add(wire::hello hello) { workers_.push_back(std::make_unique<fake_worker>(model_, std::move(hello))); }
    void add(const std::vector<std::vector<wire::expert_range>>& ranges) { add(hello_holding(model_, ranges)); }
    void add_whole() { add(hello_holding_all(model_)); }
    void set_connect_timeout(duration timeout) { connect_timeout_ = timeout; }
    /// Hedges as early as in use. Without this it hedges only what would soon count as failed: how busy the machine is
    /// then does not decide who computes.
    void hedge_early() { min_hedge_ = default_min_hedge; }
    /// The swarm takes this machine for so quick or slow, whatever it measures.
    void set_here_us_per_pair(double here_us) { here_us_per_pair_ = here_us; }
    void set_hot_experts_bytes(std::uint64_t budget_bytes) { hot_experts_bytes_ = budget_bytes; }
    void set_audit_share(double share) { audit_share_ = share; }
    /// Attempts to reach this worker never end.
    void never_connect(std::size_t worker) { silent_ = worker; }

    void start() {
        options settings;
        settings.workers = endpoints_of(workers_.size());
        settings.connect_timeout = connect_timeout_;
        settings.audit_share = audit_share_;
        settings.min_hedge = min_hedge_;
        settings.here_us_per_pair = here_us_per_pair_;
        settings.hot_experts_bytes = hot_experts_bytes_;
        settings.on_event = [this](const event& what) {
            const std::lock_guard lock(events_mutex_);
            events_.push_back(what.text);
        };
        swarm_ = std::make_unique<expert_swarm>(
            std::move(settings), [this](const net::endpoint& where, net::peer_handlers handlers,
                                        net::peer_connection::connect_handler done) {
                if (where.port == silent_) return;
                workers_.at(where.port)->connect(std::move(handlers), std::move(done));
            });
        swarm_->connect();
    }

    expert_swarm& swarm() { return *swarm_; }
    const test_model& model() const { return model_; }
    std::vector<std::unique_ptr<fake_worker>>& workers() { return workers_; }
    std::mt19937& random() { return random_; }
    std::vector<std::string> events() const {
        const std::lock_guard lock(events_mutex_);
        return events_;
    }

    /// A random call; when it was computed, it must have been computed right.
    outcome compute(std::uint32_t layer, std::uint32_t n_rows, std::size_t n_pairs) {
        test_call one(model_, layer, n_rows, n_pairs, random_);
        one.prepare(engine_);
        const auto done = swarm_->compute(one.call(), engine_);
        n_pairs_asked_ += n_pairs;
        EXPECT_TRUE(done) << done.error().message;
        if (!done) return outcome::all_local;
        EXPECT_TRUE(*done == outcome::all_local || one.is_right()) << "layer " << layer << ", " << n_pairs << " pairs";
        return *done;
    }
    /// The same where a live worker is there to be asked, or at least was when the call began.
    void expect_right(std::uint32_t layer, std::uint32_t n_rows, std::size_t n_pairs) {
        EXPECT_EQ(compute(layer, n_rows, n_pairs), outcome::computed);
    }

    /// Every pair that was asked was computed in exactly one place.
    void expect_counts_add_up() const {
        const kvasir::swarm::statistics counts = swarm_->statistics();
        std::uint64_t sum = counts.local_pairs + counts.fallback_pairs;
        for (const worker_statistics& worker : counts.workers)
            sum += worker.pairs;
        EXPECT_EQ(sum, n_pairs_asked_);
    }

    /// Pairs that were asked otherwise than by compute().
    void count_asked(std::uint64_t n_pairs) { n_pairs_asked_ += n_pairs; }

    /// For what other threads have to do first: up to ten seconds.
    template <class Condition>
    static bool wait_until(Condition holds) {
        for (int i = 0; i < 2000; ++i) {
            if (holds()) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return false;
    }

  private:
    std::mt19937 random_;
    test_model model_;
    expert::engine engine_;
    duration connect_timeout_ = std::chrono::seconds(10);
    duration min_hedge_ = std::chrono::seconds(1);
    std::optional<double> here_us_per_pair_;
    std::uint64_t hot_experts_bytes_ = 0;
    double audit_share_ = default_audit_share;
    std::size_t silent_ = SIZE_MAX;
    std::uint64_t n_pairs_asked_ = 0;
    mutable std::mutex events_mutex_;
    std::vector<std::string> events_;
    std::vector<std::unique_ptr<fake_worker>> workers_;
    std::unique_ptr<expert_swarm> swarm_;
};

}  // namespace kvasir::swarm
