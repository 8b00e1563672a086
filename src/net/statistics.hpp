// What a connection has measured.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.hpp"

namespace kvasir::net {

struct connection_statistics {
    std::optional<duration> round_trip_time;  ///< smoothed over PINGs; empty before the first PONG
    std::uint64_t bytes_in = 0;
    std::uint64_t bytes_out = 0;
    std::uint64_t outgoing_bytes = 0;  ///< queued, not yet taken by the operating system
    std::uint32_t requests_in_flight = 0;
};

}  // namespace kvasir::net
