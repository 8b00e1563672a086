// The swarm: the workers a backbone knows, and the one question it asks them, "compute this layer's experts".
//
// Purpose: compute() returns every row that was asked for with the bits the local kernels would give, whoever computed
// it. A worker that is missing, late, dies or answers nonsense changes nothing but the time it takes: its pairs are
// computed from the fallback.
//
// What it is not: it knows neither ggml graphs nor GGUF files (backend and model do), and it decides nothing about
// routing: the router's choice comes in.
#pragma once

#include <memory>
#include <vector>

#include "base/error.hpp"
#include "swarm/layer_call.hpp"
#include "swarm/options.hpp"
#include "swarm/worker_link.hpp"

namespace kvasir::swarm {

enum class outcome {
    computed,   ///< `out` is filled
    all_local,  ///< no live worker holds any of these experts: nothing was done, compute it here
};

class expert_swarm {
  public:
    /// Connects to nobody yet. Throws std::runtime_error when the system refuses threads (start-up).
    explicit expert_swarm(options settings);
    /// The same with something else than TCP underneath: for tests.
    expert_swarm(options settings, worker_link::connect_function connect);
    ~expert_swarm();
    expert_swarm(const expert_swarm&) = delete;
    expert_swarm& operator=(const expert_swarm&) = delete;

    /// Starts to connect to all workers, once, and waits until each is live, gone or refused, or
    /// options::connect_timeout has passed. Workers that are not live are tried again in the background, with growing
    /// pauses, from then on.
    void connect();

    /// Computes a layer's pairs on the workers and with `local`. Blocks; several threads may call with engines of their
    /// own. Errors only when this machine cannot compute either (see expert::engine::compute).
    result<outcome> compute(const layer_call& call, expert::engine& local);

    swarm::statistics statistics() const;

  private:
    struct state;
    std::unique_ptr<state> state_;
};

}  // namespace kvasir::swarm
