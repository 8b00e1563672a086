// How long work says how far it is, and how it is stopped.
#pragma once

#include <cstdint>
#include <functional>

namespace kvasir::model {

/// Called with bytes done and bytes in all, always from the thread that started the work. False cancels it.
using progress_callback = std::function<bool(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

}  // namespace kvasir::model
