// kvasir-bench-overhead: tokens per second of stock llama.cpp (weights repacked and not) against KVASIR with no workers
// and with local workers, side by side: the variants take turns, round after round, so that whatever else the machine
// does hits all of them alike. Prints medians and ratios.
//
//     kvasir-bench-overhead MODEL [--rounds N] [--prompt N] [--decode N] [--threads N] [--workers N] [--json FILE]
//                           [--quick]
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
    std::uint32_t n_rounds = 5;
    std::uint32_t n_prompt = 256;
    std::uint32_t n_decode = 64;
    int n_threads = 2;
    std::uint32_t n_workers = 2;
    std::string json;
    bool quick = false;
};

struct variant {
    std::string name;
    runner_job job;
    std::vector<double> prefill{};  ///< tokens per second, one for each round
    std::vector<double> decode{};
};

std::vector<variant> variants_of(const settings& chosen, const std::vector<server_process>& workers) {
    runner_job plain{.model = chosen.model, .n_threads = chosen.n_threads};
    // Once for warmth (page cache, threads, connections), once for the record.
    plain.cells.assign(2, {.batch = 1,
                           .n_prompt = chosen.n_prompt,
                           .n_warm_steps = 0,
                           .seconds = 0.0,
                           .min_steps = chosen.n_decode,
                           .max_steps = chosen.n_decode});
    runner_job repacked = plain;
    repacked.repack = true;
    runner_job alone = plain;
    alone.engine = engine::kvasir;
    runner_job with_workers = alone;
    with_workers.servers = addresses_of(workers);
    return {{"stock, not repacked", plain},
            {"stock, repacked", repacked},
            {"KVASIR, no workers", alone},
            {fmt::format("KVASIR, {} local workers", workers.size()), with_workers}};
}

result<void> run_once(variant& one) {
    const auto measured = run_to_end(one.job);
    if (!measured) return measured.error().while_doing(one.name);
    const cell_measurement& last = measured->back();
    one.prefill.push_back(last.n_prompt / last.prefill_seconds);
    one.decode.push_back(last.tokens_per_second());
    return {};
}

void print_table(const std::vector<variant>& variants) {
    fmt::print("{:<34} {:>16} {:>8} {:>16} {:>8}\n", "", "prefill tokens/s", "ratio", "decode tokens/s", "ratio");
    for (const variant& one : variants)
        fmt::print("{:<34} {:>16.1f} {:>8.3f} {:>16.1f} {:>8.3f}\n", one.name, median(one.prefill),
                   median(one.prefill) / median(variants[0].prefill), median(one.decode),
                   median(one.decode) / median(variants[0].decode));
}

nlohmann::json json_of(const settings& chosen, const std::vector<variant>& variants) {
    nlohmann::json rows = nlohmann::json::array();
    for (const variant& one : variants)
        rows.push_back({{"name", one.name},
                        {"prefill", median(one.prefill)},
                        {"decode", median(one.decode)},
                        {"prefill_ratio", median(one.prefill) / median(variants[0].prefill)},
                        {"decode_ratio", median(one.decode) / median(variants[0].decode)}});
    return {{"benchmark", "overhead"},   {"rounds", chosen.n_rounds}, {"threads", chosen.n_threads},
            {"prompt", chosen.n_prompt}, {"decode", chosen.n_decode}, {"variants", rows}};
}

int fail(const error& why) {
    fmt::print(stderr, "kvasir-bench-overhead: {}\n", why.message);
    return 1;
}

int run(settings chosen) {
    if (chosen.quick) {
        chosen.n_rounds = 1;
        chosen.n_prompt = 64;
        chosen.n_decode = 16;
    }
    const auto scratch = scratch_directory::make();
    if (!scratch) return fail(scratch.error());
    const auto workers = start_workers(chosen.model, {.n_workers = chosen.n_workers}, scratch->path());
    if (!workers) return fail(workers.error());
    std::vector<variant> variants = variants_of(chosen, *workers);
    for (std::uint32_t round = 0; round < chosen.n_rounds; ++round)
        // Starting elsewhere each round: no variant always follows the same one.
        for (std::size_t i = 0; i < variants.size(); ++i)
            if (auto done = run_once(variants[(round + i) % variants.size()]); !done) return fail(done.error());
    print_table(variants);
    if (auto written = write_json(chosen.json, json_of(chosen, variants).dump(1)); !written)
        return fail(written.error());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    settings chosen;
    CLI::App app("Measures what the backend costs", "kvasir-bench-overhead");
    app.add_option("MODEL", chosen.model, "A GGUF model with routed experts")->required();
    app.add_option("--rounds", chosen.n_rounds)->check(CLI::Range(1U, 1000U));
    app.add_option("--prompt", chosen.n_prompt)->check(CLI::Range(1U, 100'000U));
    app.add_option("--decode", chosen.n_decode)->check(CLI::Range(1U, 100'000U));
    app.add_option("--threads", chosen.n_threads)->check(CLI::Range(1, 512));
    app.add_option("--workers", chosen.n_workers)->check(CLI::Range(1U, 64U));
    app.add_option("--json", chosen.json, "Also write the results to this file");
    app.add_flag("--quick", chosen.quick, "One short round");
    CLI11_PARSE(app, argc, argv);
    return run(std::move(chosen));
}
