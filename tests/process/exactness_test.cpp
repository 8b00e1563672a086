// The product's promise, at process level: for every MoE architecture that llama.cpp knows, the logits with experts on
// worker processes have the bits that the stock library computes alone.
//
// The stock side is `stock_logits`, which links nothing of Kvasir. The swarm side is the same program with the plug-in
// named in GGML_BACKEND_PATH, and `kvasir verify` for the backend linked in.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "process/swarm_fixture.hpp"
#include "support/run_program.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::test_support {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// The generator's "-moe" files of a few architectures have no experts in them.
bool has_routed_experts(const fs::path& path) {
    const auto model = model::gguf_model::open(path);
    return model && model::map_experts(*model);
}

/// Random tiny models of all architectures, written once per process by llama.cpp's own generator.
const std::vector<fs::path>& generated_models() {
    static const temporary_directory directory;
    static const std::vector<fs::path> models = [] {
        const program_result made = run_program({TEST_LLAMA_ARCHS, "-o", directory.path().string(), "-s", "1"});
        std::vector<fs::path> found;
        for (const auto& entry : fs::directory_iterator(directory.path()))
            if (entry.path().stem().string().ends_with("-moe") && has_routed_experts(entry.path()))
                found.push_back(entry.path());
        std::ranges::sort(found);
        if (found.size() < 40) throw std::runtime_error("only some models were generated: " + made.out + made.err);
        return found;
    }();
    return models;
}

/// Models whose experts never reach a worker. Everything else must. Refact: llama.cpp's graph of it has no experts, the
/// generator writes some all the same.
const std::set<std::string> architectures_without_expert_graph = {"refact-moe"};

struct run {
    std::string logits;
    bool ok = false;
    std::string err;
};

run run_stock(const fs::path& model, const std::string& scenario, const std::vector<std::string>& environment = {}) {
    const temporary_directory directory;
    const fs::path out = directory / "logits.f32";
    const program_result done = run_program({STOCK_LOGITS, model.string(), out.string(), scenario}, environment);
    run result;
    result.ok = done.status == 0;
    result.err = done.err;
    if (result.ok) result.logits = read_file(out);
    return result;
}

std::size_t count_differences(const std::string& left, const std::string& right) {
    if (left.size() != right.size()) return std::max(left.size(), right.size()) / sizeof(float);
    std::size_t differing = 0;
    for (std::size_t i = 0; i < left.size(); i += sizeof(float))
        if (left.compare(i, sizeof(float), right, i, sizeof(float)) != 0) ++differing;
    return differing;
}

model::expert_map experts_of(const model::gguf_model& model) {
    return *model::map_experts(model);
}

/// Compares all scenarios, or the first alone where the stock library itself cannot do all of them.
void expect_exact(const fs::path& path, const spread& how, const std::string& all_scenarios) {
    SCOPED_TRACE(path.stem().string() + " on " + std::to_string(how.n_workers) + " workers");
    const auto model = model::gguf_model::open(path);
    ASSERT_TRUE(model) << model.error().message;
    std::string scenarios = all_scenarios;
    run stock = run_stock(path, scenarios);
    if (!stock.ok) {
        scenarios = scenarios.substr(0, scenarios.find(','));
        stock = run_stock(path, scenarios);
    }
    ASSERT_TRUE(stock.ok) << "the stock library could run nothing: " << stock.err;
    worker_swarm swarm(path, spread_experts(experts_of(*model), how));
    const run swarmed = run_stock(path, scenarios, swarm.plugin_environment());
    ASSERT_TRUE(swarmed.ok) << scenarios << ": " << swarmed.err;
    EXPECT_EQ(count_differences(stock.logits, swarmed.logits), 0U) << scenarios << ": " << swarmed.err;
    std::uint64_t rows = 0;
    for (const worker_summary& summary : swarm.finish())
        rows += summary.rows;
    if (architectures_without_expert_graph.contains(path.stem().string())) return;
    EXPECT_GT(rows, 0U) << "no worker computed anything: " << swarmed.err;
}

void expect_all_exact(const std::vector<fs::path>& models, std::size_t n_workers, const std::string& scenarios) {
    std::uint32_t seed = 0;
    for (const fs::path& model : models)
        expect_exact(model, {.n_workers = n_workers, .seed = ++seed}, scenarios);
}

