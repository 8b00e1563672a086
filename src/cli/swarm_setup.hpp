// What `serve`, `generate`, `verify` and `demo` share: naming workers, joining them, and saying what they did.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "net/endpoint.hpp"
#include "swarm/options.hpp"

namespace kvasir::cli {

/// What of the swarm's events goes to stderr.
enum class swarm_talk { everything, warnings, nothing };

struct swarm_request {
    std::string command;  ///< for messages
    std::string model_path;
    std::vector<net::endpoint> workers;
    swarm_talk talk = swarm_talk::everything;
    /// Every worker must be there; otherwise only a worker that does not fit the model or this build is an error, and
    /// one that cannot be reached is tried again in the background.
    bool demand_all = false;
    /// See swarm::options.
    double audit_share = swarm::default_audit_share;
    std::uint64_t hot_experts_bytes = 0;
};

/// Adds `--worker HOST:PORT`, to be given once per worker, checked while parsing.
void add_worker_option(CLI::App& app, std::vector<net::endpoint>& workers);
/// The same check for what is parsed otherwise: errc::invalid_input for a duplicate.
result<void> add_worker(std::vector<net::endpoint>& workers, const std::string& text);
/// A share of audited results, 0 to 1; a sentence that says so otherwise.
result<double> parse_audit_share(const std::string& text);
/// Adds `--hot-experts SIZE`, a number of bytes or one with K, M, G, T (powers of 1000) or
/// Ki, Mi, Gi, Ti (of 1024).
void add_hot_experts_option(CLI::App& app, std::uint64_t& hot_experts_bytes);
/// The same for what is parsed otherwise.
result<std::uint64_t> parse_hot_experts(const std::string& text);

/// Makes the backend KVASIR known to ggml, without workers. Once per process is enough; more do no harm.
void register_backend();
/// Reads the model's manifest (making it, with a progress bar, where there is none yet) and joins the workers. Without
/// workers it only registers the backend.
result<void> join_swarm(const swarm_request& request);

/// A table of the workers and of what was computed here.
void print_swarm_table(const swarm::statistics& counts);

}  // namespace kvasir::cli
