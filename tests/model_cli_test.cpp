// The commands inspect, slice and manifest, run as a user runs them.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "support/model_builder.hpp"
#include "support/raw_gguf.hpp"
#include "support/run_program.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir {
namespace {

using namespace test_support;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using json = nlohmann::json;

class commands : public ::testing::Test {
  protected:
    commands() {
        std::mt19937 random(21);
        build_moe({.n_layers = 4, .n_experts = 8, .types = {GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K}}, random)
            .write(directory_ / "m.gguf");
    }

    std::string path(std::string_view name) const { return (directory_ / name).string(); }

    program_result kvasir(std::vector<std::string> arguments) const {
        arguments.insert(arguments.begin(), KVASIR_BINARY);
        return run_program(arguments, {"XDG_CACHE_HOME=" + path("cache")});
    }

    /// Runs it, expects one line on stderr that begins as it must, and nothing new in the directory; returns the line.
    std::string complaint(const std::vector<std::string>& arguments, int status = 1) const {
        const auto before = directory_.names();
        const program_result result = kvasir(arguments);
        EXPECT_EQ(result.status, status) << result.err;
        EXPECT_THAT(result.out, IsEmpty());
        EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
        EXPECT_THAT(result.err, StartsWith("kvasir"));
        EXPECT_EQ(directory_.names(), before);
        return result.err;
    }

    temporary_directory directory_;
};

TEST_F(commands, show_their_version_and_help) {
    const program_result version = kvasir({"--version"});
    EXPECT_EQ(version.status, 0);
    EXPECT_THAT(version.out, AllOf(ContainsRegex("kvasir [0-9]+\\.[0-9]+"), HasSubstr("llama.cpp"), HasSubstr("ggml")));
    for (const auto& arguments : std::vector<std::vector<std::string>>{
             {"--help"}, {"inspect", "--help"}, {"slice", "--help"}, {"manifest", "--help"}}) {
        const program_result help = kvasir(arguments);
        EXPECT_EQ(help.status, 0);
        EXPECT_THAT(help.out, HasSubstr("Usage: kvasir"));
        EXPECT_THAT(help.err, IsEmpty());
    }
}

TEST_F(commands, refuse_what_they_do_not_understand) {
    EXPECT_THAT(complaint({}, 2), AllOf(StartsWith("kvasir: "), HasSubstr("kvasir --help")));
    EXPECT_THAT(complaint({"inpsect"}, 2), HasSubstr("there is no command \"inpsect\""));
    EXPECT_THAT(complaint({"--nonsense"}, 2), HasSubstr("kvasir --help"));
    EXPECT_THAT(complaint({"inspect"}, 2), AllOf(StartsWith("kvasir inspect: "), HasSubstr("MODEL is required")));
    EXPECT_THAT(complaint({"inspect", "a", "b"}, 2), HasSubstr("kvasir inspect --help"));
    EXPECT_THAT(complaint({"slice", path("m.gguf")}, 2), HasSubstr("required"));
    EXPECT_THAT(complaint({"manifest"}, 2), HasSubstr("required"));
    EXPECT_THAT(complaint({"manifest", "--check", "a"}, 2), HasSubstr("--against"));
    EXPECT_THAT(complaint({"manifest", path("m.gguf"), "--threads", "0"}, 2), HasSubstr("--threads"));
    EXPECT_THAT(complaint({"slice", path("m.gguf"), "--experts", "1:x", "-o", path("s.gguf")}, 2),
                HasSubstr("expected an expert number"));
}

TEST_F(commands, inspect_a_model) {
    const program_result shown = kvasir({"inspect", path("m.gguf")});
    EXPECT_EQ(shown.status, 0) << shown.err;
    EXPECT_THAT(shown.err, IsEmpty());
    EXPECT_THAT(shown.out, AllOf(HasSubstr("qwen3moe"), HasSubstr("4, 3 of them with routed experts"),
                                 HasSubstr("8, 2 active per token"), HasSubstr("q4_K, q6_K"), HasSubstr("64 experts")));
    const program_result printed = kvasir({"inspect", path("m.gguf"), "--json"});
    EXPECT_EQ(printed.status, 0);
    const json facts = json::parse(printed.out);
    EXPECT_EQ(facts["n_blocks"], 4);
    EXPECT_EQ(facts["n_expert_blocks"], 3);
    EXPECT_EQ(facts["experts_per_block"], 8);
    EXPECT_EQ(facts["experts_used_per_token"], 2);
    EXPECT_EQ(facts["n_experts"], 24);
    EXPECT_EQ(facts["n_in"], 256);
    EXPECT_EQ(facts["n_ff"], 256);
    EXPECT_EQ(facts["merged_gate_up"], false);
    // 256 x 256 values: 256 blocks of 144 bytes (q4_K) or 210 (q6_K).
    EXPECT_EQ(facts["expert_bytes"]["max"], 256 * (144 + 144 + 210));
    EXPECT_EQ(facts["experts_bytes"], 24 * 256 * (144 + 144 + 210));
    EXPECT_EQ(facts["layers"].size(), 3U);
    EXPECT_EQ(facts["layers"][0]["layer"], 1);
    EXPECT_EQ(facts["layers"][0]["tensors"].size(), 3U);
    EXPECT_FALSE(facts.contains("slice"));
}

TEST_F(commands, slice_verify_and_inspect_a_slice) {
    const program_result cut =
        kvasir({"slice", path("m.gguf"), "--experts", "1:0-2+7,3:4", "-o", path("s.gguf"), "--verify"});
    ASSERT_EQ(cut.status, 0) << cut.err;
    EXPECT_THAT(cut.out, AllOf(HasSubstr("5 experts of 24 in 2 layers"), HasSubstr("verified")));
    EXPECT_THAT(cut.err, IsEmpty()) << "no progress bar where there is no terminal";
    const json shown = json::parse(kvasir({"inspect", path("s.gguf"), "--json"}).out);
    EXPECT_EQ(shown["slice"]["experts"], "1:0-2+7,3:4");
    EXPECT_EQ(shown["slice"]["n_experts"], 5);
    EXPECT_EQ(shown["slice"]["layers"][0]["n_experts_in_model"], 8);
    EXPECT_THAT(kvasir({"inspect", path("s.gguf")}).out, AllOf(HasSubstr("slice of model"), HasSubstr("1:0-2+7,3:4")));

    ASSERT_EQ(kvasir({"manifest", path("m.gguf"), "-o", path("x.json"), "--threads", "2"}).status, 0);
    const program_result intact = kvasir({"manifest", "--check", path("s.gguf"), "--against", path("x.json")});
    EXPECT_EQ(intact.status, 0) << intact.err;
    EXPECT_THAT(intact.out, HasSubstr("is intact: 5 experts"));
    std::string bytes = read_file(path("s.gguf"));
    bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 4);
    write_file(path("s.gguf"), bytes);
    EXPECT_THAT(complaint({"manifest", "--check", path("s.gguf"), "--against", path("x.json")}),
                AllOf(HasSubstr("blk.3.ffn_down_exps.weight, expert 4"), HasSubstr("the slice is damaged")));
}

