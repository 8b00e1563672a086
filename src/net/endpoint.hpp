// Where a peer listens: a host and a port, as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace kvasir::net {

struct endpoint {
    std::string host;  ///< a name, an IPv4 or an IPv6 address (without brackets)
    std::uint16_t port = 0;

    /// "host:port" or "[ipv6]:port"; errc::invalid_input with a sentence otherwise.
    static result<endpoint> parse(std::string_view text);
    std::string text() const;

    friend bool operator==(const endpoint&, const endpoint&) = default;
};

}  // namespace kvasir::net
