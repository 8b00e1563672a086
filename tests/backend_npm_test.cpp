// The plug-in inside llama.cpp libraries that this project did not build: those that npm ships. They are of the same
// release, but of another compiler, and they choose among CPU backends for the machine they run on.
#include <gmock/gmock.h>

#include "process/swarm_fixture.hpp"
#include "support/run_program.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::test_support {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct run {
    program_result program;
    std::string logits;
};

run run_npm(const std::string& cpu, const std::vector<std::string>& environment) {
    const temporary_directory directory;
    run done;
    done.program =
        run_program({NPM_LOGITS, NPM_LIBRARIES, cpu, DEMO_MODEL, (directory / "logits").string()}, environment);
    EXPECT_EQ(done.program.status, 0) << done.program.err;
    if (done.program.status == 0) done.logits = read_file(directory / "logits");
    return done;
}

void expect_equal(const run& left, const run& right) {
    ASSERT_GE(left.logits.size(), 32U * 256U * sizeof(float)) << "too few logits to compare";
    EXPECT_TRUE(left.logits == right.logits) << "the logits differ\n" << right.program.err;
}

/// The CPU backend that ggml chooses here, and the one for the instruction sets that this build uses.
class npm_libraries : public ::testing::TestWithParam<const char*> {};

TEST_P(npm_libraries, keep_their_bits_with_the_plug_in) {
    const run plain = run_npm(GetParam(), {});
    EXPECT_THAT(plain.program.out, Not(HasSubstr("KVASIR")));
    const run plugged = run_npm(GetParam(), {"GGML_BACKEND_PATH=" KVASIR_PLUGIN});
    EXPECT_THAT(plugged.program.out, HasSubstr("device: KVASIR"));
    EXPECT_THAT(plugged.program.out, HasSubstr("KVASIR model buffer size"));
    EXPECT_THAT(plugged.program.err, IsEmpty());
    expect_equal(plain, plugged);
}

/// A worker of this build computes for them if it has their numerics, to the bit; if not, it is refused for that
/// reason.
TEST_P(npm_libraries, keep_their_bits_with_a_worker_of_this_build) {
    const run plain = run_npm(GetParam(), {});
    worker_swarm swarm(DEMO_MODEL, {"all"});
    const run swarmed = run_npm(GetParam(), swarm.plugin_environment());
    expect_equal(plain, swarmed);
    const std::vector<worker_summary> summaries = swarm.finish();
    ASSERT_EQ(summaries.size(), 1U);
    if (summaries[0].rows > 0) {
        EXPECT_THAT(swarmed.program.err, HasSubstr("joined"));
    } else {
        EXPECT_THAT(swarmed.program.err, HasSubstr("is refused")) << "the worker did nothing, for no reason";
        EXPECT_THAT(swarmed.program.err, HasSubstr("numerics"));
    }
}

INSTANTIATE_TEST_SUITE_P(cpus, npm_libraries, ::testing::Values("best", "libggml-cpu-haswell.so"),
                         [](const auto& info) { return std::string(info.param) == "best" ? "best" : "haswell"; });

}  // namespace
}  // namespace kvasir::test_support
