#include "model/gguf_scan.hpp"

#include <fmt/core.h>
#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <unordered_set>

namespace kvasir::model {
namespace {

constexpr std::string_view download_again = "the file is damaged or incomplete, download it again";

/// Payload bytes of a fixed-size metadata type; 0 for strings, arrays and unknown types.
std::uint64_t fixed_size_bytes(std::uint32_t type) {
    switch (type) {
        case GGUF_TYPE_UINT8:
        case GGUF_TYPE_INT8:
        case GGUF_TYPE_BOOL:
            return 1;
        case GGUF_TYPE_UINT16:
        case GGUF_TYPE_INT16:
            return 2;
        case GGUF_TYPE_UINT32:
        case GGUF_TYPE_INT32:
        case GGUF_TYPE_FLOAT32:
            return 4;
        case GGUF_TYPE_UINT64:
        case GGUF_TYPE_INT64:
        case GGUF_TYPE_FLOAT64:
            return 8;
        default:
            return 0;
    }
}

std::optional<std::uint64_t> checked_product(std::uint64_t a, std::uint64_t b) {
    std::uint64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
    return product;
}

std::string_view as_text(byte_span bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class header_scanner {
  public:
    header_scanner(byte_span file, std::string_view file_name)
        : file_(file),
          file_name_(file_name),
          reader_(file.first(std::min<std::size_t>(file.size(), gguf_limits::header_size_bytes))) {}

    result<scanned_header> scan() {
        if (auto counted = read_counts(); !counted) return counted.error();
        if (auto read = read_metadata(); !read) return read.error();
        if (auto read = read_tensors(); !read) return read.error();
        return std::move(header_);
    }

  private:
    template <class... Arguments>
    error refuse(errc kind, fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
        return error(kind, std::string(file_name_) + ": " + fmt::format(format, std::forward<Arguments>(arguments)...));
    }

    /// The header goes on where the bytes end.
    error cut_short(std::string_view where) const {
        if (file_.size() > gguf_limits::header_size_bytes)
            return refuse(errc::limit_exceeded, "its header is larger than {} MiB; no model needs that, {}",
                          gguf_limits::header_size_bytes >> 20, download_again);
        return refuse(errc::invalid_input, "it ends inside {}; {}", where, download_again);
    }

    result<void> read_counts() {
        const auto magic = reader_.take(4);
        if (!magic || as_text(*magic) != GGUF_MAGIC)
            return refuse(errc::invalid_input, "not a GGUF file (it does not start with GGUF); give a model file");
        const auto version = reader_.read<std::uint32_t>();
        const auto n_tensors = reader_.read<std::uint64_t>();
        const auto n_keys = reader_.read<std::uint64_t>();
        if (!version || !n_tensors || !n_keys) return cut_short("its first 24 bytes");
        if ((*version & 0xffffU) == 0)
            return refuse(errc::unsupported,
                          "a big-endian GGUF file; convert the model again for little-endian machines");
        if (*version < 2 || *version > GGUF_VERSION)
            return refuse(errc::unsupported, "GGUF version {} (2 to {} are read); convert the model again", *version,
                          GGUF_VERSION);
        if (*n_keys > gguf_limits::keys)
            return refuse(errc::limit_exceeded, "it claims {} metadata keys (at most {}); {}", *n_keys,
                          gguf_limits::keys, download_again);
        if (*n_tensors > gguf_limits::tensors)
            return refuse(errc::limit_exceeded, "it claims {} tensors (at most {} in one file); {}", *n_tensors,
                          gguf_limits::tensors, download_again);
        n_keys_ = *n_keys;
        header_.n_tensors = *n_tensors;
        return {};
    }

    result<std::string_view> read_text(std::string_view what, std::uint64_t max_size_bytes) {
        const auto size_bytes = reader_.read<std::uint64_t>();
        if (!size_bytes) return cut_short(what);
        if (*size_bytes > max_size_bytes)
            return refuse(errc::limit_exceeded, "{} claims {} bytes (at most {}); {}", what, *size_bytes,
                          max_size_bytes, download_again);
        const auto bytes = reader_.take(*size_bytes);
        if (!bytes) return cut_short(what);
        return as_text(*bytes);
    }

    /// A key or name: printable ASCII, as the format has it, so that it means the same to C, to JSON and to a terminal.
    result<std::string_view> read_name(std::string_view what, std::uint64_t max_size_bytes) {
        auto text = read_text(what, max_size_bytes);
        if (!text) return text;
        if (text->empty()) return refuse(errc::invalid_input, "{} is empty; {}", what, download_again);
        if (!std::ranges::all_of(*text, [](char c) { return c > ' ' && c <= '~'; }))
            return refuse(errc::invalid_input, "{} has characters in it that no name has; {}", what, download_again);
        return text;
    }

    result<void> read_metadata() {
        std::unordered_set<std::string_view> keys;
        for (std::uint64_t i = 0; i < n_keys_; ++i) {
            const auto key = read_name(fmt::format("metadata key {}", i), gguf_limits::key_size_bytes);
            if (!key) return key.error();
            if (!keys.insert(*key).second)
                return refuse(errc::invalid_input, "metadata key {} is there twice; {}", *key, download_again);
            const byte_span before = reader_.rest();
            if (auto skipped = skip_value(*key); !skipped) return skipped.error();
            const byte_span value = before.first(before.size() - reader_.remaining());
            header_.metadata.push_back({*key, value});
            if (*key == GGUF_KEY_GENERAL_ALIGNMENT)
                if (auto read = read_alignment(value); !read) return read.error();
        }
        return {};
    }

    result<void> skip_value(std::string_view key) {
        const auto type = reader_.read<std::uint32_t>();
        if (!type) return cut_short(fmt::format("metadata key {}", key));
        if (*type != GGUF_TYPE_ARRAY) return skip_elements(key, *type, 1);
        const auto element_type = reader_.read<std::uint32_t>();
        const auto n_elements = reader_.read<std::uint64_t>();
        if (!element_type || !n_elements) return cut_short(fmt::format("metadata key {}", key));
        if (*n_elements > gguf_limits::array_elements)
            return refuse(errc::limit_exceeded, "metadata key {} claims {} elements (at most {}); {}", key, *n_elements,
                          gguf_limits::array_elements, download_again);
        return skip_elements(key, *element_type, *n_elements);
    }

    result<void> skip_elements(std::string_view key, std::uint32_t type, std::uint64_t n_elements) {
        if (type == GGUF_TYPE_STRING) {
            for (std::uint64_t i = 0; i < n_elements; ++i) {
                const auto text = read_text("a metadata string", gguf_limits::header_size_bytes);
                if (!text) return text.error();
            }
            return {};
        }
        const std::uint64_t element_size_bytes = fixed_size_bytes(type);
        if (element_size_bytes == 0)
            return refuse(errc::invalid_input, "metadata key {} has unknown type {}; {}", key, type, download_again);
        if (!reader_.take(n_elements * element_size_bytes)) return cut_short(fmt::format("metadata key {}", key));
        return {};
    }

    result<void> read_alignment(byte_span value) {
        byte_reader reader(value);
        if (reader.read<std::uint32_t>() != std::uint32_t{GGUF_TYPE_UINT32})
            return refuse(errc::invalid_input, "metadata key {} must be an u32; {}", GGUF_KEY_GENERAL_ALIGNMENT,
                          download_again);
        alignment_bytes_ = reader.read<std::uint32_t>().value_or(0);
        if (!std::has_single_bit(alignment_bytes_) || alignment_bytes_ < gguf_limits::min_alignment_bytes ||
            alignment_bytes_ > gguf_limits::max_alignment_bytes)
            return refuse(errc::invalid_input, "alignment {} is no power of two from {} to {}; {}", alignment_bytes_,
                          gguf_limits::min_alignment_bytes, gguf_limits::max_alignment_bytes, download_again);
        return {};
    }

    result<void> read_tensors() {
        struct placed_tensor {
            std::string_view name;
            std::uint64_t size_bytes = 0;
        };
        std::vector<placed_tensor> placed;
        std::unordered_set<std::string_view> names;
        std::uint64_t end_offset = 0;  // of the tensors so far, padded, from the start of the data
        for (std::uint64_t i = 0; i < header_.n_tensors; ++i) {
            const auto name = read_name(fmt::format("the name of tensor {}", i), GGML_MAX_NAME - 1);
            if (!name) return name.error();
            if (!names.insert(*name).second)
                return refuse(errc::invalid_input, "tensor {} is there twice; {}", *name, download_again);
            const auto size_bytes = read_shape(*name);
            if (!size_bytes) return size_bytes.error();
            const auto offset = reader_.read<std::uint64_t>();
            if (!offset) return cut_short(fmt::format("tensor {}'s description", *name));
            if (auto checked = check_offset(*name, *offset, end_offset); !checked) return checked.error();
            // Neither sum can overflow: a size that large could never pass the check against the file below.
            if (*size_bytes > file_.size() || end_offset > file_.size()) return ends_before(*name);
            end_offset = *offset + padded(*size_bytes);
            placed.push_back({*name, *size_bytes});
        }
        if (placed.empty()) return {};
        const auto header_end = static_cast<std::uint64_t>(reader_.rest().data() - file_.data());
        std::uint64_t offset = padded(header_end);
        if (offset > file_.size()) return cut_short("the gap before its tensor data");
        for (const placed_tensor& tensor : placed) {
            if (offset > file_.size() || tensor.size_bytes > file_.size() - offset) return ends_before(tensor.name);
            offset += padded(tensor.size_bytes);
        }
        return {};
    }

    /// ggml lays tensors one after another in the order of the header; so must the file.
    result<void> check_offset(std::string_view name, std::uint64_t offset, std::uint64_t expected) const {
        if (offset % alignment_bytes_ != 0)
            return refuse(errc::invalid_input, "tensor {} starts at offset {}, which is not aligned to {}; {}", name,
                          offset, alignment_bytes_, download_again);
        if (offset < expected)
            return refuse(errc::invalid_input, "tensor {} at offset {} overlaps the one before, which ends at {}; {}",
                          name, offset, expected, download_again);
        if (offset > expected)
            return refuse(errc::invalid_input, "tensor {} starts at offset {} instead of {}; {}", name, offset,
                          expected, download_again);
        return {};
    }

    error ends_before(std::string_view name) const {
        return refuse(errc::invalid_input, "it has {} bytes and ends before the data of tensor {} does; {}",
                      file_.size(), name, download_again);
    }

    /// Dimensions and type; the size in bytes.
    result<std::uint64_t> read_shape(std::string_view name) {
        const auto n_dimensions = reader_.read<std::uint32_t>();
        if (!n_dimensions) return cut_short(fmt::format("tensor {}'s description", name));
        if (*n_dimensions > GGML_MAX_DIMS)
            return refuse(errc::invalid_input, "tensor {} has {} dimensions (at most {}); {}", name, *n_dimensions,
                          GGML_MAX_DIMS, download_again);
        std::uint64_t n_elements = 1;
        std::uint64_t row_elements = 1;
        for (std::uint32_t dimension = 0; dimension < *n_dimensions; ++dimension) {
            const auto size = reader_.read<std::uint64_t>();
            if (!size) return cut_short(fmt::format("tensor {}'s description", name));
            if (*size == 0) return refuse(errc::invalid_input, "tensor {} has no elements; {}", name, download_again);
            const auto product = checked_product(n_elements, *size);
            // Whatever the type, an element takes more than a thousandth of a byte.
            if (!product || *product / 1024 > file_.size()) return ends_before(name);
            n_elements = *product;
            if (dimension == 0) row_elements = *size;
        }
        const auto type = reader_.read<std::uint32_t>();
        if (!type) return cut_short(fmt::format("tensor {}'s description", name));
        const bool known = *type < GGML_TYPE_COUNT && ggml_blck_size(static_cast<ggml_type>(*type)) > 0;
        if (!known)
            return refuse(errc::unsupported, "tensor {} has type {}, which this ggml does not know; convert it again",
                          name, *type);
        const auto block_elements = static_cast<std::uint64_t>(ggml_blck_size(static_cast<ggml_type>(*type)));
        if (row_elements % block_elements != 0)
            return refuse(errc::invalid_input, "tensor {} has rows of {} elements, no multiple of {}'s block of {}; {}",
                          name, row_elements, ggml_type_name(static_cast<ggml_type>(*type)), block_elements,
                          download_again);
        const auto size_bytes =
            checked_product(n_elements / block_elements, ggml_type_size(static_cast<ggml_type>(*type)));
        if (!size_bytes) return ends_before(name);
        return *size_bytes;
    }

    /// `size` is at most a file's size, so that this cannot overflow.
    std::uint64_t padded(std::uint64_t size) const {
        return (size + alignment_bytes_ - 1) / alignment_bytes_ * alignment_bytes_;
    }

    byte_span file_;
    std::string_view file_name_;
    byte_reader reader_;
    std::uint64_t n_keys_ = 0;
    std::uint64_t alignment_bytes_ = GGUF_DEFAULT_ALIGNMENT;
    scanned_header header_;
};

}  // namespace

result<scanned_header> scan_header(byte_span file, std::string_view file_name) {
    return header_scanner(file, file_name).scan();
}

}  // namespace kvasir::model
