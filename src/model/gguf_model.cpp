#include "model/gguf_model.hpp"

#include <fmt/core.h>
#include <ggml.h>
#include <gguf.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "base/file.hpp"
#include "model/gguf_scan.hpp"
#include "model/split_name.hpp"

namespace kvasir::model {
namespace {

constexpr std::uint64_t max_tensors_in_model = 65'536;
constexpr std::int64_t max_files_in_model = 4'096;

struct gguf_deleter {
    void operator()(gguf_context* context) const { gguf_free(context); }
};
using gguf_context_pointer = std::unique_ptr<gguf_context, gguf_deleter>;

/// One opened file.
struct model_part {
    model_file file;
    mapped_file mapped;
    gguf_context_pointer header;
    std::vector<metadata_entry> metadata;
};

result<model_file> examine(const std::filesystem::path& path) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return system_error("cannot open " + path.string());
    if (S_ISDIR(status.st_mode)) return error(errc::io, path.string() + " is a directory; give the .gguf file in it");
    // Said before the file is opened: opening a pipe would wait for somebody to write into it.
    if (!S_ISREG(status.st_mode)) return error(errc::io, path.string() + " is not a regular file");
    model_file file;
    file.path = path;
    file.size_bytes = static_cast<std::uint64_t>(status.st_size);
    file.modified_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
    return file;
}

result<model_part> open_part(const std::filesystem::path& path) {
    auto file = examine(path);
    if (!file) return file.error();
    auto mapped = mapped_file::open(path);
    if (!mapped) return mapped.error();
    model_part part;
    part.file = std::move(*file);
    part.mapped = std::move(*mapped);
    if (part.mapped.bytes().size() != part.file.size_bytes)
        return error(errc::io, path.string() + " changed while it was being opened; wait until it is complete");
    auto scanned = scan_header(part.mapped.bytes(), path.string());
    if (!scanned) return scanned.error();
    part.metadata = std::move(scanned->metadata);
    part.header.reset(gguf_init_from_buffer(part.mapped.bytes().data(), part.mapped.bytes().size(),
                                            gguf_init_params{.no_alloc = true, .ctx = nullptr}));
    if (!part.header) return error(errc::internal, path.string() + ": ggml cannot read this GGUF file");
    return part;
}

std::int64_t key_index(const gguf_context* header, std::string_view key) {
    return gguf_find_key(header, std::string(key).c_str());
}

/// Element `index` of `data`, which holds integers of `type`. Empty for other types and what int64 cannot hold.
std::optional<std::int64_t> integer_at(gguf_type type, const void* data, std::size_t index) {
    const auto read = [&]<class T>(T) -> std::optional<std::int64_t> {
        T value;
        std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
        if (!std::in_range<std::int64_t>(value)) return std::nullopt;
        return static_cast<std::int64_t>(value);
    };
    switch (type) {
        case GGUF_TYPE_UINT8:
            return read(std::uint8_t{});
        case GGUF_TYPE_INT8:
        case GGUF_TYPE_BOOL:
            return read(std::int8_t{});
        case GGUF_TYPE_UINT16:
            return read(std::uint16_t{});
        case GGUF_TYPE_INT16:
            return read(std::int16_t{});
        case GGUF_TYPE_UINT32:
            return read(std::uint32_t{});
        case GGUF_TYPE_INT32:
            return read(std::int32_t{});
        case GGUF_TYPE_UINT64:
            return read(std::uint64_t{});
        case GGUF_TYPE_INT64:
            return read(std::int64_t{});
        default:
            return std::nullopt;
    }
}

std::optional<std::int64_t> integer_of(const gguf_context* header, std::string_view key) {
    const std::int64_t index = key_index(header, key);
    if (index < 0) return std::nullopt;
    const gguf_type type = gguf_get_kv_type(header, index);
    if (type == GGUF_TYPE_ARRAY || type == GGUF_TYPE_STRING) return std::nullopt;
    return integer_at(type, gguf_get_val_data(header, index), 0);
}

}  // namespace

struct gguf_model::state {
    std::vector<model_part> parts;
    std::vector<model_file> files;
    std::vector<tensor_info> tensors;
    std::unordered_map<std::string_view, const tensor_info*> by_name;

    const gguf_context* header() const { return parts.front().header.get(); }

    result<void> open_all(const std::filesystem::path& path);
    result<void> open_split(model_part given, std::int64_t count);
    result<void> list_tensors();
};

