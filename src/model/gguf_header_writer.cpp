#include "model/gguf_header_writer.hpp"

#include <gguf.h>

#include <algorithm>
#include <span>

namespace kvasir::model {
namespace {

void write_string(byte_writer& writer, std::string_view text) {
    writer.write(std::uint64_t{text.size()});
    writer.write_text(text);
}

}  // namespace

void gguf_header_writer::add_key(std::string_view key) {
    byte_writer writer(entries_);
    write_string(writer, key);
    ++n_entries_;
}

void gguf_header_writer::add_entry(const metadata_entry& entry) {
    add_key(entry.key);
    byte_writer(entries_).write_bytes(entry.value);
}

void gguf_header_writer::add_u32(std::string_view key, std::uint32_t value) {
    add_key(key);
    byte_writer writer(entries_);
    writer.write(std::uint32_t{GGUF_TYPE_UINT32});
    writer.write(value);
}

void gguf_header_writer::add_text(std::string_view key, std::string_view value) {
    add_key(key);
    byte_writer writer(entries_);
    writer.write(std::uint32_t{GGUF_TYPE_STRING});
    write_string(writer, value);
}

void gguf_header_writer::add_u32_array(std::string_view key, const std::vector<std::uint32_t>& values) {
    add_key(key);
    byte_writer writer(entries_);
    writer.write(std::uint32_t{GGUF_TYPE_ARRAY});
    writer.write(std::uint32_t{GGUF_TYPE_UINT32});
    writer.write(std::uint64_t{values.size()});
    for (const std::uint32_t value : values)
        writer.write(value);
}

void gguf_header_writer::add_tensor(std::string_view name, std::int32_t type, const std::array<std::int64_t, 4>& ne,
                                    std::uint64_t size_bytes) {
    std::uint32_t n_dimensions = 4;
    while (n_dimensions > 1 && ne[n_dimensions - 1] == 1)
        --n_dimensions;
    byte_writer writer(tensors_);
    write_string(writer, name);
    writer.write(n_dimensions);
    for (std::uint32_t i = 0; i < n_dimensions; ++i)
        writer.write(static_cast<std::uint64_t>(ne[i]));
    writer.write(static_cast<std::uint32_t>(type));
    writer.write(data_size_bytes_);
    data_size_bytes_ += size_bytes + padding_after(size_bytes);
    ++n_tensors_;
}

std::vector<std::byte> gguf_header_writer::finish() const {
    const std::uint32_t version = GGUF_VERSION;
    const std::size_t size_bytes =
        4 + sizeof version + sizeof n_tensors_ + sizeof n_entries_ + entries_.size() + tensors_.size();
    std::vector<std::byte> header(size_bytes + padding_after(size_bytes));
    auto end = header.begin();
    const auto append = [&end](byte_span bytes) { end = std::ranges::copy(bytes, end).out; };
    append(as_bytes(GGUF_MAGIC));
    append(std::as_bytes(std::span(&version, 1)));
    append(std::as_bytes(std::span(&n_tensors_, 1)));
    append(std::as_bytes(std::span(&n_entries_, 1)));
    append(entries_);
    append(tensors_);
    return header;
}

std::uint64_t gguf_header_writer::padding_after(std::uint64_t size_bytes) const {
    return (alignment_bytes_ - size_bytes % alignment_bytes_) % alignment_bytes_;
}

}  // namespace kvasir::model