/// Quantised copies of all generated models; llama-quantize takes another type for tensors that a type does not fit.
std::vector<fs::path> quantised(const std::string& type, const temporary_directory& directory) {
    std::vector<fs::path> made;
    for (const fs::path& model : generated_models()) {
        const fs::path out = directory / (model.stem().string() + ".gguf");
        const program_result done = run_program({LLAMA_QUANTIZE, model.string(), out.string(), type, "2"});
        if (done.status == 0) made.push_back(out);
    }
    return made;
}

TEST(exactness, every_moe_architecture_on_one_worker) {
    expect_all_exact(generated_models(), 1, "batch,micro,sequences");
}

TEST(exactness, every_moe_architecture_on_two_workers) {
    expect_all_exact(generated_models(), 2, "batch,micro,sequences");
}

TEST(exactness, every_moe_architecture_on_five_workers) {
    expect_all_exact(generated_models(), 5, "batch,sequences");
}

class quantised_exactness : public ::testing::TestWithParam<std::string> {};

TEST_P(quantised_exactness, every_moe_architecture_on_two_workers) {
    const temporary_directory directory;
    const auto models = quantised(GetParam(), directory);
    ASSERT_GE(models.size(), 35U) << "llama-quantize refused too many models";
    expect_all_exact(models, 2, "batch,micro");
}

INSTANTIATE_TEST_SUITE_P(types, quantised_exactness, ::testing::Values("Q8_0", "Q4_K_M", "Q6_K", "IQ4_XS", "MXFP4_MOE"),
                         [](const auto& info) { return info.param; });

TEST(exactness, demo_model_on_one_two_and_five_workers) {
    for (const std::size_t n_workers : {1, 2, 5})
        expect_exact(DEMO_MODEL, {.n_workers = n_workers, .seed = 3}, "batch,micro,sequences");
}

TEST(exactness, split_model) {
    const temporary_directory directory;
    const program_result split = run_program({LLAMA_GGUF_SPLIT, "--split", "--split-max-tensors", "40",
                                              "--no-tensor-first-split", DEMO_MODEL, (directory / "demo").string()});
    ASSERT_EQ(split.status, 0) << split.err;
    std::vector<fs::path> parts;
    for (const std::string& name : directory.names())
        parts.push_back(directory / name);
    ASSERT_GT(parts.size(), 2U);
    expect_exact(parts.front(), {.n_workers = 2, .seed = 4}, "batch,sequences");
}

/// Starts the program with the plug-in, kills workers when it has computed some batches, and lets it end.
TEST(exactness, killed_workers_change_nothing) {
    const run stock = run_stock(DEMO_MODEL, "long");
    ASSERT_TRUE(stock.ok) << stock.err;
    const auto model = model::gguf_model::open(DEMO_MODEL);
    ASSERT_TRUE(model);
    worker_swarm swarm(DEMO_MODEL, spread_experts(experts_of(*model), {.n_workers = 3, .nobody = 0.0, .seed = 5}));
    const temporary_directory directory;
    const fs::path out = directory / "logits.f32";
    std::vector<std::string> arguments = swarm.plugin_environment();
    for (const std::string& word :
         {std::string(STOCK_LOGITS), std::string(DEMO_MODEL), out.string(), std::string("long")})
        arguments.push_back(word);
    auto program = cli::child_process::start("/usr/bin/env", arguments);
    ASSERT_TRUE(program);
    std::size_t n_batches = 0;
    while (program->read_line(std::chrono::seconds(60))) {
        ++n_batches;
        if (n_batches == 10) swarm.workers()[0].process.kill_now();
        if (n_batches == 20) swarm.workers()[1].process.kill_now();
        if (n_batches == 30) swarm.workers()[2].process.kill_now();
    }
    EXPECT_EQ(n_batches, 65U);
    EXPECT_EQ(count_differences(stock.logits, read_file(out)), 0U);
}

