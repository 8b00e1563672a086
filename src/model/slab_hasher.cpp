#include "model/slab_hasher.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace kvasir::model {
namespace {

/// Hashed between two looks at whether anybody still wants the result.
constexpr std::size_t piece_size_bytes = 4U << 20;
constexpr unsigned max_threads = 256;
constexpr std::chrono::milliseconds progress_interval(100);

class slab_hasher {
  public:
    explicit slab_hasher(std::span<const byte_span> slabs) : slabs_(slabs), digests_(slabs.size()) {
        for (const byte_span slab : slabs)
            total_bytes_ += slab.size();
    }

    result<std::vector<sha256_digest>> run(unsigned n_threads, const progress_callback& progress) {
        if (n_threads == 0) n_threads = std::max(1U, std::thread::hardware_concurrency());
        n_threads = std::min(n_threads, max_threads);
        if (slabs_.size() < n_threads) n_threads = static_cast<unsigned>(slabs_.size());
        {
            std::vector<std::jthread> threads;
            n_running_ = n_threads;
            try {
                for (unsigned i = 0; i < n_threads; ++i)
                    threads.emplace_back([this] { hash_until_done(); });
            } catch (...) {
                cancelled_ = true;  // the threads that did start must end before what they work on goes away
                throw;
            }
            wait(progress);
        }
        if (cancelled_) return error(errc::cancelled, "cancelled");
        return std::move(digests_);
    }

  private:
    void hash_until_done() {
        sha256 hasher;
        for (;;) {
            const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
            if (index >= slabs_.size() || cancelled_) break;
            for (byte_span rest = slabs_[index]; !rest.empty() && !cancelled_;) {
                const byte_span piece = rest.first(std::min(rest.size(), piece_size_bytes));
                hasher.update(piece);
                rest = rest.subspan(piece.size());
                done_bytes_.fetch_add(piece.size(), std::memory_order_relaxed);
            }
            digests_[index] = hasher.finish();
        }
        const std::lock_guard lock(mutex_);
        --n_running_;
        thread_ended_.notify_one();
    }

    void wait(const progress_callback& progress) {
        std::unique_lock lock(mutex_);
        while (!thread_ended_.wait_for(lock, progress_interval, [this] { return n_running_ == 0; })) {
            lock.unlock();
            tell(progress);
            lock.lock();
        }
        lock.unlock();
        tell(progress);
    }

    void tell(const progress_callback& progress) {
        if (progress && !progress(done_bytes_, total_bytes_)) cancelled_ = true;
    }

    std::span<const byte_span> slabs_;
    std::uint64_t total_bytes_ = 0;
    std::vector<sha256_digest> digests_;  // each element is written by the one thread that took its index
    std::atomic<std::size_t> next_ = 0;
    std::atomic<std::uint64_t> done_bytes_ = 0;
    std::atomic<bool> cancelled_ = false;

    std::mutex mutex_;  // guards n_running_
    std::condition_variable thread_ended_;
    unsigned n_running_ = 0;
};

}  // namespace

result<std::vector<sha256_digest>> hash_slabs(std::span<const byte_span> slabs, unsigned n_threads,
                                              const progress_callback& progress) {
    return slab_hasher(slabs).run(n_threads, progress);
}

}  // namespace kvasir::model
