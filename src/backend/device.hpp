// The tables of functions that make the backend known to ggml. Internal.
#pragma once

#include <ggml-backend.h>

#include <memory>

#include "backend/session.hpp"

namespace kvasir::backend {

ggml_backend_reg_t the_registry();
bool is_in_kvasir_buffer(const ggml_tensor* tensor);

/// The session that new backend instances will use; null before configure().
std::shared_ptr<session> current_session();
void set_current_session(std::shared_ptr<session> chosen);

}  // namespace kvasir::backend
