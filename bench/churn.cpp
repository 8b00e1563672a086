// kvasir-bench-churn: what it costs when many workers vanish at once, in the middle of generation.
//
//     kvasir-bench-churn MODEL [--workers N] [--percent LIST] [--copies N] [--batch B] [--rtt-ms R] [--before S]
//     [--after S]
//                        [--threads N] [--json FILE] [--quick]
//
// Twice for each share: with SIGKILL (connections break at once) and with SIGSTOP (nothing is said any more, as when a
// phone loses its network: only time tells). Generation goes on throughout; its bits do not change, which tests show
// and this does not.
//
// before, after: tokens per second before it, and in the second half of the time after it. during: in the first two
// seconds after it. longest gap: between one token and the next of a sequence, after it. time lost: by how much the
// steps after it took longer than so many steps of the second half.
#include <fmt/core.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/local_servers.hpp"
#include "bench/runner_process.hpp"

namespace {

using namespace kvasir;
using namespace kvasir::bench;

constexpr duration patience = std::chrono::minutes(2);
constexpr double during_s = 2.0;
constexpr double timeline_bin_s = 0.5;

struct settings {
    std::string model;
    std::uint32_t n_workers = 10;
    std::vector<std::uint32_t> percents = {10, 30, 60};
    std::uint32_t copies = 2;
    std::uint32_t batch = 4;
    double rtt_ms = 5.0;
    double before_s = 3.0;
    double after_s = 8.0;
    int n_threads = 1;
    std::string json;
    bool quick = false;
};

/// When steps ended, in seconds from the moment at which workers vanished.
using step_times = std::vector<double>;

struct outcome {
    std::string how{};
    std::uint32_t percent = 0;
    std::uint32_t n_gone = 0;
    step_times steps{};
    double before = 0.0;  ///< tokens per second
    double during = 0.0;
    double after = 0.0;
    double longest_gap_s = 0.0;
    double lost_s = 0.0;
};

/// Steps that ended in (from, to].
std::size_t n_between(const step_times& steps, double from, double to) {
    return static_cast<std::size_t>(std::ranges::count_if(steps, [&](double at) { return at > from && at <= to; }));
}

void evaluate(outcome& one, const settings& chosen) {
    const step_times& steps = one.steps;
    const auto speed = [&](double from, double to) {
        return static_cast<double>(n_between(steps, from, to)) * chosen.batch / (to - from);
    };
    const double half_s = chosen.after_s / 2;
    one.before = speed(-chosen.before_s, 0.0);
    one.during = speed(0.0, std::min(during_s, chosen.after_s));
    one.after = speed(half_s, chosen.after_s);
    for (std::size_t i = 1; i < steps.size(); ++i)
        if (steps[i] > 0.0) one.longest_gap_s = std::max(one.longest_gap_s, steps[i] - steps[i - 1]);
    // One that had not ended when the measurement did.
    if (!steps.empty()) one.longest_gap_s = std::max(one.longest_gap_s, chosen.after_s - steps.back());
    const double at_once_s =
        static_cast<double>(n_between(steps, 0.0, half_s)) * chosen.batch / std::max(one.after, 1e-9);
    one.lost_s = half_s - at_once_s;
}

double seconds_of(std::int64_t at_ns, std::int64_t zero_ns) {
    return std::chrono::duration<double>(std::chrono::nanoseconds(at_ns - zero_ns)).count();
}

/// Appends the ends of steps as they come, until `until`.
result<void> collect(runner_process& runner, std::vector<std::int64_t>& at_ns, time_point until) {
    while (steady_clock_source().now() < until) {
        const auto event = runner.next(until - steady_clock_source().now());
        if (!event && event.error().code == errc::timeout) return {};
        if (!event) return event.error();
        if ((*event)["event"] == "step") at_ns.push_back((*event)["at_ns"].get<std::int64_t>());
        if ((*event)["event"] == "cell")
            return error(errc::internal, "the generation ended before the measurement did");
    }
    return {};
}

result<outcome> measure(const settings& chosen, const std::string& how, std::uint32_t percent,
                        const std::filesystem::path& scratch) {
    auto workers = start_workers(chosen.model, {.n_workers = chosen.n_workers, .copies = chosen.copies}, scratch);
    if (!workers) return workers.error();
    const link_options link{
        .delay = std::chrono::duration_cast<duration>(std::chrono::duration<double, std::milli>(chosen.rtt_ms / 2.0))};
    const auto proxy = put_behind(link, *workers);
    if (!proxy) return proxy.error();
    runner_job job{.model = chosen.model,
                   .engine = engine::kvasir,
                   .servers = addresses_of(**proxy, workers->size()),
                   .n_threads = chosen.n_threads,
                   .trace = true};
    // Longer than is needed: it is ended when enough has been seen.
    job.cells.push_back({.batch = chosen.batch,
                         .n_prompt = 4,
                         .n_warm_steps = 8,
                         .seconds = chosen.before_s + chosen.after_s + 60.0,
                         .min_steps = 1,
                         .max_steps = 32'768U / chosen.batch});
    auto runner = runner_process::start(job);
    if (!runner) return runner.error();
    if (auto begun = runner->next("begin", patience); !begun) return begun.error();

    const auto from_now = [](double seconds) {
        return steady_clock_source().now() +
               std::chrono::duration_cast<duration>(std::chrono::duration<double>(seconds));
    };
    std::vector<std::int64_t> at_ns;
    if (auto seen = collect(*runner, at_ns, from_now(chosen.before_s)); !seen) return seen.error();

    std::vector<std::size_t> order(workers->size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    outcome one{.how = how, .percent = percent};
    one.n_gone = static_cast<std::uint32_t>(std::lround(chosen.n_workers * percent / 100.0));
    const std::int64_t zero_ns = steady_clock_source().now().time_since_epoch().count();
    for (std::size_t i = 0; i < one.n_gone; ++i)
        ::kill((*workers)[order[i]].process.pid(), how == "kill" ? SIGKILL : SIGSTOP);

    if (auto seen = collect(*runner, at_ns, from_now(chosen.after_s)); !seen) return seen.error();
    for (const std::int64_t at : at_ns)
        one.steps.push_back(seconds_of(at, zero_ns));
    evaluate(one, chosen);
    return one;
}

nlohmann::json json_of(const outcome& one, const settings& chosen) {
    nlohmann::json timeline = nlohmann::json::array();
    for (double from = -chosen.before_s; from + timeline_bin_s <= chosen.after_s + 1e-9; from += timeline_bin_s) {
        const double tokens = static_cast<double>(n_between(one.steps, from, from + timeline_bin_s)) * chosen.batch;
        timeline.push_back({from, tokens / timeline_bin_s});
    }
    return {
        {"how", one.how},       {"percent", one.percent}, {"workers_gone", one.n_gone},         {"before", one.before},
        {"during", one.during}, {"after", one.after},     {"longest_gap_s", one.longest_gap_s}, {"lost_s", one.lost_s},
        {"timeline", timeline}};
}

int fail(const error& why) {
    fmt::print(stderr, "kvasir-bench-churn: {}\n", why.message);
    return 1;
}

int run(settings chosen) {
    if (chosen.quick) {
        chosen.percents = {30};
        chosen.before_s = 1.0;
        chosen.after_s = 3.0;
    }
    const auto scratch = scratch_directory::make();
    if (!scratch) return fail(scratch.error());
    fmt::print("{} workers, each expert on {} of them, batch {}, round-trip time {} ms; tokens/s\n\n", chosen.n_workers,
               chosen.copies, chosen.batch, chosen.rtt_ms);
    fmt::print("{:>6} {:>6} {:>6} {:>9} {:>9} {:>9} {:>14} {:>12}\n", "how", "gone", "of all", "before", "during",
               "after", "longest gap s", "time lost s");
    nlohmann::json outcomes = nlohmann::json::array();
    for (const std::string how : {"kill", "stop"})
        for (const std::uint32_t percent : chosen.percents) {
            const auto one = measure(chosen, how, percent, scratch->path());
            if (!one) return fail(one.error());
            fmt::print("{:>6} {:>6} {:>5}% {:>9.2f} {:>9.2f} {:>9.2f} {:>14.3f} {:>12.3f}\n", how, one->n_gone, percent,
                       one->before, one->during, one->after, one->longest_gap_s, one->lost_s);
            std::fflush(stdout);
            outcomes.push_back(json_of(*one, chosen));
        }
    const nlohmann::json object = {
        {"benchmark", "churn"},    {"workers", chosen.n_workers}, {"copies", chosen.copies}, {"batch", chosen.batch},
        {"rtt_ms", chosen.rtt_ms}, {"threads", chosen.n_threads}, {"outcomes", outcomes}};
    if (auto written = write_json(chosen.json, object.dump(1)); !written) return fail(written.error());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    settings chosen;
    CLI::App app("What it costs when workers vanish", "kvasir-bench-churn");
    app.add_option("MODEL", chosen.model, "A GGUF model with routed experts")->required();
    app.add_option("--workers", chosen.n_workers)->check(CLI::Range(1U, 256U));
    app.add_option("--percent", chosen.percents, "Shares of the workers that vanish")
        ->delimiter(',')
        ->check(CLI::Range(0U, 100U));
    app.add_option("--copies", chosen.copies, "Workers that hold each expert")->check(CLI::Range(1U, 256U));
    app.add_option("--batch", chosen.batch, "Sequences decoded together")->check(CLI::Range(1U, 256U));
    app.add_option("--rtt-ms", chosen.rtt_ms, "Round-trip time to the workers")->check(CLI::Range(0.0, 10'000.0));
    app.add_option("--before", chosen.before_s, "Seconds before")->check(CLI::Range(0.1, 600.0));
    app.add_option("--after", chosen.after_s, "Seconds after")->check(CLI::Range(0.1, 600.0));
    app.add_option("--threads", chosen.n_threads, "Of the backbone")->check(CLI::Range(1, 512));
    app.add_option("--json", chosen.json, "Also write the results to this file");
    app.add_flag("--quick", chosen.quick, "One share, short");
    CLI11_PARSE(app, argc, argv);
    return run(std::move(chosen));
}
