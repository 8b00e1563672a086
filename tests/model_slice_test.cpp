// Slices: their bytes are the model's, they say what they hold, and lies about it are found.
#include <gmock/gmock.h>

#include <random>
#include <string>

#include "model/manifest.hpp"
#include "model/slice.hpp"
#include "model/slice_keys.hpp"
#include "support/model_builder.hpp"
#include "support/raw_gguf.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::model {
namespace {

using namespace test_support;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const sha256_digest some_digest = sha256::of(as_bytes("some model"));

expert_selection selection(std::string_view text) {
    return expert_selection::parse(text).value();
}

/// A random, never empty choice of experts, as text.
std::string random_selection(const expert_map& experts, std::mt19937& random) {
    std::string text;
    for (const expert_layer& layer : experts.layers) {
        if (!text.empty() && random() % 3 == 0) continue;
        if (!text.empty()) text += ',';
        text += std::to_string(layer.layer.value);
        const char* separator = ":";
        const auto n_ranges = 1 + random() % 3;
        for (std::size_t i = 0; i < n_ranges; ++i) {
            text += separator;
            text += std::to_string(random() % layer.n_experts);
            separator = "+";
        }
    }
    return text;
}

/// Every held expert of every part has in the slice, at its local id, the bytes it has in the model at its global id.
void expect_slice_of(const gguf_model& slice, const gguf_model& model, const std::vector<held_layer>& held) {
    const expert_map cut = map_experts(slice).value();
    const expert_map whole = map_experts(model).value();
    ASSERT_EQ(cut.layers.size(), held.size());
    for (const held_layer& layer : held) {
        const expert_layer* from = whole.find(layer.layer);
        const expert_layer* to = cut.find(layer.layer);
        ASSERT_NE(to, nullptr);
        ASSERT_EQ(to->n_experts, layer.n_experts());
        for (std::size_t role = 0; role < n_expert_roles; ++role) {
            ASSERT_EQ(static_cast<bool>(to->tensors[role]), static_cast<bool>(from->tensors[role]));
            if (!to->tensors[role]) continue;
            const auto from_parts = from->tensors[role].parts();
            const auto to_parts = to->tensors[role].parts();
            ASSERT_EQ(to_parts.size(), from_parts.size());
            for (std::size_t part = 0; part < to_parts.size(); ++part) {
                ASSERT_EQ(to_parts[part]->name, from_parts[part]->name);
                ASSERT_EQ(to_parts[part]->type, from_parts[part]->type);
                const std::size_t size = to_parts[part]->data.size() / to->n_experts;
                ASSERT_EQ(size, from_parts[part]->data.size() / from->n_experts);
                for (std::uint32_t local = 0; local < to->n_experts; ++local) {
                    const expert_id global = layer.global_of(local_expert_id{local}).value();
                    ASSERT_TRUE(std::ranges::equal(to_parts[part]->data.subspan(local * size, size),
                                                   from_parts[part]->data.subspan(global.value * size, size)))
                        << to_parts[part]->name << " expert " << global.value;
                }
            }
        }
    }
}

TEST(slice, has_the_models_bytes_whatever_the_model_and_the_selection) {
    const temporary_directory directory;
    std::mt19937 random(8);
    for (int round = 0; round < 25; ++round) {
        const model_builder built = build_moe(random_moe_shape(random), random);
        std::filesystem::path path = directory / "model.gguf";
        if (round % 2 == 0) {
            built.write(path);
        } else {
            path = built.write_split(directory / "model", 2 + random() % 3, round % 4 == 1).back();
        }
        const gguf_model model = gguf_model::open(path).value();
        const expert_map experts = map_experts(model).value();
        const std::string text = random_selection(experts, random);
        const auto held = selection(text).resolve(experts).value();

        const auto written = write_slice(model, selection(text), some_digest, directory / "slice.gguf");
        ASSERT_TRUE(written) << written.error().message;
        const gguf_model slice = gguf_model::open(directory / "slice.gguf").value();
        const auto info = read_slice_info(slice);
        ASSERT_TRUE(info) << info.error().message;
        EXPECT_EQ(info->held(), held) << text;
        EXPECT_EQ(written->held(), held);
        EXPECT_EQ(info->model_digest, some_digest);
        EXPECT_EQ(info->architecture, built.architecture());
        for (const slice_layer& layer : info->layers)
            EXPECT_EQ(layer.n_experts_in_model, experts.find(layer.held.layer)->n_experts);
        expect_slice_of(slice, model, held);
        std::uint64_t data_bytes = 0;
        for (const tensor_info& tensor : slice.tensors())
            data_bytes += tensor.size_bytes();
        EXPECT_EQ(data_bytes, slice_data_size_bytes(experts, held));
    }
}

TEST(slice, keeps_what_describes_the_model_and_drops_the_vocabulary) {
    const temporary_directory directory;
    std::mt19937 random(9);
    const auto path = build_moe({}, random).write_split(directory / "model", 2, true).front();
    const gguf_model model = gguf_model::open(path).value();
    ASSERT_TRUE(model.has_key("tokenizer.ggml.tokens"));
    ASSERT_TRUE(write_slice(model, selection("2:1"), some_digest, directory / "slice.gguf"));
    const gguf_model slice = gguf_model::open(directory / "slice.gguf").value();
    EXPECT_EQ(slice.architecture(), "qwen3moe");
    EXPECT_EQ(slice.hyper_parameter("expert_used_count"), 2);
    EXPECT_EQ(slice.hyper_parameter("embedding_length"), 256);
    EXPECT_EQ(slice.text("general.name"), "built for a test");
    for (const metadata_entry& entry : slice.metadata()) {
        EXPECT_FALSE(entry.key.starts_with("tokenizer.")) << entry.key;
        EXPECT_FALSE(entry.key.starts_with("split.")) << entry.key;
    }
    EXPECT_EQ(slice.tensors().size(), 3U);
    EXPECT_LT(std::filesystem::file_size(directory / "slice.gguf") - 3 * 36'864, 2'000U);
}

TEST(slice, keeps_the_models_alignment) {
    const temporary_directory directory;
    raw_gguf file;
    file.alignment = 1024;
    file.add_text("general.architecture", "x").add_u32("general.alignment", 1024);
    file.add_f32("blk.0.ffn_up_exps.weight", {4, 4, 3}).add_f32("blk.0.ffn_down_exps.weight", {4, 4, 3});
    write_file(directory / "m.gguf", file.bytes());
    const gguf_model model = gguf_model::open(directory / "m.gguf").value();
    ASSERT_TRUE(write_slice(model, selection("0:0+2"), some_digest, directory / "s.gguf"));
    const gguf_model slice = gguf_model::open(directory / "s.gguf").value();
    for (const tensor_info& tensor : slice.tensors())
        EXPECT_EQ(tensor.file_offset % 1024, 0U);
    expect_slice_of(slice, model, read_slice_info(slice).value().held());
}

class slice_of_small_moe : public ::testing::Test {
  protected:
    slice_of_small_moe() {
        write_file(directory_ / "m.gguf", small_moe().bytes());
        model_ = std::make_unique<gguf_model>(gguf_model::open(directory_ / "m.gguf").value());
    }

