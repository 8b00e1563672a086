// kvasir-bench-latency: tokens per second against round-trip time and batch, Kvasir side by side with stock llama.cpp's
// RPC backend, which holds the same experts behind the same delaying proxies.
//
//     kvasir-bench-latency MODEL [--workers N] [--rtt-ms LIST] [--batch LIST] [--seconds S] [--threads N]
//                          [--bandwidth B] [--json FILE] [--quick]
//
// Kvasir deals each layer's experts out to all workers; the RPC backend cannot divide a layer, so its servers hold
// whole ones. For each round-trip time the two take turns.
//
// How a step's time is divided: `round trips` is what one round trip per layer takes by arithmetic; `compute` is the
// step through the same proxies without delay; `rest` is what remains. Round trips per layer come twice: as the
// added time, (step - compute) / (layers * round-trip time), and as the proxies counted them: how often servers
// answered per step and layer, which for Kvasir, whose workers are asked at the same time, is the one that answered
// most often, and for the RPC servers, which are asked one after the other, all of them together.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/echo_probe.hpp"
#include "bench/local_servers.hpp"
#include "bench/runner_process.hpp"

namespace {

using namespace kvasir;
using namespace kvasir::bench;

constexpr duration patience = std::chrono::minutes(5);

struct settings {
    std::string model;
    std::uint32_t n_workers = 2;
    std::vector<double> rtt_ms = {0.0, 5.0, 20.0, 50.0, 100.0};
    std::vector<std::uint32_t> batches = {1, 4, 16, 64};
    double seconds = 2.0;
    int n_threads = 1;
    std::uint64_t bytes_per_second = 0;
    std::string json;
    bool quick = false;
};

/// One engine at one round-trip time with one batch.
struct measured_cell {
    cell_measurement counts;
    std::uint64_t turns = 0;  ///< answers one after the other
};

struct key {
    engine which = engine::kvasir;
    double rtt_ms = 0.0;
    std::uint32_t batch = 0;
    auto operator<=>(const key&) const = default;
};

struct grid {
    std::map<key, measured_cell> cells;
    std::map<double, double> echo_ms;  ///< by round-trip time

    const measured_cell& at(const key& where) const { return cells.at(where); }
};

std::vector<std::uint64_t> turns_of(const delay_proxy& proxy, std::size_t n_servers) {
    std::vector<std::uint64_t> turns;
    for (std::size_t i = 0; i < n_servers; ++i)
        turns.push_back(proxy.statistics(i).turns);
    return turns;
}

result<std::vector<measured_cell>> measure(const runner_job& job, const delay_proxy& proxy) {
    auto runner = runner_process::start(job);
    if (!runner) return runner.error();
    std::vector<measured_cell> cells;
    while (cells.size() < job.cells.size()) {
        if (auto begun = runner->next("begin", patience); !begun) return begun.error();
        const auto before = turns_of(proxy, job.servers.size());
        const auto done = runner->next("cell", patience);
        if (!done) return done.error();
        const auto after = turns_of(proxy, job.servers.size());
        measured_cell one{.counts = done->get<cell_measurement>()};
        for (std::size_t i = 0; i < before.size(); ++i)
            one.turns = job.engine == engine::rpc ? one.turns + after[i] - before[i]
                                                  : std::max(one.turns, after[i] - before[i]);
        cells.push_back(one);
    }
    return cells;
}

runner_job job_for(const settings& chosen, engine which, std::vector<std::string> servers) {
    runner_job job{
        .model = chosen.model, .engine = which, .servers = std::move(servers), .n_threads = chosen.n_threads};
    for (const std::uint32_t batch : chosen.batches)
        job.cells.push_back({.batch = batch,
                             .n_prompt = 8,
                             .n_warm_steps = 2,
                             .seconds = chosen.seconds,
                             .min_steps = 4,
                             // All sequences share one context; with many of them it would grow for ever.
                             .max_steps = batch >= 64 ? 64U : 400U});
    return job;
}

result<grid> measure_all(const settings& chosen) {
    auto scratch = scratch_directory::make();
    if (!scratch) return scratch.error();
    const auto workers = start_workers(chosen.model, {.n_workers = chosen.n_workers}, scratch->path());
    if (!workers) return workers.error();
    const auto rpc_servers = start_rpc_servers(chosen.n_workers);
    if (!rpc_servers) return rpc_servers.error();

    grid all;
    bool kvasir_first = true;
    for (const double rtt_ms : chosen.rtt_ms) {
        const link_options link{
            .delay = std::chrono::duration_cast<duration>(std::chrono::duration<double, std::milli>(rtt_ms / 2.0)),
            .bytes_per_second = chosen.bytes_per_second};
        const auto echo = measure_echo(link, rtt_ms > 20.0 ? 10 : 40);
        if (!echo) return echo.error();
        all.echo_ms[rtt_ms] = std::chrono::duration<double, std::milli>(*echo).count();
        kvasir_first = !kvasir_first;
        for (const engine which :
             {kvasir_first ? engine::kvasir : engine::rpc, kvasir_first ? engine::rpc : engine::kvasir}) {
            const auto& servers = which == engine::kvasir ? *workers : *rpc_servers;
            const auto proxy = put_behind(link, servers);
            if (!proxy) return proxy.error();
            const auto cells = measure(job_for(chosen, which, addresses_of(**proxy, servers.size())), **proxy);
            if (!cells) return cells.error();
            for (std::size_t i = 0; i < cells->size(); ++i)
                all.cells[{which, rtt_ms, chosen.batches[i]}] = (*cells)[i];
            fmt::print(stderr, "measured: {} at {} ms\n", nlohmann::json(which).get<std::string>(), rtt_ms);
        }
    }
    return all;
}

struct divided_step {
    double step_ms = 0.0;
    double round_trips_ms = 0.0;       ///< one per layer, by arithmetic
    std::optional<double> compute_ms;  ///< where the same cell was measured without delay
    double turns_per_layer = 0.0;

