// kvasir-bench-runner JOB: runs one model in one configuration and prints what it measured; see runner_job.hpp. It is
// started by the benchmarks, not by people.
#include <fmt/core.h>
#include <ggml-backend.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.hpp"
#include "bench/runner_job.hpp"
#include "cli/commands.hpp"
#include "cli/language_model.hpp"
#include "cli/swarm_setup.hpp"
#include "model/model.hpp"

namespace kvasir::bench {
namespace {

using steady = std::chrono::steady_clock;

/// Between the event "begin" and the first step, so that whoever listens can look at his counters in time.
constexpr auto pause_before_steps = std::chrono::milliseconds(30);

void print(const nlohmann::json& object) {
    fmt::print("{}\n", object.dump());
    std::fflush(stdout);
}

double seconds_since(steady::time_point start) {
    return std::chrono::duration<double>(steady::now() - start).count();
}

/// Makes the RPC servers known to ggml and deals the expert layers out to them: what --rpc and --override-tensor do.
class rpc_placement {
  public:
    result<void> add(const std::vector<std::string>& servers, const std::string& model_path) {
        const auto model = model::gguf_model::open(model_path);
        if (!model) return model.error();
        const auto experts = model::map_experts(*model);
        if (!experts) return experts.error();
        ggml_backend_reg* rpc = ggml_backend_reg_by_name("RPC");
        if (rpc == nullptr) return error(errc::unsupported, "this build of ggml has no RPC backend");
        using add_server_function = ggml_backend_reg* (*)(const char*);
        const auto add_server = reinterpret_cast<add_server_function>(
            ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_add_server"));
        if (add_server == nullptr) return error(errc::unsupported, "ggml's RPC backend cannot add servers");
        for (std::size_t i = 0; i < servers.size(); ++i) {
            ggml_backend_reg* server = add_server(servers[i].c_str());
            if (server == nullptr || ggml_backend_reg_dev_count(server) == 0)
                return error(errc::closed, "no RPC server answers at " + servers[i]);
            ggml_backend_register(server);
            std::string layers;
            for (std::size_t layer = i; layer < experts->layers.size(); layer += servers.size())
                layers += fmt::format("{}{}", layers.empty() ? "" : "|", experts->layers[layer].layer.value);
            if (layers.empty()) continue;
            patterns_.push_back(fmt::format(R"(blk\.({})\..*exps)", layers));
            types_.push_back(ggml_backend_dev_buffer_type(ggml_backend_reg_dev_get(server, 0)));
        }
        for (std::size_t i = 0; i < patterns_.size(); ++i)
            overrides_.push_back({patterns_[i].c_str(), types_[i]});
        overrides_.push_back({nullptr, nullptr});
        return {};
    }
    const llama_model_tensor_buft_override* overrides() const { return overrides_.empty() ? nullptr : &overrides_[0]; }

  private:
    std::vector<std::string> patterns_;
    std::vector<ggml_backend_buffer_type*> types_;
    std::vector<llama_model_tensor_buft_override> overrides_;
};

/// A token by its probability: text as the model writes it, so that its router chooses as it does in use.
llama_token sample(std::span<const float> logits, std::mt19937_64& random) {
    const float highest = *std::ranges::max_element(logits);
    // What is e^-12 times less likely than the first is never met here, and costs an exponential each.
    constexpr float range = 12.0F;
    double sum = 0.0;
    for (const float one : logits)
        if (one > highest - range) sum += std::exp(static_cast<double>(one - highest));
    double left = std::uniform_real_distribution<double>(0.0, sum)(random);
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (logits[i] <= highest - range) continue;
        left -= std::exp(static_cast<double>(logits[i] - highest));
        if (left <= 0.0) return static_cast<llama_token>(i);
    }
    return cli::most_likely(logits);
}

/// What the swarm has counted.
cell_measurement swarm_counts() {
    cell_measurement now;
    now.layer_calls = backend::counts().dispatched;
    const swarm::statistics counts = backend::swarm_statistics();
    now.local_rows = counts.local_pairs;
    now.fallback_rows = counts.fallback_pairs;
    for (const swarm::worker_statistics& worker : counts.workers) {
        now.worker_rows += worker.pairs;
        now.bytes_to_workers += worker.bytes_out;
        now.bytes_from_workers += worker.bytes_in;
        now.worker_rows_per_second += worker.pairs_per_second / static_cast<double>(counts.workers.size());
    }
    return now;
}

class running_model {
  public:
    explicit running_model(runner_job job) : job_(std::move(job)) {}

