#include "base/pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvasir {
namespace {

std::uintptr_t page_size_bytes() {
    static const auto size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

std::uintptr_t page_start(std::uintptr_t address) {
    return address - address % page_size_bytes();
}

/// Pages from `begin` up to `end`, two addresses that are multiples of a page.
byte_span pages_between(const std::byte* near, std::uintptr_t begin, std::uintptr_t end) {
    const auto offset = static_cast<std::ptrdiff_t>(begin) - reinterpret_cast<std::ptrdiff_t>(near);
    return {near + offset, static_cast<std::size_t>(end - begin)};
}

void* address_of(byte_span bytes) {
    return const_cast<std::byte*>(bytes.data());
}

}  // namespace

void will_need(byte_span bytes) {
    if (bytes.empty()) return;
    const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
    const byte_span pages =
        pages_between(bytes.data(), page_start(first), page_start(first + bytes.size() - 1) + page_size_bytes());
    ::madvise(address_of(pages), pages.size(), MADV_WILLNEED);
}

result<page_lock> page_lock::make(byte_span bytes) {
    page_lock made;
    const auto first = reinterpret_cast<std::uintptr_t>(bytes.data());
    const std::uintptr_t begin = page_start(first + page_size_bytes() - 1);
    const std::uintptr_t end = page_start(first + bytes.size());
    if (begin >= end) return made;
    const byte_span pages = pages_between(bytes.data(), begin, end);
    if (::mlock2(address_of(pages), pages.size(), MLOCK_ONFAULT) != 0)
        return system_error("cannot keep memory from being paged out (see ulimit -l)");
    made.pages_ = pages;
    return made;
}

page_lock::page_lock(page_lock&& other) noexcept : pages_(std::exchange(other.pages_, {})) {}

page_lock& page_lock::operator=(page_lock&& other) noexcept {
    std::swap(pages_, other.pages_);
    return *this;
}

page_lock::~page_lock() {
    if (!pages_.empty()) ::munlock(address_of(pages_), pages_.size());
}

}  // namespace kvasir
