// Files: read-only memory maps, and output that appears under its name only when it is whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/bytes.hpp"
#include "base/error.hpp"

namespace kvasir {

/// A whole file mapped read-only. Move-only; the bytes live as long as the object.
class mapped_file {
  public:
    /// Fails with errc::io or the system's code when the file cannot be opened, is not a regular file or cannot be
    /// mapped.
    static result<mapped_file> open(const std::filesystem::path& path);

    mapped_file() = default;
    mapped_file(mapped_file&& other) noexcept;
    mapped_file& operator=(mapped_file&& other) noexcept;
    ~mapped_file();

    byte_span bytes() const { return bytes_; }

  private:
    byte_span bytes_;
};

/// Writes to `<path>.<pid>.partial` and renames to `path` on commit(). Destroyed before that, it removes what it wrote:
/// nothing half-written is ever left under either name.
class atomic_file {
  public:
    static result<atomic_file> create(const std::filesystem::path& path);

    atomic_file(atomic_file&& other) noexcept;
    atomic_file& operator=(atomic_file&& other) noexcept;
    ~atomic_file();

    result<void> write(byte_span bytes);
    result<void> write(std::string_view text) { return write(as_bytes(text)); }
    /// Flushes to disk and gives the file its name.
    result<void> commit();

  private:
    atomic_file(int descriptor, std::filesystem::path target, std::filesystem::path temporary)
        : descriptor_(descriptor), target_(std::move(target)), temporary_(std::move(temporary)) {}
    void discard() noexcept;

    int descriptor_ = -1;
    std::filesystem::path target_;
    std::filesystem::path temporary_;
};

}  // namespace kvasir
