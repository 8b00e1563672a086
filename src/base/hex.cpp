#include "base/hex.hpp"

namespace kvasir {
namespace {

int digit_value(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return -1;
}

}  // namespace

std::string to_hex(byte_span bytes) {
    static constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    text.reserve(bytes.size() * 2);
    for (const std::byte value : bytes) {
        text.push_back(digits[std::to_integer<std::size_t>(value >> 4)]);
        text.push_back(digits[std::to_integer<std::size_t>(value & std::byte{0x0f})]);
    }
    return text;
}

bool from_hex(std::string_view text, std::span<std::byte> out) {
    if (text.size() != out.size() * 2) return false;
    for (std::size_t i = 0; i < out.size(); ++i) {
        const int high = digit_value(text[2 * i]);
        const int low = digit_value(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = static_cast<std::byte>(high << 4 | low);
    }
    return true;
}

}  // namespace kvasir
