// The independent check of the whole numeric chain: the demo model's logits from libllama against those from the
// framework it was trained with (tests/demo_reference/README.md), on the very weights of the committed file,
// dequantised.
#include <ggml-backend.h>
#include <gtest/gtest.h>
#include <llama.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.hpp"
#include "base/sha256.hpp"
#include "support/run_program.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::test_support {
namespace {

std::vector<float> reference_logits() {
    const std::string bytes = read_file(REFERENCE_DIR "/reference-logits.f32");
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    return values;
}

nlohmann::json reference() {
    return nlohmann::json::parse(read_file(REFERENCE_DIR "/reference.json"));
}

struct loaded_model {
    explicit loaded_model(const std::filesystem::path& path) {
        llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
        llama_backend_init();
        ggml_backend_load_all();
        llama_model_params params = llama_model_default_params();
        params.use_extra_bufts = false;
        model = llama_model_load_from_file(path.c_str(), params);
        if (model == nullptr) throw std::runtime_error("the model does not load");
        llama_context_params settings = llama_context_default_params();
        settings.n_ctx = settings.n_batch = settings.n_ubatch = 256;
        settings.n_threads = settings.n_threads_batch = 2;
        settings.type_k = settings.type_v = GGML_TYPE_F32;
        settings.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        context = llama_init_from_model(model, settings);
        if (context == nullptr) throw std::runtime_error("no context");
    }
    ~loaded_model() {
        llama_free(context);
        llama_model_free(model);
    }
    loaded_model(const loaded_model&) = delete;
    loaded_model& operator=(const loaded_model&) = delete;

    std::vector<llama_token> tokenize(const std::string& text) const {
        std::vector<llama_token> tokens(text.size() + 8);
        const std::int32_t count =
            llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<std::int32_t>(text.size()),
                           tokens.data(), static_cast<std::int32_t>(tokens.size()), true, true);
        tokens.resize(static_cast<std::size_t>(std::max(0, count)));
        return tokens;
    }

    std::vector<float> logits_of(const std::vector<llama_token>& tokens, std::size_t n_vocab) const {
        llama_batch batch = llama_batch_init(static_cast<std::int32_t>(tokens.size()), 0, 1);
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            batch.token[i] = tokens[i];
            batch.pos[i] = static_cast<llama_pos>(i);
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        batch.n_tokens = static_cast<std::int32_t>(tokens.size());
        const bool computed = llama_decode(context, batch) == 0;
        llama_batch_free(batch);
        std::vector<float> all;
        for (std::size_t i = 0; computed && i < tokens.size(); ++i) {
            const float* row = llama_get_logits_ith(context, static_cast<std::int32_t>(i));
            all.insert(all.end(), row, row + n_vocab);
        }
        return all;
    }

    llama_model* model = nullptr;
    llama_context* context = nullptr;
};

/// sum (a - b)^2 / sum b^2
double normalised_mean_square_error(const std::vector<float>& actual, const std::vector<float>& expected) {
    double error = 0.0;
    double power = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const double difference = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
        error += difference * difference;
        power += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    }
    return error / power;
}

TEST(demo_model, is_the_file_that_the_reference_was_made_from) {
    const auto file = mapped_file::open(DEMO_MODEL);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(sha256::of(file->bytes()).hex(), reference()["model_sha256"].get<std::string>());
    EXPECT_LE(file->bytes().size(), 20'000'000U);
}

TEST(demo_model, has_the_logits_of_the_training_framework) {
    const temporary_directory directory;
    const auto f32 = directory / "demo-f32.gguf";
    const program_result quantised =
        run_program({LLAMA_QUANTIZE, "--allow-requantize", DEMO_MODEL, f32.string(), "F32"});
    ASSERT_EQ(quantised.status, 0) << quantised.err;
    const loaded_model demo(f32);
    const auto expected_tokens = reference()["tokens"].get<std::vector<llama_token>>();
    EXPECT_EQ(demo.tokenize(reference()["prompt"].get<std::string>()), expected_tokens);

    const std::vector<float> expected = reference_logits();
    const auto n_vocab = reference()["n_vocab"].get<std::size_t>();
    ASSERT_EQ(expected.size(), expected_tokens.size() * n_vocab);
    const std::vector<float> actual = demo.logits_of(expected_tokens, n_vocab);
    ASSERT_EQ(actual.size(), expected.size());
    EXPECT_LT(normalised_mean_square_error(actual, expected), 1e-6);
}

}  // namespace
}  // namespace kvasir::test_support
