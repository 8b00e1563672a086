#include "process/swarm_fixture.hpp"

#include <signal.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace kvasir::test_support {
namespace {

constexpr duration patience = std::chrono::seconds(60);

template <class T>
T value_of(result<T> made) {
    if (!made) throw std::runtime_error(made.error().message);
    return std::move(*made);
}

std::uint64_t number_after(const std::string& line, const std::string& word) {
    const std::size_t at = line.find(word + " ");
    return at == std::string::npos ? 0 : std::stoull(line.substr(at + word.size() + 1));
}

}  // namespace

std::vector<std::string> spread_experts(const model::expert_map& experts, const spread& how) {
    std::mt19937 random(how.seed);
    std::uniform_real_distribution<double> chance(0.0, 1.0);
    std::vector<std::string> selections(how.n_workers);
    const auto give = [&](std::size_t worker, const model::expert_layer& layer, std::uint32_t expert) {
        std::string& text = selections[worker];
        if (!text.empty()) text += ",";
        text += std::to_string(layer.layer.value) + ":" + std::to_string(expert);
    };
    for (const model::expert_layer& layer : experts.layers) {
        for (std::uint32_t expert = 0; expert < layer.n_experts; ++expert) {
            // The first layer is covered whole: however few experts a model has, the workers get something to do.
            if (&layer != &experts.layers.front() && chance(random) < how.nobody) continue;
            const std::size_t first = random() % how.n_workers;
            give(first, layer, expert);
            if (how.n_workers > 1 && chance(random) < how.second_holder)
                give((first + 1 + random() % (how.n_workers - 1)) % how.n_workers, layer, expert);
        }
    }
    for (std::size_t worker = 0; worker < how.n_workers; ++worker)
        if (selections[worker].empty()) give(worker, experts.layers.front(), 0);
    return selections;
}

worker_swarm::worker_swarm(const std::filesystem::path& path, const std::vector<std::string>& selections)
    : manifest_(directory_ / "model.manifest.json") {
    const auto model = value_of(model::gguf_model::open(path));
    const auto manifest = value_of(model::manifest::compute(model));
    if (auto saved = manifest.save(manifest_); !saved) throw std::runtime_error(saved.error().message);
    for (std::size_t i = 0; i < selections.size(); ++i) {
        const auto selection = value_of(model::expert_selection::parse(selections[i]));
        const std::filesystem::path slice = directory_ / ("slice-" + std::to_string(i) + ".gguf");
        value_of(model::write_slice(model, selection, manifest.model_digest(), slice));
        workers_.push_back(start(slice, {}));
    }
}

test_worker worker_swarm::start(const std::filesystem::path& slice,
                                const std::vector<std::string>& more_arguments) const {
    std::vector<std::string> arguments = {"worker",    "--slice", slice.string(), "--listen", "127.0.0.1:0",
                                          "--threads", "1"};
    arguments.insert(arguments.end(), more_arguments.begin(), more_arguments.end());
    auto process = value_of(cli::child_process::start(KVASIR_BINARY, arguments));
    const std::string prefix = "listening on ";
    const auto line = process.read_line(patience);
    if (!line || !line->starts_with(prefix))
        throw std::runtime_error("a worker did not come up: " + line.value_or("(no output)"));
    return {std::move(process), line->substr(prefix.size()), slice};
}

void worker_swarm::restart(std::size_t i, const std::vector<std::string>& more_arguments) {
    workers_[i].process.kill_now();
    workers_[i] = start(workers_[i].slice, more_arguments);
}

std::vector<worker_summary> worker_swarm::finish() {
    std::vector<worker_summary> summaries;
    for (test_worker& worker : workers_) {
        worker_summary summary;
        if (worker.process.pid() > 0) {
            ::kill(worker.process.pid(), SIGTERM);
            while (const auto line = worker.process.read_line(patience))
                if (line->starts_with("served: "))
                    summary = {number_after(*line, "requests"), number_after(*line, "rows")};
        }
        summaries.push_back(summary);
    }
    return summaries;
}

std::vector<std::string> worker_swarm::worker_arguments() const {
    std::vector<std::string> arguments;
    for (const test_worker& worker : workers_) {
        arguments.emplace_back("--worker");
        arguments.push_back(worker.address);
    }
    return arguments;
}

std::vector<std::string> worker_swarm::plugin_environment() const {
    std::string addresses;
    for (const test_worker& worker : workers_)
        addresses += (addresses.empty() ? "" : ",") + worker.address;
    return {"GGML_BACKEND_PATH=" KVASIR_PLUGIN, "KVASIR_WORKERS=" + addresses, "KVASIR_MANIFEST=" + manifest_.string()};
}

}  // namespace kvasir::test_support
