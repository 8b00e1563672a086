// Model files: any bytes are opened or refused. What is opened can be mapped, hashed, and if it is a MoE model, sliced;
// its slice can be opened and verified. The files of a split model stand in one input with a line between them.
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.hpp"

namespace {

using namespace kvasir;
using namespace kvasir::model;

constexpr std::string_view separator = "\n--next file--\n";
constexpr std::size_t max_files = 9;

void require(bool condition) {
    if (!condition) __builtin_trap();
}

/// A directory in memory, where there is one; gone with the process.
class scratch_directory {
  public:
    scratch_directory() {
        std::string pattern = std::filesystem::is_directory("/dev/shm") ? "/dev/shm/" : "/tmp/";
        pattern += "kvasir-gguf-fuzz-XXXXXX";
        require(::mkdtemp(pattern.data()) != nullptr);
        path_ = pattern;
    }
    ~scratch_directory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    std::filesystem::path write(const std::string& name, std::string_view bytes) const {
        std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        return path_ / name;
    }
    std::filesystem::path operator/(const char* name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

std::filesystem::path write_files(const scratch_directory& scratch, std::string_view bytes) {
    std::vector<std::string_view> parts;
    for (std::size_t end; (end = bytes.find(separator)) != std::string_view::npos && parts.size() + 1 < max_files;) {
        parts.push_back(bytes.substr(0, end));
        bytes.remove_prefix(end + separator.size());
    }
    parts.push_back(bytes);
    if (parts.size() == 1) return scratch.write("model.gguf", bytes);
    std::filesystem::path last;
    for (std::size_t i = 0; i < parts.size(); ++i)
        last = scratch.write("model-0000" + std::to_string(i + 1) + "-of-0000" + std::to_string(parts.size()) + ".gguf",
                             parts[i]);
    return last;
}

void use(const gguf_model& opened, const scratch_directory& scratch) {
    std::uint64_t size_bytes = 0;
    for (const tensor_info& tensor : opened.tensors()) {
        require(opened.find_tensor(tensor.name) == &tensor);
        size_bytes += tensor.data.size();
        if (!tensor.data.empty())
            require(tensor.data.front() == tensor.data.front() && tensor.data.back() == tensor.data.back());
    }
    require(size_bytes <= opened.size_bytes());
    static_cast<void>(opened.hyper_parameter("expert_used_count"));
    for (const metadata_entry& entry : opened.metadata()) {
        static_cast<void>(opened.integer(entry.key));
        static_cast<void>(opened.real(entry.key));
        static_cast<void>(opened.text(entry.key));
        static_cast<void>(opened.integers(entry.key));
    }
    const auto experts = map_experts(opened);
    const auto info = read_slice_info(opened);
    require(experts || experts.error().code != errc::internal);
    if (is_slice(opened)) {
        require(!info || experts);
        return;
    }
    require(!info);
    const auto made = manifest::compute(opened, {.n_threads = 1, .progress = {}});
    if (!made) return;
    const auto read = manifest::parse(made->to_json());
    require(read.has_value() && read->describes(opened));
    if (!experts) return;
    const auto written = write_slice(opened, expert_selection::all(), made->model_digest(), scratch / "slice.gguf");
    require(written.has_value());
    const auto slice = gguf_model::open(scratch / "slice.gguf");
    require(slice.has_value());
    require(verify_slice(*slice, *made, {.n_threads = 1, .progress = {}}).has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const scratch_directory scratch;
    const auto path = write_files(scratch, {reinterpret_cast<const char*>(data), size});
    const auto opened = gguf_model::open(path);
    if (!opened) {
        require(opened.error().code != errc::internal && !opened.error().message.empty());
        return 0;
    }
    use(*opened, scratch);
    return 0;
}
