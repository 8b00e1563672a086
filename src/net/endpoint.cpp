#include "net/endpoint.hpp"

#include <fmt/core.h>

#include <charconv>

namespace kvasir::net {

result<endpoint> endpoint::parse(std::string_view text) {
    const auto bad = [text](std::string_view why) {
        return error(errc::invalid_input,
                     fmt::format("\"{}\" is no address: {}; write it as host:port or [ipv6]:port", text, why));
    };
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return bad("it has no port");
    std::string_view host = text.substr(0, colon);
    const std::string_view digits = text.substr(colon + 1);
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
    } else if (host.find_first_of(":[]") != std::string_view::npos) {
        return bad("an IPv6 address needs brackets");
    }
    if (host.empty()) return bad("it has no host");
    if (host.size() > 253) return bad("the host is too long");
    std::uint16_t port = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (digits.empty() || parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
        return bad("the port is not a number from 0 to 65535");
    }
    return endpoint{std::string(host), port};
}

std::string endpoint::text() const {
    const bool is_ipv6 = host.find(':') != std::string::npos;
    return is_ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace kvasir::net
