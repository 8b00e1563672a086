// Builds the header of a GGUF file: metadata as given, tensors laid one after another.
//
// ggml's own writer takes metadata from another gguf_context and goes through C strings; ours copies the model's
// entries in their very bytes, so that what a slice keeps of a model is what the model says.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "model/gguf_model.hpp"

namespace kvasir::model {

class gguf_header_writer {
  public:
    /// `alignment_bytes` must be what the metadata says under general.alignment, or 32 where it says nothing.
    explicit gguf_header_writer(std::uint64_t alignment_bytes) : alignment_bytes_(alignment_bytes) {}

    void add_entry(const metadata_entry& entry);
    void add_u32(std::string_view key, std::uint32_t value);
    void add_text(std::string_view key, std::string_view value);
    void add_u32_array(std::string_view key, const std::vector<std::uint32_t>& values);

    /// The tensor's data follows that of the one added before, padded.
    void add_tensor(std::string_view name, std::int32_t type, const std::array<std::int64_t, 4>& ne,
                    std::uint64_t size_bytes);

    /// The whole header, padded: the first tensor's data follows directly.
    std::vector<std::byte> finish() const;
    /// Bytes that must follow `size_bytes` of tensor data before the next tensor's.
    std::uint64_t padding_after(std::uint64_t size_bytes) const;

  private:
    void add_key(std::string_view key);

    std::uint64_t alignment_bytes_;
    std::uint64_t n_entries_ = 0;
    std::uint64_t n_tensors_ = 0;
    std::uint64_t data_size_bytes_ = 0;
    std::vector<std::byte> entries_;
    std::vector<std::byte> tensors_;
};

}  // namespace kvasir::model