TEST_F(commands, slice_a_split_model_by_any_file) {
    std::mt19937 random(22);
    const auto parts = build_moe({}, random).write_split(directory_ / "p", 3, true);
    const program_result cut =
        kvasir({"slice", parts[2].string(), "--experts", "all", "-o", path("s.gguf"), "--verify"});
    EXPECT_EQ(cut.status, 0) << cut.err;
    EXPECT_THAT(cut.out, HasSubstr("12 experts of 12 in 2 layers"));
}

TEST_F(commands, manifest_goes_where_it_is_asked_to) {
    const program_result beside = kvasir({"manifest", path("m.gguf")});
    EXPECT_EQ(beside.status, 0) << beside.err;
    EXPECT_THAT(beside.out, AllOf(HasSubstr("model digest "), HasSubstr("m.gguf.manifest.json")));
    const std::string text = read_file(path("m.gguf.manifest.json"));
    EXPECT_EQ(kvasir({"manifest", path("m.gguf"), "-o", "-"}).out, text);
    EXPECT_THAT(beside.out, HasSubstr(json::parse(text)["model_digest"].get<std::string>()));
}

TEST_F(commands, name_what_is_wrong_with_a_file) {
    write_file(path("text.gguf"), "hello");
    raw_gguf dense;
    dense.add_text("general.architecture", "llama").add_f32("blk.0.ffn_up.weight", {4});
    write_file(path("dense.gguf"), dense.bytes());
    for (const std::string& command : {std::string("inspect"), std::string("manifest"), std::string("slice")}) {
        const auto complain = [&](const std::string& file) {
            std::vector<std::string> words = {command, path(file)};
            if (command == "slice")
                for (const std::string& word :
                     {std::string("--experts"), std::string("all"), std::string("-o"), path("o.gguf")})
                    words.push_back(word);
            return complaint(words);
        };
        EXPECT_THAT(complain("none.gguf"), AllOf(StartsWith("kvasir " + command + ": "), HasSubstr("No such file")));
        EXPECT_THAT(complain(""), HasSubstr("is a directory"));
        EXPECT_THAT(complain("text.gguf"), HasSubstr("not a GGUF file"));
        if (command != "manifest") {
            EXPECT_THAT(complain("dense.gguf"), HasSubstr("no Mixture-of-Experts model"));
        }
    }
    EXPECT_THAT(complaint({"inspect", path("a\nb")}), HasSubstr("a b")) << "a line end in a name stays on the line";
}

