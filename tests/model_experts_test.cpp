// The expert map: names, shapes, offsets; and models that have no experts or broken ones.
#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "model/expert_map.hpp"
#include "support/model_builder.hpp"
#include "support/raw_gguf.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::model {
namespace {

using namespace test_support;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(expert_tensor_name, knows_every_routed_spelling_and_no_other) {
    const auto name = parse_expert_tensor_name("blk.48.ffn_gate_up_exps.input_scale");
    ASSERT_TRUE(name);
    EXPECT_EQ(name->layer, layer_id{48});
    EXPECT_EQ(name->role, expert_role::gate_up);
    EXPECT_EQ(name->part, expert_part::input_scale);
    for (const char* role : {"gate", "up", "gate_up", "down"})
        for (const char* part : {"weight", "bias", "scale", "input_scale"})
            EXPECT_TRUE(parse_expert_tensor_name("blk.0.ffn_" + std::string(role) + "_exps." + part)) << role << part;
    for (const char* other :
         {"blk.0.ffn_up_shexp.weight", "blk.0.ffn_up_chexps.weight", "blk.0.ffn_norm_exps.weight",
          "blk.0.ffn_up.weight", "blk.0.ffn_gate_inp.weight", "blk.0.exp_probs_b.bias", "blk.0.ffn_up.3.weight",
          "blk..ffn_up_exps.weight", "blk.00.ffn_up_exps.weight", "blk.-1.ffn_up_exps.weight",
          "blk.10000.ffn_up_exps.weight", "blk.4294967296.ffn_up_exps.weight", "blk.0.ffn_up_exps.weights",
          "blk.0.ffn_up_exps", "x.blk.0.ffn_up_exps.weight", "enc.blk.0.ffn_up_exps.weight",
          "blk.0.ffn_up_exps.weight ", ""})
        EXPECT_FALSE(parse_expert_tensor_name(other)) << other;
}

TEST(slabs, follow_the_expert_dimension) {
    const auto weight = slabs_of("blk.0.ffn_up_exps.weight", {256, 8, 5, 1}, 5 * 1152);
    EXPECT_EQ(weight.n_slabs, 5U);
    EXPECT_EQ(weight.slab_size_bytes, 1152U);
    EXPECT_EQ(weight.expert_dimension, 2U);
    EXPECT_EQ(slabs_of("blk.0.ffn_up_exps.bias", {8, 5, 1, 1}, 160).n_slabs, 5U);
    EXPECT_EQ(slabs_of("blk.0.ffn_up_exps.scale", {5, 1, 1, 1}, 20).slab_size_bytes, 4U);
    EXPECT_EQ(slabs_of("blk.0.ffn_up_shexp.weight", {256, 8, 5, 1}, 5 * 1152).n_slabs, 1U);
    EXPECT_EQ(slabs_of("blk.0.ffn_up_exps.weight", {256, 8, 5, 2}, 10 * 1152).n_slabs, 1U);
    EXPECT_EQ(slabs_of("blk.0.ffn_up_exps.scale", {5, 2, 1, 1}, 40).n_slabs, 1U);
}

TEST(expert_map, finds_every_expert_of_any_model) {
    const temporary_directory directory;
    std::mt19937 random(6);
    for (int round = 0; round < 25; ++round) {
        const moe_shape shape = random_moe_shape(random);
        const model_builder built = build_moe(shape, random);
        built.write(directory / "model.gguf");
        const gguf_model model = gguf_model::open(directory / "model.gguf").value();
        const auto map = map_experts(model);
        ASSERT_TRUE(map) << map.error().message;
        ASSERT_EQ(map->layers.size(), shape.n_layers - shape.n_dense_layers);
        EXPECT_EQ(map->n_experts(), map->layers.size() * static_cast<std::uint64_t>(shape.n_experts));
        std::uint64_t size_bytes = 0;
        for (const built_tensor& tensor : built.tensors()) {
            const auto name = parse_expert_tensor_name(tensor.name);
            if (!name) continue;
            size_bytes += tensor.data.size();
            const expert_layer* layer = map->find(name->layer);
            ASSERT_NE(layer, nullptr);
            const routed_tensor& found = (*layer)[name->role];
            ASSERT_TRUE(found);
            for (std::int64_t e = 0; e < shape.n_experts; ++e) {
                const auto n = static_cast<std::size_t>(e);
                const std::size_t slab = tensor.data.size() / static_cast<std::size_t>(shape.n_experts);
                const void* actual = nullptr;
                switch (name->part) {
                    case expert_part::weight:
                        actual = found.weight_data() + n * found.expert_stride_bytes();
                        break;
                    case expert_part::bias:
                        actual = found.bias_data() + n * static_cast<std::size_t>(found.n_out());
                        break;
                    case expert_part::scale:
                        actual = found.scale_data() + n;
                        break;
                    case expert_part::input_scale:
                        FAIL();
                }
                ASSERT_EQ(std::memcmp(actual, tensor.data.data() + n * slab, slab), 0) << tensor.name << " " << e;
            }
        }
        EXPECT_EQ(map->size_bytes(), size_bytes);
        for (const expert_layer& layer : map->layers) {
            EXPECT_EQ(layer.n_in(), shape.n_embd);
            EXPECT_EQ(layer.n_out(), shape.n_embd);
            EXPECT_EQ(layer.n_ff(), shape.n_ff);
            EXPECT_EQ(static_cast<bool>(layer[expert_role::gate_up]), shape.merged);
            EXPECT_EQ(static_cast<bool>(layer[expert_role::gate]), shape.gated && !shape.merged);
        }
        EXPECT_EQ(map->find(layer_id{shape.n_layers}), nullptr);
    }
}

error map_error(const raw_gguf& file) {
    const temporary_directory directory;
    write_file(directory / "m.gguf", file.bytes());
    const auto model = gguf_model::open(directory / "m.gguf");
    if (!model) return model.error();
    const auto map = map_experts(*model);
    EXPECT_FALSE(map);
    return map ? error(errc::internal, "accepted") : map.error();
}

raw_gguf experts(std::initializer_list<std::pair<const char*, std::vector<std::uint64_t>>> tensors) {
    raw_gguf file;
    file.add_text("general.architecture", "x");
    for (const auto& [name, ne] : tensors)
        file.add_f32(std::string("blk.3.ffn_") + name, ne);
    return file;
}

TEST(expert_map, says_what_is_no_moe_model) {
    const error dense = map_error(experts({{"up.weight", {4, 4}}}));
    EXPECT_EQ(dense.code, make_error_code(errc::unsupported));
    EXPECT_THAT(dense.message, AllOf(HasSubstr("no Mixture-of-Experts model"), HasSubstr("\"x\"")));
    const error separate = map_error(experts({{"up.0.weight", {4, 4}}, {"up.1.weight", {4, 4}}}));
    EXPECT_EQ(separate.code, make_error_code(errc::unsupported));
    EXPECT_THAT(separate.message, HasSubstr("every expert in a tensor of its own"));
    EXPECT_EQ(map_error(experts({{"up_shexp.weight", {4, 4}}, {"up_chexps.weight", {4, 4, 2}}})).code,
              make_error_code(errc::unsupported));
}

TEST(expert_map, refuses_tensors_that_do_not_fit) {
    const raw_gguf misfits[] = {
        experts({{"up_exps.weight", {4, 8, 2}}}),                                     // no down
        experts({{"down_exps.weight", {8, 4, 2}}}),                                   // no up
        experts({{"gate_exps.weight", {4, 8, 2}}, {"down_exps.weight", {8, 4, 2}}}),  // gate alone
        experts({{"up_exps.weight", {4, 8, 2}}, {"down_exps.weight", {8, 4, 3}}}),    // expert counts
        experts({{"up_exps.weight", {4, 8, 2}}, {"down_exps.weight", {4, 4, 2}}}),    // hidden rows
        experts({{"up_exps.weight", {4, 8, 2}}, {"gate_exps.weight", {4, 6, 2}}, {"down_exps.weight", {8, 4, 2}}}),
        experts({{"gate_up_exps.weight", {4, 7, 2}}, {"down_exps.weight", {3, 4, 2}}}),
        experts({{"gate_up_exps.weight", {4, 16, 2}}, {"up_exps.weight", {4, 8, 2}}, {"down_exps.weight", {8, 4, 2}}}),
        experts({{"up_exps.weight", {4, 8, 2, 2}}, {"down_exps.weight", {8, 4, 2}}}),
        experts({{"up_exps.weight", {4, 8, 2}}, {"up_exps.bias", {8, 3}}, {"down_exps.weight", {8, 4, 2}}}),
        experts({{"up_exps.weight", {4, 8, 2}}, {"up_exps.scale", {3}}, {"down_exps.weight", {8, 4, 2}}}),
        experts({{"up_exps.weight", {4, 8, 2}}, {"gate_exps.bias", {8, 2}}, {"down_exps.weight", {8, 4, 2}}}),
    };
    for (const raw_gguf& misfit : misfits) {
        const error refused = map_error(misfit);
        EXPECT_EQ(refused.code, make_error_code(errc::invalid_input)) << refused.message;
        EXPECT_THAT(refused.message, AllOf(HasSubstr("m.gguf"), HasSubstr("layer 3")));
    }
}

TEST(expert_map, refuses_companions_it_cannot_pass_on) {
    raw_gguf file = experts({{"up_exps.weight", {4, 8, 2}}, {"down_exps.weight", {8, 4, 2}}});
    file.tensors.push_back({.name = "blk.3.ffn_up_exps.bias", .ne = {8, 2}, .type = 1, .data = std::string(32, '\0')});
    const error refused = map_error(file);
    EXPECT_EQ(refused.code, make_error_code(errc::unsupported));
    EXPECT_THAT(refused.message, HasSubstr("has type f16"));
}

}  // namespace
}  // namespace kvasir::model
