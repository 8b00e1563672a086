#include "wire/payload.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace kvasir::wire {

void payload_buffer::free_deleter::operator()(std::byte* data) const noexcept {
    std::free(data);
}

payload_buffer::payload_buffer(payload_buffer&& other) noexcept
    : data_(std::move(other.data_)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)),
      lease_(std::move(other.lease_)) {}

payload_buffer& payload_buffer::operator=(payload_buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    lease_ = std::move(other.lease_);
    return *this;
}

std::optional<std::span<std::byte>> payload_buffer::try_extend(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / 4 - size_) return std::nullopt;
    const std::size_t wanted = size_ + count;
    if (!lease_.grow(count)) return std::nullopt;
    if (wanted > capacity_) {
        const std::size_t capacity = capacity_ == 0 ? wanted : std::max(wanted, 2 * capacity_);
        // realloc, not a new block: for large blocks the C library moves pages instead of copying bytes.
        void* grown = std::realloc(data_.get(), capacity);
        if (grown == nullptr) return std::nullopt;
        static_cast<void>(data_.release());
        data_.reset(static_cast<std::byte*>(grown));
        capacity_ = capacity;
    }
    const std::size_t at = size_;
    size_ = wanted;
    return std::span<std::byte>(data_.get() + at, count);
}

payload_buffer payload_buffer::copy_of(byte_span bytes) {
    payload_buffer copy;
    const auto to = copy.try_extend(bytes.size());
    if (!to) throw std::bad_alloc();
    if (!bytes.empty()) std::memcpy(to->data(), bytes.data(), bytes.size());
    return copy;
}

}  // namespace kvasir::wire