TEST_F(commands, name_what_is_wrong_with_the_output) {
    const auto slice_to = [&](const std::string& output, const std::string& experts = "1:0") {
        return complaint({"slice", path("m.gguf"), "--experts", experts, "-o", output});
    };
    EXPECT_THAT(slice_to(path("o.gguf"), "1:8"), HasSubstr("layer 1 has experts 0 to 7"));
    EXPECT_THAT(slice_to(path("o.gguf"), "0:0"), HasSubstr("layer 0 has no routed experts"));
    EXPECT_THAT(slice_to(path("m.gguf")), HasSubstr("exists already"));
    EXPECT_THAT(slice_to(directory_.path().string()), HasSubstr("exists already"));
    // From here on the model is hashed first, and its manifest is kept.
    ASSERT_EQ(kvasir({"manifest", path("m.gguf")}).status, 0);
    EXPECT_THAT(slice_to(path("no/o.gguf")), HasSubstr("there is no directory"));
    EXPECT_THAT(slice_to("/proc/o.gguf"), HasSubstr("cannot create"));
    EXPECT_THAT(complaint({"slice", path("m.gguf"), "--experts", "1:0", "--force", "-o", path("m.gguf")}),
                HasSubstr("is the model itself"));
    EXPECT_THAT(complaint({"manifest", path("m.gguf"), "-o", path("no/x.json")}), HasSubstr("No such file"));
    EXPECT_THAT(complaint({"manifest", path("m.gguf"), "-o", path("m.gguf")}), HasSubstr("is the model itself"));
    EXPECT_EQ(kvasir({"inspect", path("m.gguf")}).status, 0) << "and it still is";
    write_file(path("o.gguf"), "old");
    EXPECT_EQ(kvasir({"slice", path("m.gguf"), "--experts", "1:0", "--force", "-o", path("o.gguf")}).status, 0);
    EXPECT_EQ(kvasir({"inspect", path("o.gguf")}).status, 0);
}

// A shell's file size limit stands for a full disk.
TEST_F(commands, leave_nothing_behind_on_a_full_disk) {
    ASSERT_EQ(kvasir({"manifest", path("m.gguf")}).status, 0);
    const auto before = directory_.names();
    const program_result result =
        run_program({"/bin/sh", "-c", "trap '' XFSZ; ulimit -f 20; exec \"$0\" \"$@\"", KVASIR_BINARY, "slice",
                     path("m.gguf"), "--experts", "all", "-o", path("o.gguf")});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, AllOf(StartsWith("kvasir slice: cannot write "), HasSubstr("File too large")));
    EXPECT_EQ(directory_.names(), before);
}

TEST_F(commands, say_when_the_output_cannot_be_printed) {
    const program_result result =
        run_program({"/bin/sh", "-c", "exec \"$0\" \"$@\" > /dev/full", KVASIR_BINARY, "inspect", path("m.gguf")});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("cannot write the output"));
}

TEST_F(commands, end_cleanly_when_they_are_interrupted) {
    // Large and, being a hole, cheap: hashing it takes longer than the second until the signal.
    raw_gguf large;
    large.add_text("general.architecture", "x");
    large.tensors.push_back({.name = "a", .ne = {std::uint64_t{1} << 33}, .data = ""});
    write_file(path("large.gguf"), large.bytes());
    std::filesystem::resize_file(path("large.gguf"), (std::uint64_t{4} << 33) + 4096);
    const auto before = directory_.names();
    const program_result result = run_program({"/usr/bin/timeout", "--preserve-status", "--signal=TERM", "1",
                                               KVASIR_BINARY, "manifest", path("large.gguf"), "-o", path("o.json")});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("cancelled"));
    EXPECT_EQ(directory_.names(), before);
}

}  // namespace
}  // namespace kvasir