    error refused(std::string_view selected, const std::filesystem::path& path,
                  const progress_callback& progress = {}) {
        const auto before = directory_.names();
        const auto written = write_slice(*model_, selection(selected), some_digest, path, progress);
        EXPECT_FALSE(written);
        EXPECT_EQ(directory_.names(), before) << "nothing may be left behind";
        return written ? error(errc::internal, "accepted") : written.error();
    }

    temporary_directory directory_;
    std::unique_ptr<gguf_model> model_;
};

TEST_F(slice_of_small_moe, reports_progress_to_the_end) {
    std::uint64_t last = 0;
    std::uint64_t total = 0;
    ASSERT_TRUE(write_slice(*model_, selection("all"), some_digest, directory_ / "s.gguf",
                            [&](std::uint64_t done_bytes, std::uint64_t total_bytes) {
                                EXPECT_GE(done_bytes, last);
                                last = done_bytes;
                                total = total_bytes;
                                return true;
                            }));
    EXPECT_EQ(last, total);
    EXPECT_EQ(total, map_experts(*model_).value().size_bytes());
}

TEST_F(slice_of_small_moe, replaces_a_file_whole) {
    write_file(directory_ / "s.gguf", "old");
    ASSERT_TRUE(write_slice(*model_, selection("1:0"), some_digest, directory_ / "s.gguf"));
    EXPECT_TRUE(gguf_model::open(directory_ / "s.gguf"));
    EXPECT_THAT(directory_.names(), ElementsAre("m.gguf", "s.gguf"));
}

TEST_F(slice_of_small_moe, is_not_written_where_it_cannot_be) {
    EXPECT_THAT(refused("1:0", directory_ / "no/s.gguf").message, HasSubstr("there is no directory"));
    EXPECT_THAT(refused("1:0", directory_.path()).message, HasSubstr("no regular file"));
    EXPECT_THAT(refused("1:0", directory_ / "m.gguf").message, HasSubstr("is the model itself"));
    EXPECT_THAT(refused("0:0", directory_ / "s.gguf").message, HasSubstr("layer 0 has no routed experts"));
    EXPECT_THAT(refused("1:4", directory_ / "s.gguf").message, HasSubstr("layer 1 has experts 0 to 3"));
    const error cancelled = refused("1:0", directory_ / "s.gguf", [](auto, auto) { return false; });
    EXPECT_EQ(cancelled.code, make_error_code(errc::cancelled));
    std::filesystem::create_symlink(directory_ / "m.gguf", directory_ / "link.gguf");
    EXPECT_THAT(refused("1:0", directory_ / "link.gguf").message, HasSubstr("is the model itself"));
}

TEST_F(slice_of_small_moe, is_no_model_to_cut_from) {
    ASSERT_TRUE(write_slice(*model_, selection("1:0-2"), some_digest, directory_ / "s.gguf"));
    const gguf_model slice = gguf_model::open(directory_ / "s.gguf").value();
    const auto again = write_slice(slice, selection("1:0"), some_digest, directory_ / "t.gguf");
    ASSERT_FALSE(again);
    EXPECT_THAT(again.error().message, HasSubstr("is a slice itself"));
    const auto none = read_slice_info(*model_);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code, make_error_code(errc::unsupported));
}

