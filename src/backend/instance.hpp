// One instance of the backend, as a llama context makes them: ggml's CPU backend plus the way to the swarm. Internal.
#pragma once

#include <ggml-backend.h>

#include <memory>
#include <vector>

#include "backend/session.hpp"
#include "expert/expert.hpp"

namespace kvasir::backend {

/// One thread at a time, as ggml uses backends.
class instance {
  public:
    /// Throws std::runtime_error when ggml has no CPU backend.
    explicit instance(std::shared_ptr<session> shared);
    ~instance();
    instance(const instance&) = delete;
    instance& operator=(const instance&) = delete;

    ggml_status compute(ggml_cgraph* graph);
    void set_n_threads(int n_threads);
    void set_abort_callback(ggml_abort_callback callback, void* data);

  private:
    bool compute_in_swarm(ggml_cgraph* graph);

    std::shared_ptr<session> session_;
    ggml_backend_t cpu_;
    int n_threads_;
    std::unique_ptr<expert::engine> engine_;  ///< made at the first dispatch
    std::vector<row_expert_pair> pairs_;      ///< reused from call to call
};

}  // namespace kvasir::backend
