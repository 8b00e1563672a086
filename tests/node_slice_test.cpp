// Loading what a worker holds.
#include <gmock/gmock.h>

#include "node_support.hpp"

namespace kvasir::node {
namespace {

using ::testing::HasSubstr;

result<held_slice> load(const std::filesystem::path& path, const std::filesystem::path& manifest = {},
                        bool skip = false) {
    return held_slice::load({.path = path, .manifest = manifest, .skip_check = skip, .progress = {}});
}

TEST(node_slice, a_slice) {
    const auto& model = shared_model();
    const auto held = load(model.slice_path(), model.manifest_path());
    ASSERT_TRUE(held) << held.error().message;
    EXPECT_EQ(held->model_digest(), model.digest());
    EXPECT_EQ(held->check(), check_state::checked);
    EXPECT_FALSE(held->is_whole_model());
    EXPECT_EQ(held->n_experts(), 5U);
    ASSERT_EQ(held->layers().size(), 2U);
    const wire::held_layer& first = held->layers()[0];
    EXPECT_EQ(first.layer, layer_id{1});
    EXPECT_EQ(first.n_in, 256U);
    EXPECT_EQ(first.n_out, 256U);
    EXPECT_EQ(first.ranges, (std::vector<wire::expert_range>{{{0}, 3}, {{5}, 1}}));
    EXPECT_EQ(first.encodings, (std::vector{row_encoding::f32, row_encoding::q8_k}));
    EXPECT_EQ(held->weights()[0].n_experts, 4);
    EXPECT_EQ(held->find({2}), 1U);
    EXPECT_FALSE(held->find({0}));
    EXPECT_FALSE(held->find({3}));
}

TEST(node_slice, a_whole_model_is_a_slice_of_everything) {
    const auto& model = shared_model();
    const auto held = load(model.model_path());
    ASSERT_TRUE(held) << held.error().message;
    EXPECT_TRUE(held->is_whole_model());
    EXPECT_EQ(held->model_digest(), model.digest());
    EXPECT_EQ(held->n_experts(), 12U);
    EXPECT_EQ(held->layers().front().ranges, (std::vector<wire::expert_range>{{{0}, 6}}));
}

TEST(node_slice, changed_bytes_are_found_unless_nobody_looks) {
    const auto& model = shared_model();
    const auto path = model.path("changed.gguf");
    model.write_slice("2:3", path);
    model_on_disk::corrupt(path);
    const auto checked = load(path, model.manifest_path());
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, errc::mismatch);
    EXPECT_THAT(checked.error().message, HasSubstr("blk.2.ffn_down_exps.weight"));
    const auto skipped = load(path, {}, true);
    ASSERT_TRUE(skipped);
    EXPECT_EQ(skipped->check(), check_state::skipped);
}

TEST(node_slice, a_manifest_beside_the_slice_is_used) {
    const auto& model = shared_model();
    const auto path = model.path("beside.gguf");
    model.write_slice("2:3", path);
    EXPECT_EQ(load(path)->check(), check_state::nothing_to_check);
    std::filesystem::copy_file(model.manifest_path(), model.path("beside.gguf.manifest.json"));
    EXPECT_EQ(load(path)->check(), check_state::checked);
    model_on_disk::corrupt(path);
    EXPECT_FALSE(load(path));
}

TEST(node_slice, what_is_no_slice) {
    const auto& model = shared_model();
    const auto missing = load(model.path("missing.gguf"));
    ASSERT_FALSE(missing);
    EXPECT_THAT(missing.error().message, HasSubstr("missing.gguf"));
    const auto text = model.path("text.gguf");
    test_support::write_file(text, "this is not a model at all, it is a sentence");
    const auto no_model = load(text);
    ASSERT_FALSE(no_model);
    EXPECT_THAT(no_model.error().message, HasSubstr("text.gguf"));
    EXPECT_FALSE(load(model.slice_path(), text)) << "and a manifest that is none";
}

}  // namespace
}  // namespace kvasir::node
