// SHA-256 of many byte ranges at once, by several threads.
#pragma once

#include <span>
#include <vector>

#include "base/bytes.hpp"
#include "base/error.hpp"
#include "base/sha256.hpp"
#include "model/progress.hpp"

namespace kvasir::model {

/// The digest of every slab, in order. `n_threads` 0: as many as the machine has. `progress` is called from the calling
/// thread some ten times a second, and once at the end. Errors: cancelled.
result<std::vector<sha256_digest>> hash_slabs(std::span<const byte_span> slabs, unsigned n_threads,
                                              const progress_callback& progress);

}  // namespace kvasir::model