/// What a slice file claims; its tensors are those of layers 1 (3 experts) and 2 (2 experts).
struct slice_claims {
    std::uint32_t version = 1;
    std::string digest = some_digest.hex();
    std::vector<std::uint32_t> layer = {1, 1, 2};
    std::vector<std::uint32_t> first = {0, 5, 7};
    std::vector<std::uint32_t> count = {2, 1, 2};
    std::vector<std::uint32_t> n_experts = {9, 9, 9};
    bool extra_tensor = false;
};

raw_gguf slice_file(const slice_claims& claims) {
    raw_gguf file;
    file.add_text("general.architecture", "x").add_u32(slice_keys::version, claims.version);
    file.add_text(slice_keys::model_digest, claims.digest);
    file.add_u32_array(slice_keys::layer, claims.layer).add_u32_array(slice_keys::first, claims.first);
    file.add_u32_array(slice_keys::count, claims.count).add_u32_array(slice_keys::n_experts, claims.n_experts);
    file.add_f32("blk.1.ffn_up_exps.weight", {4, 4, 3}).add_f32("blk.1.ffn_down_exps.weight", {4, 4, 3});
    file.add_f32("blk.2.ffn_up_exps.weight", {4, 4, 2}).add_f32("blk.2.ffn_down_exps.weight", {4, 4, 2});
    if (claims.extra_tensor) file.add_f32("output.weight", {4});
    return file;
}

