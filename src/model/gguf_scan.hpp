// The guard before ggml's GGUF reader: walks a file's header once, allocating nothing that a length in it claims.
//
// ggml's reader is the authority on what a GGUF file says, but it was made for files one trusts: its memory follows the
// counts in the file several times over, its search for duplicates is quadratic, a tensor's element count may overflow
// before it is checked, and data past the end of the file is nobody's business there. What this scan accepts, ggml
// reads without complaint; what it refuses, ggml never sees.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/error.hpp"
#include "model/gguf_model.hpp"

namespace kvasir::model {

/// Far above any model there is, far below what hurts: memory for a header stays under a gigabyte, time (ggml compares
/// every key and every name with all others) near a second.
struct gguf_limits {
    static constexpr std::uint64_t header_size_bytes = 128ULL << 20;
    static constexpr std::uint64_t keys = 4'096;
    static constexpr std::uint64_t key_size_bytes = 65'535;  ///< the format's own limit
    static constexpr std::uint64_t array_elements = 16ULL << 20;
    static constexpr std::uint64_t tensors = 16'384;
    static constexpr std::uint64_t min_alignment_bytes = 8;  ///< the format's own limit
    static constexpr std::uint64_t max_alignment_bytes = 65'536;
};

struct scanned_header {
    std::vector<metadata_entry> metadata;  ///< in file order; points into the file
    std::uint64_t n_tensors = 0;
};

/// `file_name` is what errors call the file. Errors: invalid_input, limit_exceeded, unsupported (version, tensor type).
result<scanned_header> scan_header(byte_span file, std::string_view file_name);

}  // namespace kvasir::model
