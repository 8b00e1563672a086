// A manifest as JSON, and back from bytes that anybody may have written.
#include <fmt/core.h>
#include <ggml.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.hpp"
#include "model/expert_map.hpp"
#include "model/manifest.hpp"

namespace kvasir::model {
namespace {

using json = nlohmann::json;
using ordered_json = nlohmann::ordered_json;

constexpr std::string_view format_name = "kvasir-manifest";
constexpr std::uint64_t format_version = 1;
constexpr std::size_t max_files = 4'096;
constexpr std::size_t max_tensors = 65'536;
// Objects and arrays a manifest of that size can have: per tensor itself, its shape and its slabs; per file itself.
constexpr std::size_t max_containers = 3 * max_tensors + max_files + 16;
constexpr int max_depth = 4;

/// Ends the parsing of a document that no manifest can be, before it grows in memory.
struct too_much_structure {};

/// Thrown and caught inside this file: nlohmann's accessors leave no nicer way through a nest of values.
struct bad_manifest {
    errc kind = errc::invalid_input;
    std::string message;
};

[[noreturn]] void refuse(std::string message, errc kind = errc::invalid_input) {
    throw bad_manifest{kind, std::move(message)};
}

const json& member(const json& object, const char* key) {
    if (!object.is_object()) refuse(fmt::format("expected an object with \"{}\"", key));
    const auto found = object.find(key);
    if (found == object.end()) refuse(fmt::format("\"{}\" is missing", key));
    return *found;
}

std::uint64_t unsigned_member(const json& object, const char* key, std::uint64_t max) {
    const json& value = member(object, key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > max)
        refuse(fmt::format("\"{}\" must be a whole number from 0 to {}", key, max));
    return value.get<std::uint64_t>();
}

std::string text_member(const json& object, const char* key, std::size_t max_size) {
    const json& value = member(object, key);
    if (!value.is_string() || value.get_ref<const std::string&>().size() > max_size)
        refuse(fmt::format("\"{}\" must be a text of at most {} bytes", key, max_size));
    return value.get<std::string>();
}

const json& array_member(const json& object, const char* key, std::size_t max_size) {
    const json& value = member(object, key);
    if (!value.is_array() || value.size() > max_size)
        refuse(fmt::format("\"{}\" must be an array of at most {} values", key, max_size));
    return value;
}

sha256_digest digest_from(const json& value, std::string_view what) {
    const auto digest = value.is_string() ? sha256_digest::from_hex(value.get_ref<const std::string&>()) : std::nullopt;
    if (!digest) refuse(fmt::format("{} must be 64 hexadecimal digits", what));
    return *digest;
}

manifest_file file_from(const json& value) {
    manifest_file file;
    file.name = text_member(value, "name", 255);
    // The name may be joined to a directory or an address; it must not lead out of it.
    if (file.name.empty() || file.name == "." || file.name == ".." || file.name.find('/') != std::string::npos ||
        !std::ranges::all_of(file.name, [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; }))
        refuse("a file's \"name\" must be a plain file name");
    constexpr auto max = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    file.size_bytes = unsigned_member(value, "size_bytes", max);
    file.modified_ns = static_cast<std::int64_t>(unsigned_member(value, "modified_ns", max));
    return file;
}

/// Bytes of a tensor of known type and sane shape; refuses all others.
std::uint64_t tensor_size_bytes(const manifest_tensor& tensor) {
    const auto type = static_cast<ggml_type>(tensor.type);
    const auto block_elements = static_cast<std::uint64_t>(ggml_blck_size(type));
    std::uint64_t size_bytes = ggml_type_size(type);
    for (std::size_t i = 0; i < tensor.ne.size(); ++i) {
        auto size = static_cast<std::uint64_t>(tensor.ne[i]);
        if (i == 0) {
            if (size % block_elements != 0) refuse(fmt::format("tensor {} has broken rows", tensor.name));
            size /= block_elements;
        }
        if (__builtin_mul_overflow(size_bytes, size, &size_bytes))
            refuse(fmt::format("tensor {} is too large", tensor.name));
    }
    return size_bytes;
}

manifest_tensor tensor_from(const json& value, const std::vector<manifest_file>& files) {
    manifest_tensor tensor;
    tensor.name = text_member(value, "name", GGML_MAX_NAME - 1);
    if (tensor.name.empty() || !std::ranges::all_of(tensor.name, [](char c) { return c > ' ' && c <= '~'; }))
        refuse("a tensor's \"name\" must be printable");
    const std::string type = text_member(value, "type", 32);
    tensor.type = -1;
    for (std::int32_t known = 0; known < GGML_TYPE_COUNT; ++known)
        if (ggml_blck_size(static_cast<ggml_type>(known)) > 0 && type_name(known) == type) tensor.type = known;
    if (tensor.type < 0)
        refuse(fmt::format("tensor {} has a type this program does not know", tensor.name), errc::unsupported);
    const json& shape = array_member(value, "shape", tensor.ne.size());
    tensor.ne = {1, 1, 1, 1};
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (!shape[i].is_number_unsigned() || shape[i].get<std::uint64_t>() - 1 >= std::uint64_t{1} << 62)
            refuse(fmt::format("tensor {} has a \"shape\" of other than whole numbers from 1", tensor.name));
        tensor.ne[i] = shape[i].get<std::int64_t>();
    }
    tensor.size_bytes = tensor_size_bytes(tensor);
    if (files.empty()) refuse("it names no files");
    tensor.file_index = static_cast<std::uint32_t>(unsigned_member(value, "file", files.size() - 1));
    const std::uint64_t file_size_bytes = files[tensor.file_index].size_bytes;
    tensor.file_offset = unsigned_member(value, "offset", file_size_bytes);
    if (tensor.size_bytes > file_size_bytes - tensor.file_offset)
        refuse(fmt::format("tensor {} does not fit into its file", tensor.name));
    const std::uint64_t n_slabs = slabs_of(tensor.name, tensor.ne, tensor.size_bytes).n_slabs;
    const json& slabs = member(value, "slabs");
    if (!slabs.is_array() || slabs.size() != n_slabs)
        refuse(fmt::format("tensor {} must have {} \"slabs\"", tensor.name, n_slabs));
    for (const json& slab : slabs)
        tensor.slabs.push_back(digest_from(slab, "a slab's digest"));
    return tensor;
}

json parse_bounded(std::string_view text) {
    std::size_t n_containers = 0;
    const auto look = [&n_containers](int depth, json::parse_event_t event, json&) {
        if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start)
            if (depth > max_depth || ++n_containers > max_containers) throw too_much_structure();
        return true;
    };
    return json::parse(text, look, /*allow_exceptions=*/false);
}

}  // namespace

