// Runs a fuzz target without libFuzzer: every file of its corpus, then mutations of them, always the same ones.
//
//     <target> CORPUS_DIRECTORY MUTATIONS
//
// A mutation depends on its number alone. The target runs in a child process; when that dies, the parent makes the
// input again, saves it as <target>.crash and says how to replay it (give a directory that holds only that file, and
// 0).
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using input = std::vector<std::uint8_t>;

constexpr std::size_t max_input_size = 1U << 16;

std::vector<input> read_corpus(const std::filesystem::path& directory) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(directory))
        if (entry.is_regular_file()) paths.push_back(entry.path());
    std::ranges::sort(paths);
    std::vector<input> corpus;
    for (const auto& path : paths) {
        std::ifstream file(path, std::ios::binary);
        corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    return corpus;
}

/// One deterministic walk away from a corpus file.
class mutator {
  public:
    mutator(const std::vector<input>& corpus, std::uint32_t number) : corpus_(corpus), random_(number) {}

    input make() {
        input bytes = corpus_[below(corpus_.size())];
        const std::size_t n_steps = 1 + below(6);
        for (std::size_t step = 0; step < n_steps; ++step)
            change(bytes);
        if (bytes.size() > max_input_size) bytes.resize(max_input_size);
        return bytes;
    }

  private:
    // std::uniform_int_distribution may differ between standard libraries; a remainder does not.
    std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }

    void change(input& bytes) {
        const std::size_t at = below(bytes.size());
        switch (below(8)) {
            case 0:
                if (!bytes.empty()) bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ (1U << below(8)));
                break;
            case 1:
                if (!bytes.empty()) bytes[at] = static_cast<std::uint8_t>(below(256));
                break;
            case 2:
                bytes.resize(at);
                break;
            case 3:
                write_interesting(bytes, at);
                break;
            case 4: {  // a piece of another input, over or between
                const input& other = corpus_[below(corpus_.size())];
                const std::size_t from = below(other.size());
                const std::size_t size = below(std::min<std::size_t>(other.size() - from, 256) + 1);
                const auto first = other.begin() + static_cast<std::ptrdiff_t>(from);
                bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), first,
                             first + static_cast<std::ptrdiff_t>(size));
                break;
            }
            case 5: {  // cut a piece out
                const std::size_t size = below(std::min<std::size_t>(bytes.size() - at, 64) + 1);
                const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(at);
                bytes.erase(first, first + static_cast<std::ptrdiff_t>(size));
                break;
            }
            case 6: {  // repeat a piece
                const std::size_t size = below(std::min<std::size_t>(bytes.size() - at, 64) + 1);
                const input piece(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                                  bytes.begin() + static_cast<std::ptrdiff_t>(at + size));
                bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), piece.begin(), piece.end());
                break;
            }
            default:
                write_interesting(bytes, at & ~std::size_t{3});
                break;
        }
    }

    /// Numbers where counts, sizes and offsets break.
    void write_interesting(input& bytes, std::size_t at) {
        static constexpr std::uint64_t values[] = {0,
                                                   1,
                                                   2,
                                                   7,
                                                   8,
                                                   31,
                                                   32,
                                                   33,
                                                   64,
                                                   127,
                                                   128,
                                                   255,
                                                   256,
                                                   4096,
                                                   0x7fff,
                                                   0x8000,
                                                   0xffff,
                                                   0x1'0000,
                                                   0x7fff'ffff,
                                                   0x8000'0000,
                                                   0xffff'ffff,
                                                   0x1'0000'0000,
                                                   0x7fff'ffff'ffff'ffff,
                                                   0x8000'0000'0000'0000,
                                                   0xffff'ffff'ffff'fff8,
                                                   0xffff'ffff'ffff'ffff};
        const std::uint64_t value = values[below(std::size(values))];
        const std::size_t width = std::size_t{1} << below(4);
        for (std::size_t i = 0; i < width && at + i < bytes.size(); ++i)
            bytes[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
    }

    const std::vector<input>& corpus_;
    std::mt19937 random_;
};

/// Input `number`: the corpus first, then the mutations.
input input_number(const std::vector<input>& corpus, std::size_t number) {
    if (number < corpus.size()) return corpus[number];
    return mutator(corpus, static_cast<std::uint32_t>(number - corpus.size())).make();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s CORPUS_DIRECTORY MUTATIONS\n", argv[0]);
        return 2;
    }
    std::error_code failure;
    if (!std::filesystem::is_directory(argv[1], failure)) {
        std::fprintf(stderr, "%s: there is no corpus directory %s\n", argv[0], argv[1]);
        return 2;
    }
    const std::vector<input> corpus = read_corpus(argv[1]);
    if (corpus.empty()) {
        std::fprintf(stderr, "%s: the corpus %s is empty\n", argv[0], argv[1]);
        return 2;
    }
    const std::size_t n_inputs = corpus.size() + std::strtoul(argv[2], nullptr, 10);

    // Where the child is; shared, so that the parent still knows when the child is gone.
    void* page = ::mmap(nullptr, sizeof(std::size_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return 2;
    auto* current = static_cast<volatile std::size_t*>(page);
    const pid_t child = ::fork();
    if (child < 0) return 2;
    if (child == 0) {
        for (std::size_t number = 0; number < n_inputs; ++number) {
            *current = number;
            const input bytes = input_number(corpus, number);
            LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
        }
        return 0;  // through main, so that leaks are looked for and the target cleans up
    }
    int status = 0;
    if (::waitpid(child, &status, 0) != child) return 2;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        std::printf("%zu inputs, %zu of them from the corpus\n", n_inputs, corpus.size());
        return 0;
    }
    const input bytes = input_number(corpus, *current);
    const std::string crash_path = std::filesystem::path(argv[0]).filename().string() + ".crash";
    std::ofstream(crash_path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    std::fprintf(stderr, "input %zu failed (status %d); it is saved as %s\n", static_cast<std::size_t>(*current),
                 status, crash_path.c_str());
    return 1;
}
