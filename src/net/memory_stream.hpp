// Two byte streams joined in memory, for tests: what one writes the other reads, through bounded buffers.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "net/asio.hpp"
#include "net/byte_stream.hpp"

namespace kvasir::net {

/// Each direction holds at most `capacity_bytes`; then its writer waits. Closing one end is an end of stream for the
/// other.
std::pair<std::unique_ptr<byte_stream>, std::unique_ptr<byte_stream>> make_memory_streams(
    asio::any_io_executor first_strand, asio::any_io_executor second_strand, std::size_t capacity_bytes);

}  // namespace kvasir::net
