// plugin_host PLUGIN [public:LIBRARY | private:LIBRARY]…: a program without a ggml of its own loads libraries, then the
// plug-in, and asks it for its registry. Prints "none" or the registry's name, and whether ggml's symbols are visible
// to all afterwards. Exit status 1 when a library cannot be loaded.
#include <dlfcn.h>

#include <cstdio>
#include <string>

namespace {

void* load(const std::string& path, int visibility) {
    void* library = dlopen(path.c_str(), RTLD_NOW | visibility);
    if (library == nullptr) std::fprintf(stderr, "plugin_host: %s\n", dlerror());
    return library;
}

}  // namespace

int main(int argc, char** argv) {
    void* last_ggml = nullptr;
    for (int i = 2; i < argc; ++i) {
        const std::string argument = argv[i];
        const std::size_t colon = argument.find(':');
        last_ggml = load(argument.substr(colon + 1), argument.starts_with("public:") ? RTLD_GLOBAL : RTLD_LOCAL);
        if (last_ggml == nullptr) return 1;
    }
    void* plugin = argc > 1 ? load(argv[1], RTLD_LOCAL) : nullptr;
    if (plugin == nullptr) return 1;
    const auto init = reinterpret_cast<void* (*)()>(dlsym(plugin, "ggml_backend_init"));
    if (init == nullptr) return 1;
    void* registry = init();
    const char* name = "none";
    if (registry != nullptr && last_ggml != nullptr) {
        const auto name_of = reinterpret_cast<const char* (*)(void*)>(dlsym(last_ggml, "ggml_backend_reg_name"));
        name = name_of == nullptr ? "a registry without a name" : name_of(registry);
    }
    std::printf("registry: %s\nggml is %s\n", name,
                dlsym(RTLD_DEFAULT, "ggml_version") == nullptr ? "private" : "public");
    return 0;
}