std::string manifest::to_json() const {
    ordered_json document;
    document["format"] = format_name;
    document["version"] = format_version;
    document["model_digest"] = model_digest_.hex();
    document["metadata_digest"] = metadata_digest_.hex();
    document["architecture"] = architecture_;
    ordered_json& files = document["files"] = ordered_json::array();
    for (const manifest_file& file : files_)
        files.push_back({{"name", file.name}, {"size_bytes", file.size_bytes}, {"modified_ns", file.modified_ns}});
    ordered_json& tensors = document["tensors"] = ordered_json::array();
    for (const manifest_tensor& tensor : tensors_) {
        ordered_json described;
        described["name"] = tensor.name;
        described["type"] = type_name(tensor.type);
        std::size_t n_dimensions = tensor.ne.size();
        while (n_dimensions > 1 && tensor.ne[n_dimensions - 1] == 1)
            --n_dimensions;
        described["shape"] =
            std::vector<std::int64_t>(tensor.ne.begin(), tensor.ne.begin() + static_cast<std::ptrdiff_t>(n_dimensions));
        described["file"] = tensor.file_index;
        described["offset"] = tensor.file_offset;
        ordered_json& slabs = described["slabs"] = ordered_json::array();
        for (const sha256_digest& slab : tensor.slabs)
            slabs.push_back(slab.hex());
        tensors.push_back(std::move(described));
    }
    // File names need not be UTF-8; one that is not makes a manifest that describes no model, not an exception.
    return document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + '\n';
}

result<manifest> manifest::parse(std::string_view text) {
    if (const std::size_t first = text.find_first_not_of(" \t\r\n");
        first == std::string_view::npos || text[first] != '{')
        return error(errc::invalid_input, "this is no manifest (no JSON object); make one with `kvasir manifest`");
    if (text.size() > max_json_size_bytes)
        return error(errc::limit_exceeded,
                     fmt::format("the manifest has {} bytes; at most {} are read", text.size(), max_json_size_bytes));
    try {
        const json document = parse_bounded(text);
        if (document.is_discarded()) return error(errc::invalid_input, "the manifest is not valid JSON");
        if (!document.is_object() || document.value("format", json()) != json(format_name))
            return error(errc::invalid_input, "this JSON is no manifest; make one with `kvasir manifest`");
        const std::uint64_t version = unsigned_member(document, "version", std::numeric_limits<std::uint64_t>::max());
        if (version != format_version)
            return error(errc::unsupported,
                         fmt::format("the manifest has format version {}, this program reads {}; make "
                                     "it again with `kvasir manifest`",
                                     version, format_version));
        manifest read;
        read.model_digest_ = digest_from(member(document, "model_digest"), "\"model_digest\"");
        read.metadata_digest_ = digest_from(member(document, "metadata_digest"), "\"metadata_digest\"");
        read.architecture_ = text_member(document, "architecture", 256);
        for (const json& file : array_member(document, "files", max_files))
            read.files_.push_back(file_from(file));
        for (const json& tensor : array_member(document, "tensors", max_tensors)) {
            read.tensors_.push_back(tensor_from(tensor, read.files_));
            const std::size_t n = read.tensors_.size();
            if (n > 1 && read.tensors_[n - 2].name >= read.tensors_[n - 1].name)
                refuse("the tensors are not in the order of their names");
        }
        const sha256_digest actual = read.digest_of_contents();
        if (actual != read.model_digest_)
            return error(errc::mismatch,
                         fmt::format("the manifest does not match itself: it names model {}, its contents "
                                     "give {}; it was altered or damaged, make or download it again",
                                     read.model_digest_.hex(), actual.hex()));
        return read;
    } catch (const too_much_structure&) {
        return error(errc::limit_exceeded,
                     "the manifest has more parts than any model; make it again with `kvasir manifest`");
    } catch (const bad_manifest& bad) {
        return error(bad.kind, fmt::format("the manifest is not valid: {}; make or download it again", bad.message));
    }
}

result<manifest> manifest::load(const std::filesystem::path& path) {
    std::error_code failure;
    const auto status = std::filesystem::status(path, failure);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
        return error(errc::io, path.string() + " is not a regular file; give a manifest's .json file");
    const auto file = mapped_file::open(path);
    if (!file) return file.error();
    auto read = parse({reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()});
    if (!read) return read.error().while_doing(path.string());
    return read;
}

result<void> manifest::save(const std::filesystem::path& path) const {
    auto file = atomic_file::create(path);
    if (!file) return file.error();
    if (auto written = file->write(to_json()); !written) return written;
    return file->commit();
}

}  // namespace kvasir::model
