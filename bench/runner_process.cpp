#include "bench/runner_process.hpp"

namespace kvasir::bench {
namespace {

/// A cell with its prefill through a slow network; whoever waits longer waits in vain.
constexpr duration cell_patience = std::chrono::minutes(5);

}  // namespace

std::filesystem::path programs_directory() {
    return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

result<runner_process> runner_process::start(const runner_job& job) {
    auto process = cli::child_process::start((programs_directory() / "kvasir-bench-runner").string(),
                                             {nlohmann::json(job).dump()});
    if (!process) return process.error();
    return runner_process(*std::move(process));
}

result<nlohmann::json> runner_process::next(duration patience) {
    const auto line = process_.read_line(patience);
    if (!line && process_.has_closed_output())
        return error(errc::closed, "the runner has ended before its job was done");
    if (!line) return error(errc::timeout, "the runner says nothing any more");
    auto object = nlohmann::json::parse(*line, nullptr, false);
    if (!object.is_object() || !object.contains("event"))
        return error(errc::internal, "the runner says something that is no event: " + *line);
    return object;
}

result<nlohmann::json> runner_process::next(const std::string& event, duration patience) {
    for (;;) {
        auto object = next(patience);
        if (!object || (*object)["event"] == event) return object;
    }
}

result<std::vector<cell_measurement>> run_to_end(const runner_job& job) {
    auto runner = runner_process::start(job);
    if (!runner) return runner.error();
    std::vector<cell_measurement> measured;
    while (measured.size() < job.cells.size()) {
        const auto done = runner->next("cell", cell_patience);
        if (!done) return done.error();
        measured.push_back(done->get<cell_measurement>());
    }
    return measured;
}

}  // namespace kvasir::bench
