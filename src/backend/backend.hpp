// The ggml backend KVASIR: it holds a model's routed-expert weights and turns each layer's expert FFN into one
// dispatch.
//
// How llama.cpp meets it: the registry offers one device of type ACCEL, whose buffer type llama.cpp tries first for
// every weight that lives in host memory. The device accepts routed-expert weights only (blk.N.ffn_*_exps.weight), so
// they alone end up in KVASIR buffers (memory-mapped when the model is), and the scheduler hands each layer's expert
// FFN to this backend as one small graph. A graph that is recognised, in a layer of which a live worker holds some
// experts, goes to the swarm; any other is computed by ggml's CPU backend, unchanged. With no workers the device holds
// the weights and claims no operation: the model runs on this machine with its experts in page-cached memory, at the
// speed of stock llama.cpp.
//
// What it is not: it never changes a graph, a weight or the order of additions, and it decides nothing about replicas.
#pragma once

#include <cstdint>
#include <functional>

#include "base/error.hpp"
#include "swarm/options.hpp"

struct ggml_backend_reg;

namespace kvasir::backend {

/// How many expert graphs went which way since configure().
struct graph_counts {
    std::uint64_t dispatched = 0;    ///< with at least one expert on a worker
    std::uint64_t all_local = 0;     ///< recognised, but no live worker holds what was asked for
    std::uint64_t unrecognised = 0;  ///< some shape that cannot be cut: computed by ggml's CPU backend
};

/// The backend's registry entry, for ggml_backend_register(). Lives as long as the process.
ggml_backend_reg* registry();

/// Names the workers. Backend instances made afterwards use them; those made before keep what they have. Nobody is
/// connected before connect() or the first dispatch.
void configure(swarm::options workers);
/// Connects to the workers now; see swarm::expert_swarm::connect(). Nothing happens when there are none. Throws
/// std::runtime_error where ggml has no CPU backend.
void connect();
/// Says goodbye to the workers. Whatever is asked afterwards is computed here; the counts stay.
void disconnect();
/// Forgets the workers and closes the connections once no backend instance uses them.
void reset();

swarm::statistics swarm_statistics();
graph_counts counts();

/// Workers named in the environment, for programs that load the backend as a plug-in: KVASIR_WORKERS (host:port,
/// separated by commas) and KVASIR_MANIFEST (a file that `kvasir manifest` wrote), or KVASIR_CONFIG, a JSON file
/// {"workers": ["host:port", …], "manifest": "<path>"}. No workers named: options without workers.
result<swarm::options> workers_from_environment(const std::function<const char*(const char*)>& variable);

}  // namespace kvasir::backend
