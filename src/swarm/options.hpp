// What a swarm is told at the start, and what it tells its owner.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/sha256.hpp"
#include "net/endpoint.hpp"
#include "swarm/service_time.hpp"

namespace kvasir::swarm {

/// Something worth a line in a log.
struct event {
    enum class severity { info, warning } level = severity::info;
    std::string text;
};

inline constexpr double default_audit_share = 0.01;

struct options {
    std::vector<net::endpoint> workers;
    sha256_digest model;   ///< the model's digest; workers that hold slices of another model are refused
    std::string numerics;  ///< expert::numerics_fingerprint(); workers that compute other bits are refused
    std::string build;     ///< program and version, for people
    /// The share of the workers' results that is computed again here and compared, 0 to 1.
    double audit_share = default_audit_share;
    /// Nothing is asked elsewhere as well before so much time has passed.
    duration min_hedge = default_min_hedge;
    /// What one (row, expert) pair takes on this machine. Measured while it computes, unless given.
    std::optional<double> here_us_per_pair;
    /// So many bytes of experts are kept in this machine's memory, those that the router chooses most often, and are
    /// computed here when that finishes a layer sooner although workers hold them. Zero: none.
    std::uint64_t hot_experts_bytes = 0;
    /// How long connect() waits for all workers.
    duration connect_timeout = std::chrono::seconds(10);
    /// May be empty. Called from any thread, one call at a time.
    std::function<void(const event&)> on_event;
};

enum class worker_state {
    joining,      ///< the first attempt to reach it has not ended
    live,         ///< gets work
    suspect,      ///< connected, but gets only work that is done elsewhere as well, until it has proved itself
    draining,     ///< is leaving: finishes what it has
    gone,         ///< cannot be reached; tried again in the background
    refused,      ///< holds another model, computes other bits or broke the protocol; tried again as well
    quarantined,  ///< its results were wrong: not used again by this process
};
const char* name_of(worker_state state);

/// One worker, as seen from here, since the swarm began.
struct worker_statistics {
    std::string endpoint;
    std::string name;  ///< what it calls itself; may be empty
    worker_state state = worker_state::joining;
    std::string reason;  ///< why it is gone, refused or quarantined; one line
    std::uint64_t n_experts = 0;
    std::uint64_t pairs = 0;     ///< (row, expert) results taken from it
    std::uint64_t requests = 0;  ///< answered
    std::uint64_t failures = 0;  ///< requests that ended otherwise: beyond all patience, refused, or cut off
    std::uint64_t hedges = 0;    ///< requests that were late and therefore asked elsewhere as well
    std::uint64_t misses = 0;    ///< of these, and of trials: somebody else was quicker
    std::uint64_t trials = 0;    ///< requests that were computed elsewhere from the start
    std::uint64_t audited_pairs = 0;
    std::uint64_t wrong_pairs = 0;      ///< audited and not what this machine computes
    std::uint64_t pairs_in_flight = 0;  ///< asked and not answered, right now
    std::uint64_t bytes_out = 0;
    std::uint64_t bytes_in = 0;
    duration round_trip_time{};     ///< zero before the first measurement
    double pairs_per_second = 0.0;  ///< while it computes; zero before the first answer
    double bytes_per_second = 0.0;  ///< of the connection; zero while unknown
};

/// The experts that are kept on this machine because they are chosen often.
struct hot_statistics {
    std::uint64_t budget_bytes = 0;
    std::uint64_t n_experts = 0;   ///< in the set right now
    std::uint64_t size_bytes = 0;  ///< of these
    std::uint64_t pairs = 0;       ///< (row, expert) pairs that the router chose
    std::uint64_t hits = 0;        ///< of these, those whose expert was in the set
    std::uint64_t evictions = 0;
    std::string why_not_locked;  ///< empty, or why the system does not let them be kept from being paged out
};

struct statistics {
    std::vector<worker_statistics> workers;
    std::uint64_t layer_calls = 0;        ///< in which at least one pair was sent out
    std::uint64_t local_pairs = 0;        ///< planned for this machine: nobody held their expert
    std::uint64_t fallback_pairs = 0;     ///< sent out, but computed here in the end
    std::uint64_t audited_pairs = 0;      ///< computed a second time here, to compare
    std::uint64_t n_experts_covered = 0;  ///< right now, by live workers
    hot_statistics hot;                   ///< all zero without options::hot_experts_bytes
};

}  // namespace kvasir::swarm
