// A model file: GGUF, whole or split over several files, mapped into memory and checked once, when it is opened.
//
// Invariant: after open() every tensor's bytes lie inside a mapped file, aligned and without overlap, and all names are
// unique; whoever holds the model need not check again. The bytes live as long as the gguf_model (moving it keeps
// them).
//
// Immutable: any number of threads may read. It is not a loader: nothing is copied, converted or executed. Whoever
// truncates a file while it is mapped takes the process down, as with any mapped file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/error.hpp"

namespace kvasir::model {

/// One tensor, described in ggml's vocabulary.
struct tensor_info {
    std::string name;
    std::int32_t type = 0;              ///< a ggml_type that this ggml knows
    std::array<std::int64_t, 4> ne{};   ///< elements per dimension; 1 for unused dimensions
    std::array<std::uint64_t, 4> nb{};  ///< bytes from one element, row, matrix, … to the next
    byte_span data;                     ///< all bytes, pointing into the mapped file
    std::uint32_t file_index = 0;       ///< which of files()
    std::uint64_t file_offset = 0;      ///< of data in that file, in bytes

    std::uint64_t size_bytes() const { return data.size(); }
};

/// One of the files a model is made of, as it was when it was opened.
struct model_file {
    std::filesystem::path path;
    std::uint64_t size_bytes = 0;
    std::int64_t modified_ns = 0;  ///< time of the last modification, nanoseconds since 1970
};

/// One metadata entry in the very bytes of the file: value type (u32), for arrays element type and count, payload.
struct metadata_entry {
    std::string_view key;
    byte_span value;
};

class gguf_model {
  public:
    /// Opens the model at `path`; of a split model, `path` may be any of its files (`…-00002-of-00003.gguf`), and all
    /// of them are opened. Errors name the file, what is wrong with it and what to do: io (missing, unreadable),
    /// invalid_input (not GGUF, damaged, truncated, incomplete split), limit_exceeded (larger than any model we know).
    static result<gguf_model> open(const std::filesystem::path& path);

    gguf_model(gguf_model&&) noexcept;
    gguf_model& operator=(gguf_model&&) noexcept;
    ~gguf_model();

    /// All tensors of all files, in file order.
    std::span<const tensor_info> tensors() const;
    /// The tensor with this name, or null.
    const tensor_info* find_tensor(std::string_view name) const;

    /// At least one; the first is the one that carries the metadata.
    std::span<const model_file> files() const;
    /// The path of the first file: what messages call the model.
    const std::filesystem::path& path() const { return files().front().path; }
    std::uint64_t size_bytes() const;

    /// `general.architecture`, or empty.
    std::string_view architecture() const;

    // Metadata of the first file. Empty when the key is absent or of another kind. A string ends at its first NUL.
    bool has_key(std::string_view key) const;
    /// Any integer type, or bool.
    std::optional<std::int64_t> integer(std::string_view key) const;
    /// float32 or float64.
    std::optional<double> real(std::string_view key) const;
    std::optional<std::string_view> text(std::string_view key) const;
    /// An array of any integer type or bool.
    std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;

    /// The integer under `<architecture>.<suffix>`, e.g. "expert_used_count". Where the file gives one value per block,
    /// the largest.
    std::optional<std::int64_t> hyper_parameter(std::string_view suffix) const;

    /// Every entry of the first file, in file order.
    std::span<const metadata_entry> metadata() const;

  private:
    struct state;
    explicit gguf_model(std::unique_ptr<state> opened);

    std::unique_ptr<state> state_;
};

/// ggml's name of a type ("q4_K"), or "type <number>" for one this ggml does not know.
std::string type_name(std::int32_t type);

}  // namespace kvasir::model
