// npm_logits DIRECTORY CPU MODEL OUT: runs fixed tokens through a model with the prebuilt llama.cpp libraries in
// DIRECTORY and writes all logits, raw fp32, to OUT. Nothing of this build is linked: the libraries are loaded
// privately, as node does, and their functions found by name. CPU is "best" for what ggml chooses for this machine, or
// the file name of one CPU backend. With GGML_BACKEND_PATH they load the plug-in.
//
// Prints the devices, and what llama.cpp logs about the buffers of the model's weights.
#include <dlfcn.h>
#include <ggml-backend.h>
#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

/// llama.cpp and the libraries it depends on.
class library {
  public:
    explicit library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        if (handle_ == nullptr) stop(dlerror());
    }
    template <class Function>
    Function* find(const char* name) const {
        void* found = dlsym(handle_, name);
        if (found == nullptr) stop(dlerror());
        return reinterpret_cast<Function*>(found);
    }

  private:
    [[noreturn]] static void stop(const char* why) {
        std::fprintf(stderr, "npm_logits: %s\n", why == nullptr ? "unknown reason" : why);
        std::exit(1);
    }
    void* handle_;
};

#define FIND(library, function) (library).find<decltype(function)>(#function)

void print_buffers(ggml_log_level level, const char* text, void*) {
    if (std::strstr(text, "buffer size") != nullptr) std::fputs(text, stdout);
    if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

void load_backends(const library& llama, const std::string& directory, const std::string& cpu) {
    if (cpu == "best") {
        FIND(llama, ggml_backend_load_all_from_path)(directory.c_str());
    } else {
        FIND(llama, ggml_backend_load)((directory + "/" + cpu).c_str());
        if (const char* plugin = std::getenv("GGML_BACKEND_PATH")) FIND(llama, ggml_backend_load)(plugin);
    }
    for (std::size_t i = 0; i < FIND(llama, ggml_backend_dev_count)(); ++i)
        std::printf("device: %s\n", FIND(llama, ggml_backend_dev_name)(FIND(llama, ggml_backend_dev_get)(i)));
}

/// Computes a batch of consecutive tokens and writes the logits of all.
bool compute(const library& llama, llama_context* context, const std::vector<llama_token>& tokens, llama_pos first,
             std::int32_t n_vocab, std::FILE* out) {
    const auto n_tokens = static_cast<std::int32_t>(tokens.size());
    llama_batch batch = FIND(llama, llama_batch_init)(n_tokens, 0, 1);
    batch.n_tokens = n_tokens;
    for (std::int32_t i = 0; i < n_tokens; ++i) {
        batch.token[i] = tokens[static_cast<std::size_t>(i)];
        batch.pos[i] = first + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    bool done = FIND(llama, llama_decode)(context, batch) == 0;
    for (std::int32_t i = 0; done && i < n_tokens; ++i) {
        const float* logits = FIND(llama, llama_get_logits_ith)(context, i);
        const auto n_values = static_cast<std::size_t>(n_vocab);
        done = logits != nullptr && std::fwrite(logits, sizeof(float), n_values, out) == n_values;
    }
    FIND(llama, llama_batch_free)(batch);
    return done;
}

bool run(const library& llama, const char* model_path, std::FILE* out) {
    llama_model_params model_params = FIND(llama, llama_model_default_params)();
    model_params.use_extra_bufts = false;  // weight repacking changes bits
    llama_model* model = FIND(llama, llama_model_load_from_file)(model_path, model_params);
    if (model == nullptr) return false;
    llama_context_params params = FIND(llama, llama_context_default_params)();
    params.n_ctx = 128;
    params.n_threads = params.n_threads_batch = 1;
    llama_context* context = FIND(llama, llama_init_from_model)(model, params);
    if (context == nullptr) return false;

    const std::int32_t n_vocab = FIND(llama, llama_vocab_n_tokens)(FIND(llama, llama_model_get_vocab)(model));
    std::mt19937 random(9);
    const auto token = [&] { return static_cast<llama_token>(random() % static_cast<std::uint32_t>(n_vocab)); };
    std::vector<llama_token> prompt(24);
    for (llama_token& one : prompt)
        one = token();
    bool done = compute(llama, context, prompt, 0, n_vocab, out);
    for (llama_pos i = 0; done && i < 8; ++i)
        done = compute(llama, context, {token()}, 24 + i, n_vocab, out);
    FIND(llama, llama_free)(context);
    FIND(llama, llama_model_free)(model);
    return done;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: %s DIRECTORY best|CPU-BACKEND MODEL OUT\n", argv[0]);
        return 2;
    }
    const std::string directory = argv[1];
    const library llama(directory + "/libllama.v0.4.0.so");
    FIND(llama, llama_log_set)(print_buffers, nullptr);
    load_backends(llama, directory, argv[2]);
    FIND(llama, llama_backend_init)();
    std::FILE* out = std::fopen(argv[4], "wb");
    if (out == nullptr) return 1;
    const bool done = run(llama, argv[3], out);
    return std::fclose(out) == 0 && done ? 0 : 1;
}
