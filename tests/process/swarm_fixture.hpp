// A swarm for tests: slices of a model spread over real worker processes on loopback.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cli/child_process.hpp"
#include "model/model.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::test_support {

/// How experts are given to workers, by chance: some to two of them, some to none.
struct spread {
    std::size_t n_workers = 2;
    double second_holder = 0.25;
    double nobody = 0.15;
    std::uint32_t seed = 1;
};

/// Which experts each worker holds, as the selections that `kvasir slice` takes. No worker is left without an expert.
std::vector<std::string> spread_experts(const model::expert_map& experts, const spread& how);

struct test_worker {
    cli::child_process process;
    std::string address;
    std::filesystem::path slice;
};

/// What a worker said about itself when it ended.
struct worker_summary {
    std::uint64_t requests = 0;
    std::uint64_t rows = 0;
};

class worker_swarm {
  public:
    /// Writes the model's manifest and one slice per selection and starts the workers. Throws std::runtime_error when
    /// one does not come up.
    worker_swarm(const std::filesystem::path& model, const std::vector<std::string>& selections);

    std::vector<test_worker>& workers() { return workers_; }
    const std::filesystem::path& manifest() const { return manifest_; }
    /// Stops worker `i` and starts it again on its slice with more arguments, under a new address.
    void restart(std::size_t i, const std::vector<std::string>& more_arguments);
    /// SIGTERM to all that still run; what they say at the end.
    std::vector<worker_summary> finish();

    /// --worker arguments for `kvasir`.
    std::vector<std::string> worker_arguments() const;
    /// KVASIR_WORKERS, KVASIR_MANIFEST and GGML_BACKEND_PATH for stock programs.
    std::vector<std::string> plugin_environment() const;

  private:
    test_worker start(const std::filesystem::path& slice, const std::vector<std::string>& more_arguments) const;

    temporary_directory directory_;
    std::filesystem::path manifest_;
    std::vector<test_worker> workers_;
};

}  // namespace kvasir::test_support