    result<void> load() {
        cli::start_llama();
        cli::model_options options{.path = job_.model, .plain_layout = !job_.repack};
        rpc_placement placement;
        if (job_.engine == engine::rpc) {
            if (auto added = placement.add(job_.servers, job_.model); !added) return added.error();
            options.placement = placement.overrides();
        }
        if (job_.engine == engine::kvasir) {
            cli::swarm_request request;
            request.command = "bench";
            request.model_path = job_.model;
            request.talk = cli::swarm_talk::nothing;
            request.demand_all = true;
            for (const std::string& server : job_.servers)
                if (auto added = cli::add_worker(request.workers, server); !added) return added.error();
            if (auto joined = cli::join_swarm(request); !joined) return joined.error();
        }
        auto model = cli::language_model::load(options);
        if (!model) return model.error();
        model_ = *std::move(model);

        cli::context_options wanted{.n_ctx = 0, .n_batch = 1, .n_sequences = 1, .n_threads = job_.n_threads};
        for (const cell& one : job_.cells) {
            const std::uint32_t longest = one.n_prompt + one.n_warm_steps + one.max_steps + 1;
            wanted.n_ctx = std::max(wanted.n_ctx, one.batch * longest);
            wanted.n_batch = std::max(wanted.n_batch, one.batch * std::max(1U, one.n_prompt));
            wanted.n_sequences = std::max(wanted.n_sequences, one.batch);
        }
        auto context = cli::language_context::make(model_, wanted);
        if (!context) return context.error();
        context_ = *std::move(context);
        return {};
    }

    result<void> measure(std::size_t number) {
        const cell& one = job_.cells[number];
        llama_memory_clear(llama_get_memory(context_.get()), true);
        random_.seed(1);
        position_ = 0;
        cell_measurement measured;
        const auto prefill_start = steady::now();
        if (auto done = prefill(one); !done) return done;
        measured.prefill_seconds = seconds_since(prefill_start);
        for (std::uint32_t i = 0; i < one.n_warm_steps; ++i)
            if (auto done = step(); !done) return done;

        print({{"event", "begin"}, {"cell", number}});
        std::this_thread::sleep_for(pause_before_steps);
        const cell_measurement before = swarm_counts();
        const auto start = steady::now();
        std::uint32_t n_steps = 0;
        while (n_steps < one.min_steps || (n_steps < one.max_steps && seconds_since(start) < one.seconds)) {
            if (auto done = step(); !done) return done;
            ++n_steps;
            if (job_.trace) print({{"event", "step"}, {"at_ns", steady::now().time_since_epoch().count()}});
        }
        measured.seconds = seconds_since(start);
        const cell_measurement after = swarm_counts();
        measured.batch = one.batch;
        measured.n_prompt = one.n_prompt;
        measured.n_steps = n_steps;
        for (const auto counter : {&cell_measurement::layer_calls, &cell_measurement::worker_rows,
                                   &cell_measurement::local_rows, &cell_measurement::fallback_rows,
                                   &cell_measurement::bytes_to_workers, &cell_measurement::bytes_from_workers})
            measured.*counter = after.*counter - before.*counter;
        measured.worker_rows_per_second = after.worker_rows_per_second;
        nlohmann::json object = measured;
        object["event"] = "cell";
        object["cell"] = number;
        print(object);
        return {};
    }

    std::size_t n_cells() const { return job_.cells.size(); }

  private:
    result<void> prefill(const cell& one) {
        next_.assign(one.batch, 0);
        std::vector<cli::batch_entry> entries;
        const auto n_vocabulary = static_cast<std::uint64_t>(model_.n_vocabulary());
        for (std::uint32_t sequence = 0; sequence < one.batch; ++sequence)
            for (std::uint32_t i = 0; i < one.n_prompt; ++i)
                entries.push_back({.token = static_cast<llama_token>(random_() % n_vocabulary),
                                   .position = static_cast<llama_pos>(i),
                                   .sequence = static_cast<llama_seq_id>(sequence),
                                   .with_logits = i + 1 == one.n_prompt});
        if (auto done = context_.decode(entries); !done) return done;
        for (std::uint32_t sequence = 0; sequence < one.batch; ++sequence)
            next_[sequence] = sample(context_.logits((sequence + 1) * one.n_prompt - 1), random_);
        position_ = static_cast<llama_pos>(one.n_prompt);
        return {};
    }

    result<void> step() {
        std::vector<cli::batch_entry> entries;
        for (std::size_t sequence = 0; sequence < next_.size(); ++sequence)
            entries.push_back({next_[sequence], position_, static_cast<llama_seq_id>(sequence)});
        if (auto done = context_.decode(entries); !done) return done;
        for (std::size_t sequence = 0; sequence < next_.size(); ++sequence)
            next_[sequence] = sample(context_.logits(sequence), random_);
        ++position_;
        return {};
    }

    const runner_job job_;
    cli::language_model model_;
    cli::language_context context_;  ///< goes before its model
    std::mt19937_64 random_;
    std::vector<llama_token> next_;
    llama_pos position_ = 0;
};

int run(const std::string& text) {
    const auto parsed = nlohmann::json::parse(text, nullptr, false);
    runner_job job;
    try {
        job = parsed.get<runner_job>();
    } catch (const nlohmann::json::exception& failure) {
        fmt::print(stderr, "kvasir-bench-runner: the job makes no sense: {}\n", failure.what());
        return cli::exit_usage;
    }
    running_model model(std::move(job));
    if (auto loaded = model.load(); !loaded) return cli::report("bench", loaded.error());
    print({{"event", "ready"}});
    for (std::size_t i = 0; i < model.n_cells(); ++i)
        if (auto done = model.measure(i); !done) return cli::report("bench", done.error());
    return cli::exit_ok;
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
    if (argc != 2) {
        fmt::print(stderr, "kvasir-bench-runner: started by the benchmarks with one job, as JSON\n");
        return kvasir::cli::exit_usage;
    }
    return kvasir::bench::run(argv[1]);
}