result<void> gguf_model::state::open_all(const std::filesystem::path& path) {
    auto part = open_part(path);
    if (!part) return part.error();
    const std::int64_t count = integer_of(part->header.get(), "split.count").value_or(0);
    if (count > 1) {
        if (auto opened = open_split(std::move(*part), count); !opened) return opened;
    } else {
        parts.push_back(std::move(*part));
    }
    for (const model_part& opened : parts)
        files.push_back(opened.file);
    return list_tensors();
}

result<void> gguf_model::state::open_split(model_part given, std::int64_t count) {
    const std::filesystem::path path = given.file.path;
    const std::int64_t given_index = integer_of(given.header.get(), "split.no").value_or(-1);
    if (count > max_files_in_model)
        return error(errc::limit_exceeded,
                     fmt::format("{}: a model of {} files (at most {})", path.string(), count, max_files_in_model));
    if (given_index < 0 || given_index >= count)
        return error(errc::invalid_input,
                     fmt::format("{}: it says it is file {} of a model of {} files, counted from 0; download it again",
                                 path.string(), given_index, count));
    const auto name = split_name::parse(path.filename().string());
    if (!name || name->count != count || name->number != given_index + 1)
        return error(errc::invalid_input,
                     fmt::format("{} is file {} of {} of a split model, but its name does not say so; name the files "
                                 "<model>-{:05}-of-{:05}.gguf and so on, in one directory",
                                 path.string(), given_index + 1, count, given_index + 1, count));
    std::int64_t n_tensors = 0;
    std::optional<std::int64_t> n_tensors_claimed;
    for (std::uint32_t number = 1; number <= name->count; ++number) {
        model_part part;
        if (number == name->number) {
            part = std::move(given);
        } else {
            auto opened = open_part(path.parent_path() / name->part(number));
            if (!opened)
                return opened.error().while_doing(
                    fmt::format("the model has {} files and all must lie in one directory", count));
            part = std::move(*opened);
        }
        const auto part_index = integer_of(part.header.get(), "split.no");
        const auto part_count = integer_of(part.header.get(), "split.count");
        if (part_index != std::int64_t{number} - 1 || part_count != count)
            return error(
                errc::invalid_input,
                fmt::format("{} does not say that it is file {} of {}; it belongs to another model or was renamed",
                            part.file.path.string(), number, count));
        if (number == 1) n_tensors_claimed = integer_of(part.header.get(), "split.tensors.count");
        n_tensors += gguf_get_n_tensors(part.header.get());
        parts.push_back(std::move(part));
    }
    if (n_tensors_claimed && *n_tensors_claimed != n_tensors)
        return error(errc::invalid_input,
                     fmt::format("{}: the model should have {} tensors, its {} files hold {}; download them again",
                                 path.string(), *n_tensors_claimed, count, n_tensors));
    return {};
}

result<void> gguf_model::state::list_tensors() {
    std::uint64_t n_tensors = 0;
    for (const model_part& part : parts)
        n_tensors += static_cast<std::uint64_t>(gguf_get_n_tensors(part.header.get()));
    if (n_tensors > max_tensors_in_model)
        return error(errc::limit_exceeded, fmt::format("{}: the model has {} tensors (at most {})",
                                                       files.front().path.string(), n_tensors, max_tensors_in_model));
    tensors.reserve(static_cast<std::size_t>(n_tensors));
    for (std::size_t file_index = 0; file_index < parts.size(); ++file_index) {
        const gguf_context* part_header = parts[file_index].header.get();
        for (std::int64_t i = 0; i < gguf_get_n_tensors(part_header); ++i) {
            tensor_info tensor;
            tensor.name = gguf_get_tensor_name(part_header, i);
            const ggml_type type = gguf_get_tensor_type(part_header, i);
            tensor.type = type;
            std::copy_n(gguf_get_tensor_ne(part_header, i), tensor.ne.size(), tensor.ne.begin());
            tensor.nb[0] = ggml_type_size(type);
            tensor.nb[1] = ggml_row_size(type, tensor.ne[0]);
            tensor.nb[2] = tensor.nb[1] * static_cast<std::uint64_t>(tensor.ne[1]);
            tensor.nb[3] = tensor.nb[2] * static_cast<std::uint64_t>(tensor.ne[2]);
            tensor.file_index = static_cast<std::uint32_t>(file_index);
            tensor.file_offset = gguf_get_data_offset(part_header) + gguf_get_tensor_offset(part_header, i);
            const std::uint64_t size_bytes = tensor.nb[3] * static_cast<std::uint64_t>(tensor.ne[3]);
            const byte_span file = parts[file_index].mapped.bytes();
            if (tensor.file_offset > file.size() || size_bytes > file.size() - tensor.file_offset)
                return error(errc::internal, fmt::format("{}: tensor {} lies outside the file after all",
                                                         files[file_index].path.string(), tensor.name));
            tensor.data = file.subspan(tensor.file_offset, size_bytes);
            tensors.push_back(std::move(tensor));
        }
    }
    for (const tensor_info& tensor : tensors)
        if (!by_name.emplace(tensor.name, &tensor).second)
            return error(errc::invalid_input, fmt::format("{}: tensor {} is in an earlier file of the model too",
                                                          files[tensor.file_index].path.string(), tensor.name));
    return {};
}

