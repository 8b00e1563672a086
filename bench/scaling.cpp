// kvasir-bench-scaling: tokens per second with more and more workers of the same, limited speed.
//
//     kvasir-bench-scaling MODEL [--workers LIST] [--rows-per-second R] [--copies N] [--batch B] [--seconds S]
//                          [--threads N] [--json FILE] [--quick]
//
// Workers are paced (`kvasir worker --max-rows-per-second`), so that a machine with few cores can show what many
// machines would do: as long as the limit is far below what the machine itself can compute, it is the workers that are
// scarce. `limit` is what the workers' limits would allow: their rows per second in all, over the rows that a token
// takes. The last line is the same without limits: what this machine can do at all.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/local_servers.hpp"
#include "bench/runner_process.hpp"

namespace {

using namespace kvasir;
using namespace kvasir::bench;

struct settings {
    std::string model;
    std::vector<std::uint32_t> n_workers = {1, 2, 4, 8, 16};
    double rows_per_second = 500.0;
    std::uint32_t copies = 2;
    std::uint32_t batch = 16;
    double seconds = 8.0;
    int n_threads = 1;
    std::string json;
    bool quick = false;
};

struct measured_swarm {
    std::uint32_t n_workers = 0;
    double rows_per_second = 0.0;  ///< of each worker; 0: no limit
    cell_measurement counts;

    double rows_per_token() const {
        const std::uint64_t rows = counts.worker_rows + counts.local_rows + counts.fallback_rows;
        return static_cast<double>(rows) / counts.n_steps / counts.batch;
    }
    /// Tokens per second that the limits allow; 0 without limits.
    double limit() const { return n_workers * rows_per_second / rows_per_token(); }
    /// How much of their limits the workers used, 0 to 1 (and a little more, for what they may save up before).
    double used() const {
        return static_cast<double>(counts.worker_rows) / counts.seconds / (n_workers * rows_per_second);
    }
};

result<measured_swarm> measure(const settings& chosen, std::uint32_t n_workers, double rows_per_second,
                               const std::filesystem::path& scratch) {
    const auto workers = start_workers(
        chosen.model, {.n_workers = n_workers, .copies = chosen.copies, .max_rows_per_second = rows_per_second},
        scratch);
    if (!workers) return workers.error();
    runner_job job{.model = chosen.model,
                   .engine = engine::kvasir,
                   .servers = addresses_of(*workers),
                   .n_threads = chosen.n_threads};
    job.cells.push_back({.batch = chosen.batch,
                         .n_prompt = 4,
                         .n_warm_steps = 4,
                         .seconds = chosen.seconds,
                         .min_steps = 4,
                         .max_steps = std::max(16U, 8192U / chosen.batch)});
    const auto cells = run_to_end(job);
    if (!cells) return cells.error();
    return measured_swarm{n_workers, rows_per_second, cells->front()};
}

void print_line(const measured_swarm& one, const measured_swarm& first) {
    const double speed = one.counts.tokens_per_second();
    const std::uint64_t here = one.counts.local_rows + one.counts.fallback_rows;
    fmt::print(
        "{:>8} {:>10} {:>10.2f} {:>8.2f} {:>10} {:>9} {:>12}\n", one.n_workers,
        one.rows_per_second > 0 ? fmt::format("{:.0f}", one.rows_per_second) : "none", speed,
        speed / first.counts.tokens_per_second(), one.rows_per_second > 0 ? fmt::format("{:.2f}", one.limit()) : "",
        one.rows_per_second > 0 ? fmt::format("{:.0f}%", 100.0 * one.used()) : "",
        fmt::format("{:.1f}%", 100.0 * static_cast<double>(here) /
                                   static_cast<double>(std::max<std::uint64_t>(1, here + one.counts.worker_rows))));
}

nlohmann::json json_of(const measured_swarm& one) {
    nlohmann::json object = {{"workers", one.n_workers},
                             {"rows_per_second", one.rows_per_second},
                             {"tokens_per_second", one.counts.tokens_per_second()},
                             {"counts", one.counts}};
    if (one.rows_per_second > 0) {
        object["limit_tokens_per_second"] = one.limit();
        object["used"] = one.used();
    }
    return object;
}

int fail(const error& why) {
    fmt::print(stderr, "kvasir-bench-scaling: {}\n", why.message);
    return 1;
}

int run(settings chosen) {
    if (chosen.quick) {
        chosen.n_workers = {1, 4};
        chosen.seconds = 1.5;
    }
    const auto scratch = scratch_directory::make();
    if (!scratch) return fail(scratch.error());
    std::vector<measured_swarm> all;
    fmt::print("{:>8} {:>10} {:>10} {:>8} {:>10} {:>9} {:>12}\n", "workers", "rows/s", "tokens/s", "speedup", "limit",
               "used", "rows here");
    const auto add = [&](std::uint32_t n_workers, double rows_per_second) -> result<void> {
        const auto one = measure(chosen, n_workers, rows_per_second, scratch->path());
        if (!one) return one.error();
        all.push_back(*one);
        print_line(all.back(), all.front());
        std::fflush(stdout);
        return {};
    };
    for (const std::uint32_t n_workers : chosen.n_workers)
        if (auto added = add(n_workers, chosen.rows_per_second); !added) return fail(added.error());
    if (auto added = add(chosen.n_workers.back(), 0.0); !added) return fail(added.error());

    nlohmann::json swarms = nlohmann::json::array();
    for (const measured_swarm& one : all)
        swarms.push_back(json_of(one));
    const nlohmann::json object = {{"benchmark", "scaling"},      {"batch", chosen.batch},
                                   {"copies", chosen.copies},     {"seconds", chosen.seconds},
                                   {"threads", chosen.n_threads}, {"swarms", swarms}};
    if (auto written = write_json(chosen.json, object.dump(1)); !written) return fail(written.error());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    settings chosen;
    CLI::App app("Tokens per second against the number of workers", "kvasir-bench-scaling");
    app.add_option("MODEL", chosen.model, "A GGUF model with routed experts")->required();
    app.add_option("--workers", chosen.n_workers, "Numbers of workers")->delimiter(',')->check(CLI::Range(1U, 256U));
    app.add_option("--rows-per-second", chosen.rows_per_second, "Limit of each worker")->check(CLI::Range(1.0, 1e9));
    app.add_option("--copies", chosen.copies, "Workers that hold each expert")->check(CLI::Range(1U, 256U));
    app.add_option("--batch", chosen.batch, "Sequences decoded together")->check(CLI::Range(1U, 256U));
    app.add_option("--seconds", chosen.seconds, "Length of each measurement")->check(CLI::Range(0.01, 3600.0));
    app.add_option("--threads", chosen.n_threads, "Of the backbone")->check(CLI::Range(1, 512));
    app.add_option("--json", chosen.json, "Also write the results to this file");
    app.add_flag("--quick", chosen.quick, "Few and short measurements");
    CLI11_PARSE(app, argc, argv);
    return run(std::move(chosen));
}
