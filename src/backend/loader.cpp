// libggml-kvasir.so: what a llama.cpp program loads through GGML_BACKEND_PATH.
//
// It links no ggml library, because programs bring theirs under different names (libggml-base.so.0 here,
// libggml-base.so in the npm packages), and a second copy in the process would have a registry of its own. It finds the
// program's ggml among the loaded libraries, checks that it is the version this plug-in was built for, makes its
// symbols visible, and only then loads libkvasir-backend.so from its own directory, whose ggml symbols are open.
#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

struct ggml_backend_reg;

namespace {

using registry_function = ggml_backend_reg* (*)();
using version_function = const char* (*)();

constexpr const char* expected_version = KVASIR_GGML_VERSION;
constexpr const char* backend_library = "libkvasir-backend.so";

void refuse(const std::string& why) {
    std::fprintf(stderr, "kvasir: the plug-in cannot be used: %s\n", why.c_str());
}

int collect_ggml_library(dl_phdr_info* info, std::size_t, void* into) {
    const char* path = info->dlpi_name;
    if (path == nullptr) return 0;
    const char* slash = std::strrchr(path, '/');
    const char* file = slash == nullptr ? path : slash + 1;
    const bool is_ggml = std::strncmp(file, "libggml-base.", 13) == 0 || std::strncmp(file, "libggml.", 8) == 0;
    if (is_ggml) static_cast<std::vector<std::string>*>(into)->emplace_back(path);
    return 0;
}

/// The ggml libraries that the program has loaded, publicly or privately (as node and Python do).
std::vector<std::string> loaded_ggml_libraries() {
    std::vector<std::string> paths;
    dl_iterate_phdr(collect_ggml_library, &paths);
    return paths;
}

/// In a loaded library and what it depends on; null when it is not there.
version_function find_version(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return nullptr;
    const auto version = reinterpret_cast<version_function>(dlsym(library, "ggml_version"));
    dlclose(library);  // the program holds it
    return version;
}

/// Empty when the program's ggml is the one this plug-in was built for. Changes nothing in the process.
std::string version_problem(const std::vector<std::string>& libraries) {
    auto version = reinterpret_cast<version_function>(dlsym(RTLD_DEFAULT, "ggml_version"));
    for (auto path = libraries.begin(); version == nullptr && path != libraries.end(); ++path)
        version = find_version(*path);
    if (version == nullptr)
        return "this program shows no shared ggml library (is ggml linked into it statically?); use a build of "
               "llama.cpp with shared libraries";
    if (std::strcmp(version(), expected_version) != 0)
        return std::string("it was built for ggml ") + expected_version + " and this program has ggml " + version() +
               "; use the llama.cpp release that Kvasir was built with, or build Kvasir for this one";
    return {};
}

/// Makes the symbols of the program's ggml visible to what is loaded next; none is loaded anew. The handles are kept:
/// the libraries stay as long as the process.
void promote(const std::vector<std::string>& libraries) {
    for (const std::string& path : libraries)
        dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

std::string own_directory() {
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(&own_directory), &info) == 0 || info.dli_fname == nullptr) return ".";
    const std::string path = info.dli_fname;
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

registry_function load_backend(std::string& problem) {
    const std::string path = own_directory() + "/" + backend_library;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* why = dlerror();
        problem = std::string("loading ") + backend_library + " failed: " + (why == nullptr ? "unknown reason" : why);
        return nullptr;
    }
    const auto entry = reinterpret_cast<registry_function>(dlsym(library, "kvasir_backend_registry"));
    if (entry == nullptr) problem = path + " is not Kvasir's backend; install both files of one build together";
    return entry;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ggml_backend_reg* ggml_backend_init() {
    const std::vector<std::string> libraries = loaded_ggml_libraries();
    std::string problem = version_problem(libraries);
    if (problem.empty()) {
        promote(libraries);
        if (const registry_function entry = load_backend(problem)) return entry();
    }
    refuse(problem);
    return nullptr;
}
