// Bytes as lower-case hexadecimal digits and back.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/bytes.hpp"

namespace kvasir {

std::string to_hex(byte_span bytes);

/// Fills `out` from exactly `2 * out.size()` hexadecimal digits of either case; false, and `out` unspecified,
/// otherwise.
bool from_hex(std::string_view text, std::span<std::byte> out);

}  // namespace kvasir
