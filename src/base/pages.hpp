// Memory pages of a mapped file: asking for them ahead of use, and keeping them in memory.
#pragma once

#include "base/bytes.hpp"
#include "base/error.hpp"

namespace kvasir {

/// Asks the system to read these bytes into memory, all of them at once, and does not wait for it. Only advice: nothing
/// happens for memory that is not mapped from a file.
void will_need(byte_span bytes);

/// Keeps what is in memory of these bytes there, and what comes in later too, until destroyed. Only whole pages: what
/// the range shares with its neighbours is left alone, so ranges that touch may be locked and unlocked separately.
/// Does not read anything by itself. A mapping may end before its lock does. Move-only.
class page_lock {
  public:
    /// Fails where the system allows this process no more locked memory.
    static result<page_lock> make(byte_span bytes);

    page_lock() = default;
    page_lock(page_lock&& other) noexcept;
    page_lock& operator=(page_lock&& other) noexcept;
    ~page_lock();

    /// The whole pages; may be empty.
    byte_span pages() const { return pages_; }

  private:
    byte_span pages_;
};

}  // namespace kvasir
