// stock_logits MODEL OUT SCENARIO[,SCENARIO…]: runs fixed sequences of tokens through a model with only libllama and
// writes all logits, raw fp32, to OUT. It links no line of Kvasir; with GGML_BACKEND_PATH it loads the plug-in as any
// llama.cpp program would. One line on stdout per computed batch, so that who watches can interfere in the middle.
//
// Scenarios: `batch` (the prompt in one batch, then token by token), `micro` (in micro-batches of 5), `sequences`
// (three sequences in every batch), `long` (as `batch`, with more tokens).
#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

struct scenario {
    std::uint32_t n_prompt = 24;
    std::uint32_t n_decode = 6;
    std::uint32_t n_ubatch = 512;
    std::uint32_t n_sequences = 1;
    int n_threads = 1;
};

bool read_scenario(const std::string& name, scenario& chosen) {
    if (name == "micro") chosen.n_ubatch = 5;
    if (name == "sequences") chosen.n_sequences = 3;
    if (name == "long") chosen = {48, 64, 512, 1};
    return name == "batch" || name == "micro" || name == "sequences" || name == "long";
}

class runner {
  public:
    runner(llama_context* context, std::int32_t n_vocab, std::FILE* out)
        : context_(context), n_vocab_(n_vocab), out_(out), batch_(llama_batch_init(512, 0, 1)) {}
    ~runner() { llama_batch_free(batch_); }
    runner(const runner&) = delete;
    runner& operator=(const runner&) = delete;

    void add(llama_token token, llama_pos position, llama_seq_id sequence) {
        const std::int32_t i = batch_.n_tokens++;
        batch_.token[i] = token;
        batch_.pos[i] = position;
        batch_.n_seq_id[i] = 1;
        batch_.seq_id[i][0] = sequence;
        batch_.logits[i] = 1;
    }

    bool compute() {
        if (llama_decode(context_, batch_) != 0) return false;
        for (std::int32_t i = 0; i < batch_.n_tokens; ++i) {
            const float* logits = llama_get_logits_ith(context_, i);
            if (logits == nullptr) return false;
            std::fwrite(logits, sizeof(float), static_cast<std::size_t>(n_vocab_), out_);
        }
        batch_.n_tokens = 0;
        std::puts("batch");
        return std::fflush(stdout) == 0;
    }

  private:
    llama_context* context_;
    std::int32_t n_vocab_;
    std::FILE* out_;
    llama_batch batch_;
};

bool run(runner& run, const scenario& chosen, std::int32_t n_vocab) {
    // Far from the specials at the end of a vocabulary, and the same in every run.
    std::mt19937 random(7);
    const auto token = [&] { return static_cast<llama_token>(random() % static_cast<std::uint32_t>(n_vocab)); };
    for (std::uint32_t i = 0; i < chosen.n_prompt; ++i)
        for (std::uint32_t s = 0; s < chosen.n_sequences; ++s)
            run.add(token(), static_cast<llama_pos>(i), static_cast<llama_seq_id>(s));
    if (!run.compute()) return false;
    for (std::uint32_t i = 0; i < chosen.n_decode; ++i) {
        for (std::uint32_t s = 0; s < chosen.n_sequences; ++s)
            run.add(token(), static_cast<llama_pos>(chosen.n_prompt + i), static_cast<llama_seq_id>(s));
        if (!run.compute()) return false;
    }
    return true;
}

bool run_scenario(llama_model* model, const scenario& chosen, std::FILE* out) {
    const std::int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_batch = 512;
    params.n_ubatch = chosen.n_ubatch;
    params.n_seq_max = chosen.n_sequences;
    params.kv_unified = true;
    params.n_threads = params.n_threads_batch = chosen.n_threads;
    params.no_perf = true;
    llama_context* context = llama_init_from_model(model, params);
    if (context == nullptr) return false;
    bool done = false;
    {
        runner with(context, n_vocab, out);
        done = run(with, chosen, n_vocab);
    }
    llama_free(context);
    return done;
}

bool read_scenarios(const std::string& names, std::vector<scenario>& chosen) {
    for (std::size_t begin = 0; begin <= names.size();) {
        const std::size_t end = std::min(names.find(',', begin), names.size());
        if (!read_scenario(names.substr(begin, end - begin), chosen.emplace_back())) return false;
        begin = end + 1;
    }
    return !chosen.empty();
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<scenario> chosen;
    if (argc != 4 || !read_scenarios(argv[3], chosen)) {
        std::fprintf(stderr, "usage: %s MODEL OUT batch|micro|sequences|long\n", argv[0]);
        return 2;
    }
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
            if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    llama_backend_init();
    ggml_backend_load_all();

    llama_model_params model_params = llama_model_default_params();
    model_params.use_extra_bufts = false;  // weight repacking changes bits
    llama_model* model = llama_model_load_from_file(argv[1], model_params);
    if (model == nullptr) return 1;

    std::FILE* out = std::fopen(argv[2], "wb");
    if (out == nullptr) return 1;
    bool done = true;
    for (const scenario& one : chosen)
        done = done && run_scenario(model, one, out);
    const bool written = std::fclose(out) == 0;
    llama_model_free(model);
    return done && written ? 0 : 1;
}
