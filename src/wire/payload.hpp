// Payload bytes: a growing buffer for what arrives, and references to shared bytes for what leaves.
//
// A payload_buffer is filled by one reassembler and then belongs to the message decoded from it, so that rows are read
// where they arrived. It is not a general vector: no byte is initialised before it is received.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "wire/byte_budget.hpp"

namespace kvasir::wire {

/// Uninitialised bytes that grow by doubling, aligned for any fundamental type. Move-only. What it holds is counted
/// against its budget as long as it lives.
class payload_buffer {
  public:
    payload_buffer() = default;
    explicit payload_buffer(std::shared_ptr<byte_budget> budget) : lease_(std::move(budget)) {}
    payload_buffer(payload_buffer&& other) noexcept;
    payload_buffer& operator=(payload_buffer&& other) noexcept;
    ~payload_buffer() = default;

    byte_span bytes() const { return {data_.get(), size_}; }
    std::size_t size() const { return size_; }

    /// Appends `count` bytes without a value and returns where they are; earlier spans into the buffer become invalid.
    /// Empty, and nothing changed, when the budget or the system's memory is exhausted.
    std::optional<std::span<std::byte>> try_extend(std::size_t count);

    /// A copy of `bytes`, outside any budget.
    static payload_buffer copy_of(byte_span bytes);

  private:
    struct free_deleter {
        void operator()(std::byte* data) const noexcept;
    };

    std::unique_ptr<std::byte[], free_deleter> data_;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
    budget_lease lease_;
};

/// Bytes that somebody keeps alive: `owner` holds whatever `bytes` points into until the last copy is gone. The bytes
/// must not change meanwhile.
struct shared_bytes {
    byte_span bytes{};
    std::shared_ptr<const void> owner{};

    /// Takes a vector over, without copying its bytes.
    template <class T>
    static shared_bytes own(std::vector<T> values) {
        auto owner = std::make_shared<const std::vector<T>>(std::move(values));
        const byte_span bytes = std::as_bytes(std::span<const T>(*owner));
        return {bytes, std::move(owner)};
    }
};

}  // namespace kvasir::wire
