#include "wire/text.hpp"

#include <cstdint>

namespace kvasir::wire {
namespace {

/// Length of the UTF-8 sequence at the front of `text`, 0 if there is no valid one. Overlong forms, surrogates and
/// values above U+10FFFF are not valid.
std::size_t sequence_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const auto continues = [&](std::size_t i) { return i < text.size() && (byte(i) & 0xC0U) == 0x80U; };
    const unsigned first = byte(0);
    if (first < 0x80) return 1;
    if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
    if (first >= 0xE0 && first <= 0xEF) {
        if (!continues(1) || !continues(2)) return 0;
        if (first == 0xE0 && byte(1) < 0xA0) return 0;
        if (first == 0xED && byte(1) > 0x9F) return 0;
        return 3;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        if (!continues(1) || !continues(2) || !continues(3)) return 0;
        if (first == 0xF0 && byte(1) < 0x90) return 0;
        if (first == 0xF4 && byte(1) > 0x8F) return 0;
        return 4;
    }
    return 0;
}

/// U+0080 to U+009F, the control characters beyond ASCII: some terminals obey them.
bool is_c1_control(std::string_view sequence) {
    return sequence.size() == 2 && static_cast<unsigned char>(sequence[0]) == 0xC2 &&
           static_cast<unsigned char>(sequence[1]) < 0xA0;
}

}  // namespace

std::string one_line(std::string_view text) {
    std::string line;
    line.reserve(text.size());
    while (!text.empty()) {
        const std::size_t length = sequence_length(text);
        if (length == 0) {
            line += '?';
            text.remove_prefix(1);
            continue;
        }
        const std::string_view sequence = text.substr(0, length);
        const auto first = static_cast<unsigned char>(sequence[0]);
        if (first < 0x20 || first == 0x7F) {
            line += ' ';
        } else if (is_c1_control(sequence)) {
            line += "  ";  // two bytes as before: cleaning a text never changes its length
        } else {
            line += sequence;
        }
        text.remove_prefix(length);
    }
    return line;
}

std::string_view cut_text(std::string_view text, std::size_t max_bytes) {
    if (text.size() <= max_bytes) return text;
    std::size_t end = max_bytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U)
        --end;
    return text.substr(0, end);
}

void write_text16(byte_writer& out, std::string_view text, std::size_t max_bytes) {
    const std::string line = one_line(text);
    const std::string_view kept = cut_text(line, max_bytes);
    out.write(static_cast<std::uint16_t>(kept.size()));
    out.write_text(kept);
}

std::optional<std::string> read_text16(byte_reader& in, std::size_t max_bytes) {
    byte_reader ahead = in;
    const auto length = ahead.read<std::uint16_t>();
    if (!length || *length > max_bytes) return std::nullopt;
    const auto bytes = ahead.take(*length);
    if (!bytes) return std::nullopt;
    in = ahead;
    return one_line({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
}

}  // namespace kvasir::wire
