// Texts on the wire: a length of two bytes, then UTF-8. For people: what a peer says must not reach a terminal as it
// is.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.hpp"

namespace kvasir::wire {

/// One line of valid UTF-8: control characters become spaces, bytes that are no UTF-8 become question marks.
std::string one_line(std::string_view text);

/// The longest beginning of at most `max_bytes` that does not end inside a character.
std::string_view cut_text(std::string_view text, std::size_t max_bytes);

/// Writes one_line(text), cut to `max_bytes` (at most 65535).
void write_text16(byte_writer& out, std::string_view text, std::size_t max_bytes);

/// Empty when the bytes end too soon or the text is longer than `max_bytes`. The text is made one_line().
std::optional<std::string> read_text16(byte_reader& in, std::size_t max_bytes);

}  // namespace kvasir::wire