    std::optional<double> rest_ms() const {
        return compute_ms ? std::optional(step_ms - round_trips_ms - *compute_ms) : std::nullopt;
    }
    std::optional<double> round_trips_per_layer() const {
        return compute_ms && round_trips_ms > 0.0 ? std::optional((step_ms - *compute_ms) / round_trips_ms)
                                                  : std::nullopt;
    }
};

divided_step divide(const grid& all, const key& where, double layers) {
    const measured_cell& one = all.at(where);
    divided_step divided{.step_ms = one.counts.step_seconds() * 1e3,
                         .round_trips_ms = layers * where.rtt_ms,
                         .compute_ms = std::nullopt,
                         .turns_per_layer = static_cast<double>(one.turns) / one.counts.n_steps / layers};
    if (const auto without = all.cells.find({where.which, 0.0, where.batch}); without != all.cells.end())
        divided.compute_ms = without->second.counts.step_seconds() * 1e3;
    return divided;
}

std::string text_of(const std::optional<double>& value, int digits) {
    return value ? fmt::format("{:.{}f}", *value, digits) : "";
}

void print_table(const settings& chosen, const grid& all, double layers) {
    fmt::print("{} layers with experts on {} workers; stock RPC: the same experts on {} servers\n\n", layers,
               chosen.n_workers, chosen.n_workers);
    fmt::print("{:>7} {:>7} {:>6} | {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} | {:>9} {:>9} {:>7} {:>7} | {:>6}\n",
               "rtt ms", "echo ms", "batch", "kvasir/s", "step ms", "rtts ms", "compute", "rest ms", "added", "counted",
               "rpc/s", "step ms", "added", "counted", "ratio");
    for (const double rtt_ms : chosen.rtt_ms)
        for (const std::uint32_t batch : chosen.batches) {
            const key ours{engine::kvasir, rtt_ms, batch};
            const key stock{engine::rpc, rtt_ms, batch};
            const divided_step here = divide(all, ours, layers);
            const divided_step there = divide(all, stock, layers);
            const double our_speed = all.at(ours).counts.tokens_per_second();
            const double stock_speed = all.at(stock).counts.tokens_per_second();
            fmt::print(
                "{:>7} {:>7.2f} {:>6} | {:>9.2f} {:>9.2f} {:>9.2f} {:>9} {:>9} {:>7} {:>7.2f} | {:>9.2f} {:>9.2f} "
                "{:>7} "
                "{:>7.2f} | {:>6.2f}\n",
                rtt_ms, all.echo_ms.at(rtt_ms), batch, our_speed, here.step_ms, here.round_trips_ms,
                text_of(here.compute_ms, 2), text_of(here.rest_ms(), 2), text_of(here.round_trips_per_layer(), 2),
                here.turns_per_layer, stock_speed, there.step_ms, text_of(there.round_trips_per_layer(), 2),
                there.turns_per_layer, stock_speed > 0 ? our_speed / stock_speed : 0.0);
        }
}

nlohmann::json json_of(const settings& chosen, const grid& all, double layers) {
    nlohmann::json cells = nlohmann::json::array();
    for (const auto& [where, one] : all.cells) {
        const divided_step divided = divide(all, where, layers);
        nlohmann::json object = {{"engine", where.which},
                                 {"rtt_ms", where.rtt_ms},
                                 {"batch", where.batch},
                                 {"echo_ms", all.echo_ms.at(where.rtt_ms)},
                                 {"tokens_per_second", one.counts.tokens_per_second()},
                                 {"step_ms", divided.step_ms},
                                 {"round_trips_ms", divided.round_trips_ms},
                                 {"turns_per_layer", divided.turns_per_layer},
                                 {"counts", one.counts}};
        if (divided.compute_ms) object["compute_ms"] = *divided.compute_ms;
        if (const auto rest = divided.rest_ms()) object["rest_ms"] = *rest;
        if (const auto trips = divided.round_trips_per_layer()) object["round_trips_per_layer"] = *trips;
        cells.push_back(std::move(object));
    }
    return {{"benchmark", "latency"},
            {"workers", chosen.n_workers},
            {"layers", layers},
            {"threads", chosen.n_threads},
            {"bytes_per_second", chosen.bytes_per_second},
            {"seconds", chosen.seconds},
            {"cells", std::move(cells)}};
}

int fail(const error& why) {
    fmt::print(stderr, "kvasir-bench-latency: {}\n", why.message);
    return 1;
}

int run(settings chosen) {
    if (chosen.quick) {
        chosen.rtt_ms = {0.0, 20.0};
        chosen.batches = {1, 16};
        chosen.seconds = 0.5;
    }
    const auto all = measure_all(chosen);
    if (!all) return fail(all.error());
    const cell_measurement& first = all->at({engine::kvasir, chosen.rtt_ms.front(), chosen.batches.front()}).counts;
    const double layers = static_cast<double>(first.layer_calls) / first.n_steps;
    if (layers <= 0.0) return fail(error(errc::internal, "nothing was asked from the workers"));
    print_table(chosen, *all, layers);
    if (auto written = write_json(chosen.json, json_of(chosen, *all, layers).dump(1)); !written)
        return fail(written.error());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    settings chosen;
    CLI::App app("Tokens per second against round-trip time and batch", "kvasir-bench-latency");
    app.add_option("MODEL", chosen.model, "A GGUF model with routed experts")->required();
    app.add_option("--workers", chosen.n_workers, "Workers, and RPC servers")->check(CLI::Range(1U, 16U));
    app.add_option("--rtt-ms", chosen.rtt_ms, "Round-trip times")->delimiter(',')->check(CLI::Range(0.0, 10'000.0));
    app.add_option("--batch", chosen.batches, "Sequences decoded together")
        ->delimiter(',')
        ->check(CLI::Range(1U, 256U));
    app.add_option("--seconds", chosen.seconds, "Length of each measurement")->check(CLI::Range(0.01, 3600.0));
    app.add_option("--threads", chosen.n_threads, "Of the backbone")->check(CLI::Range(1, 512));
    app.add_option("--bandwidth", chosen.bytes_per_second, "Of each direction of each connection; 0: no cap")
        ->transform(CLI::AsSizeValue(true));
    app.add_option("--json", chosen.json, "Also write the results to this file");
    app.add_flag("--quick", chosen.quick, "A small grid");
    CLI11_PARSE(app, argc, argv);
    return run(std::move(chosen));
}
