// The benchmarks measure what they say: each runs for a moment, and its counts and lower bounds are looked at, never
// how fast it was.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/run_program.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::test_support {
namespace {

// Of the demo model: 8 layers with experts (and one more that is left alone), 4 active.
constexpr std::uint64_t n_layers = 8;
constexpr std::uint64_t n_rows_per_token = n_layers * 4;

nlohmann::json run_benchmark(const std::string& program, std::vector<std::string> options) {
    const temporary_directory directory;
    const std::string results = directory / "results.json";
    options.insert(options.begin(), {program, DEMO_MODEL});
    options.insert(options.end(), {"--json", results});
    const program_result ended = run_program(options);
    EXPECT_EQ(ended.status, 0) << ended.err;
    return ended.status == 0 ? nlohmann::json::parse(read_file(results)) : nlohmann::json();
}

/// Every row of every step was computed, and by workers, but for those that were late.
void expect_all_rows(const nlohmann::json& counts) {
    const auto count = [&](const char* name) { return counts[name].get<std::uint64_t>(); };
    const std::uint64_t n_tokens = count("n_steps") * count("batch");
    EXPECT_GT(n_tokens, 0U);
    EXPECT_GT(count("worker_rows"), 0U);
    EXPECT_EQ(count("worker_rows") + count("local_rows") + count("fallback_rows"), n_tokens * n_rows_per_token);
    EXPECT_EQ(count("layer_calls"), count("n_steps") * n_layers);
}

TEST(bench_programs, latency) {
    const auto results =
        run_benchmark(BENCH_LATENCY, {"--rtt-ms", "0,3", "--batch", "1,3", "--seconds", "0.1", "--workers", "2"});
    ASSERT_FALSE(results.is_null());
    EXPECT_EQ(results["layers"], n_layers);
    ASSERT_EQ(results["cells"].size(), 8U);
    for (const auto& cell : results["cells"]) {
        SCOPED_TRACE(cell.dump());
        if (cell["engine"] == "kvasir") expect_all_rows(cell["counts"]);
        // A layer needs what the one before it gives, from whichever server: no step without so many round trips.
        EXPECT_GE(cell["step_ms"].get<double>(), cell["round_trips_ms"].get<double>());
        EXPECT_GT(cell["turns_per_layer"].get<double>(), 0.0);
        EXPECT_EQ(cell.contains("round_trips_per_layer"), cell["rtt_ms"].get<double>() > 0.0);
    }
}

TEST(bench_programs, scaling) {
    const auto results = run_benchmark(
        BENCH_SCALING, {"--workers", "1,3", "--rows-per-second", "400", "--batch", "2", "--seconds", "0.5"});
    ASSERT_FALSE(results.is_null());
    ASSERT_EQ(results["swarms"].size(), 3U);
    for (const auto& swarm : results["swarms"]) {
        SCOPED_TRACE(swarm.dump());
        expect_all_rows(swarm["counts"]);
    }
    // No worker is faster than its limit, but for what it may save up (a twentieth of a second's worth).
    for (std::size_t i = 0; i < 2; ++i) {
        const auto& swarm = results["swarms"][i];
        const double rows = swarm["counts"]["worker_rows"].get<double>();
        const double n_workers = swarm["workers"].get<double>();
        EXPECT_LE(rows, n_workers * 400.0 * (swarm["counts"]["seconds"].get<double>() + 0.05 + 0.05));
    }
}

TEST(bench_programs, churn) {
    const auto results = run_benchmark(
        BENCH_CHURN, {"--workers", "3", "--percent", "34", "--rtt-ms", "1", "--before", "0.5", "--after", "1"});
    ASSERT_FALSE(results.is_null());
    ASSERT_EQ(results["outcomes"].size(), 2U);
    for (const auto& outcome : results["outcomes"]) {
        EXPECT_EQ(outcome["workers_gone"], 1);
        EXPECT_GT(outcome["before"].get<double>(), 0.0);
        EXPECT_GT(outcome["longest_gap_s"].get<double>(), 0.0);
        EXPECT_EQ(outcome["timeline"].size(), 3U);
    }
}

TEST(bench_programs, overhead) {
    const auto results = run_benchmark(BENCH_OVERHEAD, {"--rounds", "1", "--prompt", "16", "--decode", "4"});
    ASSERT_FALSE(results.is_null());
    ASSERT_EQ(results["variants"].size(), 4U);
    for (const auto& variant : results["variants"]) {
        EXPECT_GT(variant["prefill"].get<double>(), 0.0);
        EXPECT_GT(variant["decode"].get<double>(), 0.0);
    }
}

TEST(bench_programs, what_cannot_be_measured_is_said) {
    for (const char* program : {BENCH_LATENCY, BENCH_SCALING, BENCH_CHURN, BENCH_OVERHEAD}) {
        const program_result ended = run_program({program, "/no/such/model.gguf"});
        EXPECT_EQ(ended.status, 1);
        EXPECT_NE(ended.err.find("/no/such/model.gguf"), std::string::npos) << ended.err;
    }
}

}  // namespace
}  // namespace kvasir::test_support
