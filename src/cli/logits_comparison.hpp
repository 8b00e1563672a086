// Logits side by side: equal means the same bits, NaNs and signed zeros included.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kvasir::cli {

class logits_comparison {
  public:
    explicit logits_comparison(std::string name) : name_(std::move(name)) {}

    void count_batch(std::size_t n_tokens) {
        ++n_batches_;
        n_tokens_ += n_tokens;
    }
    /// Two rows of the same length.
    void add(std::span<const float> expected, std::span<const float> actual);

    bool equal() const { return n_differing_ == 0; }
    const std::string& name() const { return name_; }
    std::uint64_t n_tokens() const { return n_tokens_; }
    std::uint64_t n_batches() const { return n_batches_; }
    std::uint64_t n_values() const { return n_values_; }
    std::uint64_t n_differing() const { return n_differing_; }
    /// Over the values that differ; infinite where one of two is not a number.
    double max_difference() const { return max_difference_; }

  private:
    std::string name_;
    std::uint64_t n_tokens_ = 0;
    std::uint64_t n_batches_ = 0;
    std::uint64_t n_values_ = 0;
    std::uint64_t n_differing_ = 0;
    double max_difference_ = 0.0;
};

void print_comparison_header();
void print_comparison(const logits_comparison& comparison);

}  // namespace kvasir::cli