TEST(exactness, missing_workers_change_nothing) {
    const run stock = run_stock(DEMO_MODEL, "batch");
    const auto model = model::gguf_model::open(DEMO_MODEL);
    ASSERT_TRUE(model);
    worker_swarm swarm(DEMO_MODEL, spread_experts(experts_of(*model), {.n_workers = 2, .seed = 6}));
    const auto environment = swarm.plugin_environment();
    for (test_worker& worker : swarm.workers())
        worker.process.kill_now();
    const run swarmed = run_stock(DEMO_MODEL, "batch", environment);
    ASSERT_TRUE(swarmed.ok) << swarmed.err;
    EXPECT_EQ(count_differences(stock.logits, swarmed.logits), 0U);
    EXPECT_THAT(swarmed.err, HasSubstr("kvasir: worker "));
}

std::string output_of(const std::vector<std::string>& words, const std::vector<std::string>& environment = {}) {
    const program_result done = run_program(words, environment);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.out;
}

TEST(stock_programs, llama_completion_writes_the_same_text_through_the_plug_in) {
    const std::vector<std::string> words = {
        LLAMA_COMPLETION, "-m", DEMO_MODEL, "-p",       "And it came to pass", "-n", "40", "--temp", "0", "-no-cnv",
        "--no-repack",    "-t", "2",        "--no-perf"};
    const auto model = model::gguf_model::open(DEMO_MODEL);
    ASSERT_TRUE(model);
    worker_swarm swarm(DEMO_MODEL, spread_experts(experts_of(*model), {.n_workers = 2, .seed = 7}));
    const std::string stock = output_of(words);
    EXPECT_THAT(stock, HasSubstr("And it came to pass"));
    EXPECT_EQ(stock, output_of(words, swarm.plugin_environment()));
    for (const worker_summary& summary : swarm.finish())
        EXPECT_GT(summary.rows, 0U);
}

std::vector<std::string> verify_words(const fs::path& model, const worker_swarm& swarm) {
    std::vector<std::string> words = {KVASIR_BINARY, "verify", "-m", model.string(), "--decode", "8", "-t", "1"};
    for (const std::string& argument : swarm.worker_arguments())
        words.push_back(argument);
    return words;
}

TEST(verify, says_exact_for_correct_workers) {
    const auto model = model::gguf_model::open(DEMO_MODEL);
    ASSERT_TRUE(model);
    worker_swarm swarm(DEMO_MODEL, spread_experts(experts_of(*model), {.n_workers = 3, .seed = 8}));
    const program_result done = run_program(verify_words(DEMO_MODEL, swarm));
    EXPECT_EQ(done.status, 0) << done.out << done.err;
    EXPECT_THAT(done.out, HasSubstr("EXACT"));
}

/// Flips one bit of one weight in the middle of the slice's tensor data.
void corrupt(const fs::path& slice) {
    std::string bytes = read_file(slice);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x40);
    write_file(slice, bytes);
}

/// A swarm of one worker that holds one expert of the first layer, one that the router really chooses.
std::unique_ptr<worker_swarm> one_used_expert() {
    for (std::uint32_t expert = 0; expert < 16; ++expert) {
        auto swarm = std::make_unique<worker_swarm>(DEMO_MODEL, std::vector{"0:" + std::to_string(expert)});
        const program_result done = run_program(verify_words(DEMO_MODEL, *swarm));
        if (done.status == 0) return swarm;
        EXPECT_THAT(done.err, HasSubstr("no worker computed anything"));
    }
    throw std::runtime_error("the router chooses no expert of the first layer");
}

TEST(verify, fails_when_one_byte_of_one_slice_is_corrupt) {
    const auto swarm = one_used_expert();
    corrupt(swarm->workers()[0].slice);
    swarm->restart(0, {"--skip-slice-check"});
    const program_result done = run_program(verify_words(DEMO_MODEL, *swarm));
    EXPECT_EQ(done.status, 1) << done.out << done.err;
    EXPECT_THAT(done.out, HasSubstr("DIFFERENT"));
}

TEST(verify, fails_without_a_named_worker) {
    const program_result done = run_program({KVASIR_BINARY, "verify", "-m", DEMO_MODEL, "--worker", "127.0.0.1:1"});
    EXPECT_EQ(done.status, 1);
    EXPECT_THAT(done.err, HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace kvasir::test_support
