// Stock llama.cpp programs of this build with the plug-in loaded and no worker there: they run as they do without it.
#include <gmock/gmock.h>

#include <sstream>

#include "model/manifest.hpp"
#include "support/run_program.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::test_support {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string plugin = "GGML_BACKEND_PATH=" KVASIR_PLUGIN;
// What the programs that list devices call this one.
const std::string device_description = "routed experts, here or on other machines";

std::vector<std::string> lines_with(const std::string& text, const std::string& part) {
    std::vector<std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
        if (line.find(part) != std::string::npos) found.push_back(line);
    return found;
}

TEST(stock_programs, llama_bench_runs) {
    const program_result done = run_program(
        {LLAMA_BENCH, "-m", DEMO_MODEL, "-p", "16", "-n", "4", "-r", "1", "-t", "1", "-o", "json"}, {plugin});
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr(device_description));
    EXPECT_THAT(done.err, Not(HasSubstr("kvasir:"))) << "a complaint, with no worker named";
}

/// llama.cpp's own test: every architecture on every device against its CPU backend, and saved and loaded again.
TEST(stock_programs, every_architecture_computes_on_the_device) {
    const program_result done = run_program({ARCHS_WITH_PLUGIN, "-s", "1"}, {plugin});
    EXPECT_EQ(done.status, 0) << done.out << done.err;
    EXPECT_THAT(done.out, Not(HasSubstr("FAIL")));
    std::size_t n_computed = 0;
    std::size_t n_computed_moe = 0;
    for (const std::string& line : lines_with(done.out, device_description)) {
        if (line.find("OK") == std::string::npos) continue;
        ++n_computed;
        n_computed_moe += line.find("MoE") != std::string::npos ? 1 : 0;
    }
    EXPECT_GE(n_computed, 100U) << done.out;
    EXPECT_GE(n_computed_moe, 40U) << done.out;
}

/// Whatever operation it is shown, the device looks at it calmly, and takes none that is not on experts' weights.
TEST(stock_programs, no_operation_of_test_backend_ops_is_claimed) {
    const temporary_directory directory;
    const auto model = model::gguf_model::open(DEMO_MODEL);
    ASSERT_TRUE(model);
    const auto manifest = model::manifest::compute(*model);
    ASSERT_TRUE(manifest && manifest->save(directory / "manifest.json"));
    const std::string named = "KVASIR_MANIFEST=" + (directory / "manifest.json").string();
    for (const std::string workers : {"KVASIR_WORKERS=", "KVASIR_WORKERS=127.0.0.1:1"}) {
        const program_result done =
            run_program({TEST_BACKEND_OPS, "support", "-b", "KVASIR"}, {plugin, workers, named});
        EXPECT_EQ(done.status, 0) << done.err;
        EXPECT_THAT(done.err, Not(HasSubstr("kvasir:")));
        EXPECT_THAT(done.out, HasSubstr(device_description));
        EXPECT_GE(lines_with(done.out, "NOT SUPPORTED").size(), 10'000U);
        EXPECT_EQ(lines_with(done.out, "SUPPORTED").size(), lines_with(done.out, "NOT SUPPORTED").size());
    }
}

}  // namespace
}  // namespace kvasir::test_support
