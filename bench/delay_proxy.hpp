// A TCP proxy that makes a connection as slow as a longer one: what a delaying network would do to any two TCP peers,
// without the kernel's help.
//
// Each connection that is accepted is joined to a new one to the target. Both directions are links of their own
// (link_schedule): bytes keep their order and come out unchanged and late. An end of stream travels like a byte, and so
// does a reset: one end dying ends the other, one delay later. What is not delayed is the connection's own set-up; a
// target that cannot be reached shows as a reset.
//
// Times are kept to some hundredths of a millisecond while the process is scheduled: it wakes up a little early and
// looks at the clock until something is due, which costs that much of a core. Several targets share one such thread.
//
// Memory: per direction and connection at most line_capacity_bytes() and one piece; then nothing more is read from the
// sender, whom TCP's flow control holds up. A capped link takes no byte before it can send it, so there is no queue in
// front of it beyond the system's socket buffers. A reset by an end that is not read from, because the other end takes
// nothing, is noticed when it does again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "bench/link_schedule.hpp"
#include "net/endpoint.hpp"

namespace kvasir::bench {

struct proxy_options {
    net::endpoint listen{"127.0.0.1", 0};  ///< with several targets only with port 0
    std::vector<net::endpoint> to{};       ///< each has a port of its own here
    link_options link{};                   ///< of either direction
    std::uint64_t seed = 1;
    std::uint32_t max_connections = 256;  ///< to each target; more wait to be accepted
};

/// Over all connections to one target, since the start.
struct proxy_statistics {
    std::uint64_t connections = 0;
    std::uint64_t bytes_to_target = 0;  ///< read from those who connected
    std::uint64_t bytes_from_target = 0;
    /// How often the target answered: bytes came from it after bytes had gone to it. Of a conversation of questions and
    /// answers this counts the round trips.
    std::uint64_t turns = 0;
};

class delay_proxy {
  public:
    /// Listens and serves from now on, on a thread of its own. Errors: an address that cannot be resolved or listened
    /// at; those of check().
    static result<std::unique_ptr<delay_proxy>> start(const proxy_options& options);
    virtual ~delay_proxy() = default;

    /// Where connections to options.to[target] are accepted.
    virtual net::endpoint local(std::size_t target = 0) const = 0;
    virtual proxy_statistics statistics(std::size_t target = 0) const = 0;
};

}  // namespace kvasir::bench
