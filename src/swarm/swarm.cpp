#include "swarm/swarm.hpp"

#include <fmt/core.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>

#include "net/io_runner.hpp"
#include "swarm/audit.hpp"
#include "swarm/dispatch.hpp"
#include "swarm/hot_experts.hpp"

namespace kvasir::swarm {
namespace {

// The keeper wakes at least this often; a worker that came back is found again within it plus its backoff.
constexpr duration keeper_interval = std::chrono::milliseconds(250);
// Until this machine has computed a pair by itself.
constexpr double first_here_us_per_pair = 1000.0;
constexpr double weight_of_newest = 0.125;
// Warnings about one worker are not repeated within this time.
constexpr duration warning_pause = std::chrono::seconds(5);

wire::hello backbone_hello(const options& settings) {
    wire::hello hello;
    hello.role = wire::node_role::backbone;
    hello.model = settings.model;
    hello.numerics = settings.numerics;
    hello.build = settings.build;
    hello.node = wire::node_id::random();
    return hello;
}

}  // namespace

struct expert_swarm::state {
    state(options given, worker_link::connect_function given_connect)
        : settings(std::move(given)),
          who_holds(std::make_shared<const coverage>()),
          // Workers must not be able to foretell what will be audited.
          audits(settings.audit_share, std::random_device{}()),
          here_us_per_pair(settings.here_us_per_pair.value_or(first_here_us_per_pair)) {
        if (settings.hot_experts_bytes > 0) hot.emplace(settings.hot_experts_bytes);
        for (const net::endpoint& where : settings.workers)
            workers.push_back(std::make_shared<worker_link>(where, settings.min_hedge, given_connect,
                                                            [this](worker_link& worker) { worker_changed(worker); }));
    }

    void tell(event::severity level, std::string text) {
        if (!settings.on_event) return;
        const std::lock_guard lock(event_mutex);
        settings.on_event({level, std::move(text)});
    }

    void worker_changed(worker_link& worker);
    bool is_duplicate(const worker_link& worker) const;
    void rebuild_coverage();
    bool is_news(const worker_link& worker, worker_state now);
    void keep(const std::stop_token& stop);
    void warn(const worker_link& worker, const std::string& what);
    std::vector<std::uint32_t> draw_audits(std::uint32_t n_results);
    void learn_here_us_per_pair(double measured_us);

    options settings;
    net::io_runner io;
    std::vector<std::shared_ptr<worker_link>> workers;  // fixed after construction

    std::once_flag started;
    std::atomic<bool> closing = false;  ///< nobody wants to hear of workers that we leave
    std::mutex event_mutex;
    std::mutex joining;

    mutable std::mutex mutex;  // the block below
    std::condition_variable changed;
    std::set<const worker_link*> settled;  ///< have been live, gone or refused since connect()
    std::shared_ptr<const coverage> who_holds;
    std::unordered_map<const worker_link*, time_point> last_warning;
    std::unordered_map<const worker_link*, worker_state> last_told;
    dispatch_counts counts;

    std::mutex audit_mutex;
    audit_sampler audits;
    /// Two threads that learn at once may forget one measurement: the next call brings another.
    std::atomic<double> here_us_per_pair;
    std::optional<hot_experts> hot;

    std::condition_variable_any wake_keeper;
    std::jthread keeper;  // last: joined first
};

std::vector<std::uint32_t> expert_swarm::state::draw_audits(std::uint32_t n_results) {
    const std::lock_guard lock(audit_mutex);
    return audits.draw(n_results);
}

void expert_swarm::state::learn_here_us_per_pair(double measured_us) {
    if (settings.here_us_per_pair) return;
    const double before_us = here_us_per_pair;
    here_us_per_pair = before_us + weight_of_newest * (measured_us - before_us);
}

/// Two live connections to the same node would count its speed twice.
bool expert_swarm::state::is_duplicate(const worker_link& worker) const {
    const auto mine = worker.hello();
    for (const auto& other : workers) {
        if (other.get() == &worker) continue;
        const auto theirs = other->hello();
        if (mine && theirs && mine->node == theirs->node) return true;
    }
    return false;
}

void expert_swarm::state::worker_changed(worker_link& worker) {
    {
        // One at a time, or two links that reach the same node together would refuse each other. close() tells nobody
        // before it returns (net posts what it has to say).
        const std::lock_guard lock(joining);
        if (worker.state() == worker_state::live && is_duplicate(worker))
            worker.refuse("the same worker is named twice");
    }
    const worker_statistics now = worker.statistics();
    rebuild_coverage();
    const std::string who = now.name.empty() ? now.endpoint : fmt::format("{} ({})", now.endpoint, now.name);
    if (closing || !is_news(worker, now.state)) {
        // One line when it goes, not one per attempt to reach it again.
    } else if (now.state == worker_state::live) {
        tell(event::severity::info, fmt::format("worker {} joined with {} experts", who, now.n_experts));
    } else {
        const std::string why = now.reason.empty() ? std::string() : ": " + now.reason;
        tell(event::severity::warning, fmt::format("worker {} is {}{}", who, name_of(now.state), why));
    }
    {
        const std::lock_guard lock(mutex);
        settled.insert(&worker);
    }
    changed.notify_all();
    wake_keeper.notify_all();
}

bool expert_swarm::state::is_news(const worker_link& worker, worker_state now) {
    const std::lock_guard lock(mutex);
    const auto [known, is_new] = last_told.try_emplace(&worker, now);
    return is_new || std::exchange(known->second, now) != now;
}

void expert_swarm::state::rebuild_coverage() {
    const std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<const wire::hello>> hellos;
    std::vector<coverage::holder> holders;
    for (worker_index i = 0; i < workers.size(); ++i) {
        auto hello = workers[i]->hello();
        if (!hello) continue;
        holders.push_back({i, hello.get()});
        hellos.push_back(std::move(hello));
    }
    who_holds = std::make_shared<const coverage>(holders);
}

void expert_swarm::state::keep(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
        for (const auto& worker : workers)
            worker->maintain(steady_clock_source().now());
        std::unique_lock lock(mutex);
        wake_keeper.wait_for(lock, stop, keeper_interval, [] { return false; });
    }
}

