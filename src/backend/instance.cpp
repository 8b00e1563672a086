#include "backend/instance.hpp"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>

namespace kvasir::backend {
namespace {

template <class Function>
Function cpu_function(ggml_backend_t cpu, const char* name) {
    ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu));
    return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(registry, name));
}

}  // namespace

instance::instance(std::shared_ptr<session> shared)
    : session_(std::move(shared)),
      cpu_(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)),
      n_threads_(static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))) {
    if (cpu_ == nullptr) throw std::runtime_error("ggml has no CPU backend, which KVASIR computes with");
}

instance::~instance() {
    ggml_backend_free(cpu_);
}

void instance::set_n_threads(int n_threads) {
    n_threads_ = n_threads;
    if (const auto set = cpu_function<ggml_backend_set_n_threads_t>(cpu_, "ggml_backend_set_n_threads"))
        set(cpu_, n_threads);
    if (engine_) engine_->set_n_threads(n_threads);
}

void instance::set_abort_callback(ggml_abort_callback callback, void* data) {
    if (const auto set = cpu_function<ggml_backend_set_abort_callback_t>(cpu_, "ggml_backend_set_abort_callback"))
        set(cpu_, callback, data);
}

ggml_status instance::compute(ggml_cgraph* graph) {
    if (session_ && session_->has_workers() && compute_in_swarm(graph)) return GGML_STATUS_SUCCESS;
    return ggml_backend_graph_compute(cpu_, graph);
}

bool instance::compute_in_swarm(ggml_cgraph* graph) {
    const auto read = read_expert_graph(graph);
    if (!read) {
        const int n_nodes = ggml_graph_n_nodes(graph);
        session_->count_unrecognised(n_nodes > 0 ? ggml_graph_node(graph, n_nodes - 1) : nullptr);
        return false;
    }
    session_->start();
    if (!engine_) engine_ = std::make_unique<expert::engine>(n_threads_);
    return session_->dispatch(*read, pairs_, *engine_);
}

}  // namespace kvasir::backend
