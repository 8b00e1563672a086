// Little-endian bytes, checked: a reader that never reads past its end, a writer that appends.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

using byte_span = std::span<const std::byte>;

static_assert(std::endian::native == std::endian::little,
              "activations travel as little-endian IEEE floats; a big-endian build would have to swap them");

/// Reads fixed-size values off the front of a span. Every read says with an empty optional that too little is left;
/// after a failed read the reader stays where it was.
class byte_reader {
  public:
    explicit byte_reader(byte_span bytes) : rest_(bytes) {}

    template <std::unsigned_integral T>
    std::optional<T> read() {
        if (rest_.size() < sizeof(T)) return std::nullopt;
        T value;
        std::memcpy(&value, rest_.data(), sizeof(T));
        rest_ = rest_.subspan(sizeof(T));
        return value;
    }

    std::optional<float> read_f32() {
        const auto bits = read<std::uint32_t>();
        if (!bits) return std::nullopt;
        return std::bit_cast<float>(*bits);
    }

    /// The next `count` bytes, not copied.
    std::optional<byte_span> take(std::uint64_t count) {
        if (rest_.size() < count) return std::nullopt;
        const byte_span taken = rest_.first(static_cast<std::size_t>(count));
        rest_ = rest_.subspan(static_cast<std::size_t>(count));
        return taken;
    }

    std::size_t remaining() const { return rest_.size(); }
    byte_span rest() const { return rest_; }

  private:
    byte_span rest_;
};

/// Appends fixed-size values to a vector it does not own.
class byte_writer {
  public:
    explicit byte_writer(std::vector<std::byte>& out) : out_(out) {}

    template <std::unsigned_integral T>
    void write(T value) {
        append(&value, sizeof value);
    }
    void write_f32(float value) { write(std::bit_cast<std::uint32_t>(value)); }
    void write_bytes(byte_span bytes) { append(bytes.data(), bytes.size()); }
    void write_text(std::string_view text) { append(text.data(), text.size()); }

  private:
    void append(const void* data, std::size_t size) {
        const auto* first = static_cast<const std::byte*>(data);
        out_.insert(out_.end(), first, first + size);
    }

    std::vector<std::byte>& out_;
};

inline byte_span as_bytes(std::string_view text) {
    return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace kvasir
