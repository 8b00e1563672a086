// What a benchmark asks the program `kvasir-bench-runner` to measure, and what comes back: the one language between the
// two, as JSON. A process can hold only one configuration of ggml's backends, so every variant runs in a process of its
// own.
//
// The runner prints one JSON object per line:
//    {"event":"ready"}                                   the model is loaded, workers are connected
//    {"event":"begin","cell":i}                          prefill and warm-up of a cell are done; a pause, then it steps
//    {"event":"step","at_ns":t}                          one step is done (only with trace), by the steady clock
//    {"event":"cell","cell":i, … see cell_measurement}   the cell is done
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvasir::bench {

/// Where the routed experts are computed.
enum class engine {
    stock,   ///< llama.cpp without Kvasir, here
    rpc,     ///< llama.cpp without Kvasir, on its own RPC servers
    kvasir,  ///< the backend KVASIR, on the workers that are named
};
NLOHMANN_JSON_SERIALIZE_ENUM(engine, {{engine::stock, "stock"}, {engine::rpc, "rpc"}, {engine::kvasir, "kvasir"}})

/// Steps of a number of sequences that are decoded together: each step computes one token for each of them.
struct cell {
    std::uint32_t batch = 1;         ///< sequences
    std::uint32_t n_prompt = 8;      ///< tokens of each sequence, computed before the steps in one batch
    std::uint32_t n_warm_steps = 2;  ///< not measured
    double seconds = 2.0;            ///< steps are taken until this has passed …
    std::uint32_t min_steps = 4;     ///< … but at least so many
    std::uint32_t max_steps = 200;   ///< … and at most so many
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(cell, batch, n_prompt, n_warm_steps, seconds, min_steps, max_steps)

struct runner_job {
    std::string model{};
    bench::engine engine = engine::stock;
    bool repack = false;                 ///< llama.cpp's repacked weights; they have other bits
    std::vector<std::string> servers{};  ///< workers or RPC servers, host:port
    int n_threads = 1;
    bool trace = false;
    std::vector<cell> cells{};
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(runner_job, model, engine, repack, servers, n_threads, trace, cells)

struct cell_measurement {
    std::uint32_t batch = 0;
    double prefill_seconds = 0.0;
    std::uint32_t n_prompt = 0;
    std::uint32_t n_steps = 0;
    double seconds = 0.0;  ///< of the steps
    // Of the steps alone, for the engine kvasir; zero otherwise.
    std::uint64_t layer_calls = 0;    ///< layers of which something was asked from a worker
    std::uint64_t worker_rows = 0;    ///< (row, expert) results taken from workers
    std::uint64_t local_rows = 0;     ///< planned for this machine
    std::uint64_t fallback_rows = 0;  ///< asked from a worker, but computed here in the end
    std::uint64_t bytes_to_workers = 0;
    std::uint64_t bytes_from_workers = 0;
    double worker_rows_per_second = 0.0;  ///< of one worker while it computes, by its own clock; the mean of all

    double tokens_per_second() const { return seconds > 0.0 ? static_cast<double>(n_steps) * batch / seconds : 0.0; }
    double step_seconds() const { return n_steps > 0 ? seconds / n_steps : 0.0; }
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(cell_measurement, batch, prefill_seconds, n_prompt, n_steps, seconds, layer_calls,
                                   worker_rows, local_rows, fallback_rows, bytes_to_workers, bytes_from_workers,
                                   worker_rows_per_second)

}  // namespace kvasir::bench