void expert_swarm::state::warn(const worker_link& worker, const std::string& what) {
    const time_point when = steady_clock_source().now();
    {
        const std::lock_guard lock(mutex);
        const auto last = last_warning.find(&worker);
        if (last != last_warning.end() && when - last->second < warning_pause) return;
        last_warning[&worker] = when;
    }
    tell(event::severity::warning,
         fmt::format("worker {}: {}; its experts are computed here meanwhile", worker.endpoint().text(), what));
}

expert_swarm::expert_swarm(options settings) {
    net::connection_options connection;
    wire::hello hello = backbone_hello(settings);
    // `io` lives in the state that the function is made for; it is read only after construction.
    auto io = std::make_shared<net::io_runner*>(nullptr);
    state_ = std::make_unique<state>(std::move(settings), [io, connection, hello = std::move(hello)](
                                                              const net::endpoint& where, net::peer_handlers handlers,
                                                              net::peer_connection::connect_handler done) {
        net::peer_connection::connect(**io, where, hello, connection, std::move(handlers), std::move(done));
    });
    *io = &state_->io;
}

expert_swarm::expert_swarm(options settings, worker_link::connect_function connect)
    : state_(std::make_unique<state>(std::move(settings), std::move(connect))) {}

expert_swarm::~expert_swarm() {
    state_->closing = true;
    state_->keeper.request_stop();
    state_->wake_keeper.notify_all();
    if (state_->keeper.joinable()) state_->keeper.join();
    for (const auto& worker : state_->workers)
        worker->shut_down();
    state_->io.stop();
}

void expert_swarm::connect() {
    std::call_once(state_->started, [this] {
        if (state_->workers.empty()) return;
        state_->keeper = std::jthread([this](const std::stop_token& stop) { state_->keep(stop); });
        std::unique_lock lock(state_->mutex);
        state_->changed.wait_for(lock, state_->settings.connect_timeout,
                                 [this] { return state_->settled.size() == state_->workers.size(); });
    });
}

result<outcome> expert_swarm::compute(const layer_call& call, expert::engine& local) {
    std::shared_ptr<const coverage> who_holds;
    {
        const std::lock_guard lock(state_->mutex);
        who_holds = state_->who_holds;
    }
    surroundings around{.workers = state_->workers, .who_holds = *who_holds};
    around.here_us_per_pair = state_->here_us_per_pair;
    around.warn = [this](const worker_link& worker, const std::string& what) { state_->warn(worker, what); };
    around.draw_audits = [this](std::uint32_t n_results) { return state_->draw_audits(n_results); };
    if (state_->hot)
        around.count_for_hot = [this](const layer_call& counted, std::span<const std::uint32_t> rows_of_expert) {
            return state_->hot->count(counted, rows_of_expert);
        };
    dispatch one(call, around, local);
    auto done = one.run();
    if (const auto measured = one.measured_here_us_per_pair()) state_->learn_here_us_per_pair(*measured);
    const std::lock_guard lock(state_->mutex);
    state_->counts.layer_calls += one.counts().layer_calls;
    state_->counts.local_pairs += one.counts().local_pairs;
    state_->counts.fallback_pairs += one.counts().fallback_pairs;
    state_->counts.audited_pairs += one.counts().audited_pairs;
    return done;
}

statistics expert_swarm::statistics() const {
    swarm::statistics copy;
    for (const auto& worker : state_->workers)
        copy.workers.push_back(worker->statistics());
    if (state_->hot) copy.hot = state_->hot->statistics();
    const std::lock_guard lock(state_->mutex);
    copy.layer_calls = state_->counts.layer_calls;
    copy.local_pairs = state_->counts.local_pairs;
    copy.fallback_pairs = state_->counts.fallback_pairs;
    copy.audited_pairs = state_->counts.audited_pairs;
    copy.n_experts_covered = state_->who_holds->n_experts_covered();
    return copy;
}

}  // namespace kvasir::swarm