result<slice_info> info_of(const raw_gguf& file) {
    const temporary_directory directory;
    write_file(directory / "s.gguf", file.bytes());
    const auto slice = gguf_model::open(directory / "s.gguf");
    if (!slice) return slice.error();
    return read_slice_info(*slice);
}

TEST(slice_info, gives_local_ids_in_the_order_of_the_ranges) {
    const auto info = info_of(slice_file({}));
    ASSERT_TRUE(info) << info.error().message;
    EXPECT_EQ(to_text(info->held()), "1:0-1+5,2:7-8");
    EXPECT_EQ(info->n_experts(), 5U);
    EXPECT_EQ(info->find(layer_id{1})->held.local_of(expert_id{5}), local_expert_id{2});
    EXPECT_EQ(info->find(layer_id{1})->n_experts_in_model, 9U);
    EXPECT_EQ(info->find(layer_id{3}), nullptr);
}

TEST(slice_info, finds_every_lie) {
    constexpr std::uint32_t huge = 0xffffffff;
    const std::pair<slice_claims, const char*> lies[] = {
        {{.digest = "abc"}, "64 hexadecimal digits"},
        {{.digest = std::string(64, 'g')}, "64 hexadecimal digits"},
        {{.layer = {}, .first = {}, .count = {}, .n_experts = {}}, "one value per range"},
        {{.first = {0, 5}}, "one value per range"},
        {{.n_experts = {9, 9, 9, 9}}, "one value per range"},
        {{.layer = {1, 1, 3}}, "holds 2 of layer 2"},
        {{.layer = {1, 1, huge}}, "layer 4294967295"},
        {{.layer = {2, 2, 1}}, "do not ascend"},
        {{.layer = {1, 2, 1}}, "do not ascend"},
        {{.layer = {1, 1, 1}, .first = {0, 3, 5}, .count = {2, 1, 2}}, "claims 1 layers and holds 2"},
        {{.first = {5, 0, 7}}, "do not ascend"},
        {{.first = {0, 1, 7}}, "do not ascend"},  // overlap
        {{.first = {0, 2, 7}}, "do not ascend"},  // touch: must be one range
        {{.count = {2, 0, 2}}, "0 experts from 5"},
        {{.count = {1, 1, 2}}, "claims 2 experts of layer 1 and holds 3"},
        {{.count = {2, 1, 3}}, "3 experts from 7"},
        {{.count = {2, huge, 2}}, "4294967295 experts"},
        {{.first = {0, huge, 7}}, "from 4294967295"},
        {{.n_experts = {9, 10, 9}}, "do not ascend"},
        {{.n_experts = {9, 9, 8}}, "which has 8"},
        {{.n_experts = {9, 9, huge}}, "which has 4294967295"},
        {{.extra_tensor = true}, "output.weight"},
    };
    for (const auto& [claims, message] : lies) {
        const auto info = info_of(slice_file(claims));
        ASSERT_FALSE(info) << message;
        EXPECT_EQ(info.error().code, make_error_code(errc::invalid_input)) << info.error().message;
        EXPECT_THAT(info.error().message, AllOf(HasSubstr("s.gguf"), HasSubstr(message)));
    }
    const auto later = info_of(slice_file({.version = 2}));
    ASSERT_FALSE(later);
    EXPECT_EQ(later.error().code, make_error_code(errc::unsupported));
}

TEST(slice_info, needs_arrays_of_integers) {
    raw_gguf file = small_moe();
    file.add_u32(slice_keys::version, 1).add_text(slice_keys::model_digest, some_digest.hex());
    file.add_u32(slice_keys::layer, 1).add_text(slice_keys::first, "0");
    const auto info = info_of(file);
    ASSERT_FALSE(info);
    EXPECT_THAT(info.error().message, HasSubstr("must be arrays of integers"));
}

}  // namespace
}  // namespace kvasir::model
