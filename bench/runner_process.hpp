// kvasir-bench-runner as a child of the benchmark.
#pragma once

#include <filesystem>
#include <optional>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "bench/runner_job.hpp"
#include "cli/child_process.hpp"

namespace kvasir::bench {

/// Where this program and those built with it are.
std::filesystem::path programs_directory();

/// Move-only; the runner ends with the object.
class runner_process {
  public:
    static result<runner_process> start(const runner_job& job);

    /// The next event; errc::timeout when none comes in time, errc::closed when the runner has ended.
    result<nlohmann::json> next(duration patience);
    /// Skips events up to the next one of this kind.
    result<nlohmann::json> next(const std::string& event, duration patience);

  private:
    explicit runner_process(cli::child_process process) : process_(std::move(process)) {}
    cli::child_process process_;
};

/// Runs a job to its end: one measurement per cell. Without trace.
result<std::vector<cell_measurement>> run_to_end(const runner_job& job);

}  // namespace kvasir::bench
