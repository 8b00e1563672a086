// Deadlines and bounds of a connection. No wait in net is without one.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/clock.hpp"
#include "wire/hello.hpp"

namespace kvasir::net {

struct connection_options {
    duration resolve_timeout = std::chrono::seconds(5);
    duration connect_timeout = std::chrono::seconds(5);
    /// From an open stream to an accepted HELLO.
    duration handshake_timeout = std::chrono::seconds(10);
    /// A peer that takes no byte for this long, while there are some to take, is gone.
    duration write_stall_timeout = std::chrono::seconds(20);
    /// A message of which no chunk arrives for this long, while it is unfinished, ends the connection.
    duration message_stall_timeout = std::chrono::seconds(30);
    /// PINGs keep the path open and measure the round trip.
    duration ping_interval = std::chrono::seconds(5);
    /// A peer that was silent for this long is gone. At least twice the interval.
    duration dead_peer_timeout = std::chrono::seconds(20);
    /// Bytes queued and not yet taken by the operating system, beyond which send_compute() answers errc::busy.
    std::uint64_t max_outgoing_bytes = 256ULL * 1024U * 1024U;
    wire::peer_policy policy{};
};

}  // namespace kvasir::net