result<gguf_model> gguf_model::open(const std::filesystem::path& path) {
    auto opened = std::make_unique<state>();
    if (auto done = opened->open_all(path); !done) return done.error();
    return gguf_model(std::move(opened));
}

gguf_model::gguf_model(std::unique_ptr<state> opened) : state_(std::move(opened)) {}
gguf_model::gguf_model(gguf_model&&) noexcept = default;
gguf_model& gguf_model::operator=(gguf_model&&) noexcept = default;
gguf_model::~gguf_model() = default;

std::span<const tensor_info> gguf_model::tensors() const {
    return state_->tensors;
}

const tensor_info* gguf_model::find_tensor(std::string_view name) const {
    const auto found = state_->by_name.find(name);
    return found == state_->by_name.end() ? nullptr : found->second;
}

std::span<const model_file> gguf_model::files() const {
    return state_->files;
}

std::uint64_t gguf_model::size_bytes() const {
    std::uint64_t sum = 0;
    for (const model_file& file : state_->files)
        sum += file.size_bytes;
    return sum;
}

std::string_view gguf_model::architecture() const {
    return text("general.architecture").value_or("");
}

bool gguf_model::has_key(std::string_view key) const {
    return key_index(state_->header(), key) >= 0;
}

std::optional<std::int64_t> gguf_model::integer(std::string_view key) const {
    return integer_of(state_->header(), key);
}

std::optional<double> gguf_model::real(std::string_view key) const {
    const std::int64_t index = key_index(state_->header(), key);
    if (index < 0) return std::nullopt;
    switch (gguf_get_kv_type(state_->header(), index)) {
        case GGUF_TYPE_FLOAT32:
            return gguf_get_val_f32(state_->header(), index);
        case GGUF_TYPE_FLOAT64:
            return gguf_get_val_f64(state_->header(), index);
        default:
            return std::nullopt;
    }
}

std::optional<std::string_view> gguf_model::text(std::string_view key) const {
    const std::int64_t index = key_index(state_->header(), key);
    if (index < 0 || gguf_get_kv_type(state_->header(), index) != GGUF_TYPE_STRING) return std::nullopt;
    return gguf_get_val_str(state_->header(), index);
}

std::optional<std::vector<std::int64_t>> gguf_model::integers(std::string_view key) const {
    const std::int64_t index = key_index(state_->header(), key);
    if (index < 0 || gguf_get_kv_type(state_->header(), index) != GGUF_TYPE_ARRAY) return std::nullopt;
    const gguf_type type = gguf_get_arr_type(state_->header(), index);
    if (type == GGUF_TYPE_STRING) return std::nullopt;
    const std::size_t n_values = gguf_get_arr_n(state_->header(), index);
    std::vector<std::int64_t> values;
    for (std::size_t i = 0; i < n_values; ++i) {
        const auto value = integer_at(type, gguf_get_arr_data(state_->header(), index), i);
        if (!value) return std::nullopt;
        values.push_back(*value);
    }
    return values;
}

std::optional<std::int64_t> gguf_model::hyper_parameter(std::string_view suffix) const {
    const std::string key = fmt::format("{}.{}", architecture(), suffix);
    if (const auto value = integer(key)) return value;
    const auto values = integers(key);
    if (!values || values->empty()) return std::nullopt;
    return std::ranges::max(*values);
}

std::span<const metadata_entry> gguf_model::metadata() const {
    return state_->parts.front().metadata;
}

std::string type_name(std::int32_t type) {
    if (type >= 0 && type < GGML_TYPE_COUNT && ggml_blck_size(static_cast<ggml_type>(type)) > 0)
        return ggml_type_name(static_cast<ggml_type>(type));
    return fmt::format("type {}", type);
}

}  // namespace kvasir::model
