// SHA-256 digests, the names of slabs, models and slices.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.hpp"

namespace kvasir {

struct sha256_digest {
    std::array<std::byte, 32> bytes{};

    friend constexpr auto operator<=>(const sha256_digest&, const sha256_digest&) = default;

    /// 64 lower-case hexadecimal digits.
    std::string hex() const;
    static std::optional<sha256_digest> from_hex(std::string_view text);
};

/// Incremental hashing. One thread at a time.
class sha256 {
  public:
    sha256();
    ~sha256();
    sha256(sha256&&) noexcept;
    sha256& operator=(sha256&&) noexcept;

    void update(byte_span bytes);
    void update(std::string_view text) { update(as_bytes(text)); }
    /// The digest of all that was given; the hasher starts anew afterwards.
    sha256_digest finish();

    static sha256_digest of(byte_span bytes);

  private:
    struct state;
    std::unique_ptr<state> state_;
};

}  // namespace kvasir
