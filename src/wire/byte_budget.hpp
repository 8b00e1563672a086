// A shared bound on bytes held: many connections, one limit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace kvasir::wire {

/// Counts bytes in use against a limit. Any number of threads.
class byte_budget {
  public:
    explicit byte_budget(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

    bool try_take(std::uint64_t bytes) {
        std::uint64_t used = used_bytes_.load(std::memory_order_relaxed);
        do {
            if (bytes > limit_bytes_ - used) return false;  // used never exceeds the limit
        } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
        return true;
    }
    void give_back(std::uint64_t bytes) { used_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

    std::uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
    std::uint64_t limit_bytes() const { return limit_bytes_; }

  private:
    const std::uint64_t limit_bytes_;
    std::atomic<std::uint64_t> used_bytes_ = 0;
};

/// A part of a budget in use, given back on destruction. Move-only. Without a budget it grants everything.
class budget_lease {
  public:
    budget_lease() = default;
    explicit budget_lease(std::shared_ptr<byte_budget> budget) : budget_(std::move(budget)) {}
    budget_lease(budget_lease&& other) noexcept
        : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
    budget_lease& operator=(budget_lease&& other) noexcept {
        if (this != &other) {
            release();
            budget_ = std::move(other.budget_);
            bytes_ = std::exchange(other.bytes_, 0);
        }
        return *this;
    }
    ~budget_lease() { release(); }

    bool grow(std::uint64_t bytes) {
        if (!budget_) return true;
        if (!budget_->try_take(bytes)) return false;
        bytes_ += bytes;
        return true;
    }
    void release() {
        if (budget_) budget_->give_back(std::exchange(bytes_, 0));
    }

  private:
    std::shared_ptr<byte_budget> budget_;
    std::uint64_t bytes_ = 0;
};

}  // namespace kvasir::wire
