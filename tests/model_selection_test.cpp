// Selections: the grammar, its errors, and that text and ranges say the same.
#include <gmock/gmock.h>

#include <map>
#include <random>
#include <set>

#include "model/selection.hpp"

namespace kvasir::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Layers 1, 2, 3 and 7 with so many experts.
expert_map some_experts(std::uint32_t n_experts = 16) {
    expert_map map;
    for (const std::uint32_t layer : {1U, 2U, 3U, 7U}) {
        expert_layer described;
        described.layer = layer_id{layer};
        described.n_experts = n_experts;
        map.layers.push_back(described);
    }
    return map;
}

std::string resolved(std::string_view text) {
    const auto selection = expert_selection::parse(text);
    if (!selection) return selection.error().message;
    const auto held = selection->resolve(some_experts());
    return held ? to_text(*held) : held.error().message;
}

TEST(selection, means_what_it_says) {
    EXPECT_EQ(resolved("3:0-4"), "3:0-4");
    EXPECT_EQ(resolved("7:5"), "7:5");
    EXPECT_EQ(resolved("1:0-3+9,2:7"), "1:0-3+9,2:7");
    EXPECT_EQ(resolved("all"), "1:0-15,2:0-15,3:0-15,7:0-15");
    EXPECT_EQ(resolved(" all "), "1:0-15,2:0-15,3:0-15,7:0-15");
    EXPECT_EQ(resolved("*:*"), resolved("all"));
    EXPECT_EQ(resolved("*:0-1"), "1:0-1,2:0-1,3:0-1,7:0-1");
    EXPECT_EQ(resolved("1-3:4"), "1:4,2:4,3:4");
    EXPECT_EQ(resolved(" 1 - 2 : 4 - 5 + 8 , 7 : * "), "1:4-5+8,2:4-5+8,7:0-15");
}

TEST(selection, adds_up) {
    EXPECT_EQ(resolved("2:5,2:5"), "2:5");
    EXPECT_EQ(resolved("2:5,2:4"), "2:4-5");
    EXPECT_EQ(resolved("2:9-12+0-3+4-8"), "2:0-12");
    EXPECT_EQ(resolved("7:3,*:0,2:0-2"), "1:0,2:0-2,3:0,7:0+3");
}

TEST(selection, says_where_it_goes_wrong) {
    EXPECT_THAT(resolved(""), AllOf(HasSubstr("expected a layer number"), HasSubstr("character 1, but it ends there")));
    EXPECT_THAT(resolved("3"), HasSubstr("expected \":\" and the experts of that layer"));
    EXPECT_THAT(resolved("3:"), HasSubstr("expected an expert number"));
    EXPECT_THAT(resolved("3:0-"), HasSubstr("expected the number a range ends with"));
    EXPECT_THAT(resolved("3:0,"), HasSubstr("character 5"));
    EXPECT_THAT(resolved("3:0;4:1"), AllOf(HasSubstr("character 4"), HasSubstr("found \";4:1\"")));
    EXPECT_THAT(resolved("3:-1"), HasSubstr("found \"-1\""));
    EXPECT_THAT(resolved("3:63-0"), HasSubstr("did you mean 0-63"));
    EXPECT_THAT(resolved("allx"), HasSubstr("expected the end"));
    EXPECT_THAT(resolved("3:0x10"), HasSubstr("found \"x10\""));
    EXPECT_THAT(resolved("3:18446744073709551616"), HasSubstr("larger than any layer or expert number"));
    EXPECT_THAT(resolved("3:4294967295"), HasSubstr("larger than any"));
}

TEST(selection, says_what_the_model_does_not_have) {
    EXPECT_THAT(resolved("4:0"), AllOf(HasSubstr("layer 4 has no routed experts"), HasSubstr("1-3, 7")));
    EXPECT_THAT(resolved("1-7:0"), HasSubstr("layer 4"));
    EXPECT_THAT(resolved("2:16"), HasSubstr("layer 2 has experts 0 to 15; the selection asks for 16 to 16"));
    EXPECT_THAT(resolved("2:8-16"), HasSubstr("asks for 8 to 16"));
    EXPECT_THAT(resolved("*:0-1000000"), HasSubstr("layer 1 has experts 0 to 15"));
}

TEST(selection, has_limits) {
    EXPECT_EQ(expert_selection::parse(std::string(expert_selection::max_text_size + 1, ' ')).error().code,
              make_error_code(errc::limit_exceeded));
    std::string many = "1:0";
    for (std::size_t i = 0; i < expert_selection::max_items; ++i)
        many += "+0";
    EXPECT_EQ(expert_selection::parse(many).error().code, make_error_code(errc::limit_exceeded));
    many = "1:0";
    for (std::size_t i = 0; i < expert_selection::max_items / 2; ++i)
        many += ",1:0";
    EXPECT_EQ(expert_selection::parse(many).error().code, make_error_code(errc::limit_exceeded));
}

// Against sets of experts, the plainest model of what a selection is.
TEST(selection, agrees_with_sets_and_survives_its_own_text) {
    std::mt19937 random(7);
    const expert_map experts = some_experts(40);
    const std::uint32_t layers[] = {1, 2, 3, 7};
    for (int round = 0; round < 2000; ++round) {
        std::map<std::uint32_t, std::set<std::uint32_t>> expected;
        std::string text;
        const auto n_items = 1 + random() % 5;
        for (std::size_t i = 0; i < n_items; ++i) {
            if (i > 0) text += ',';
            std::vector<std::uint32_t> chosen;
            if (random() % 4 == 0) {
                text += '*';
                chosen.assign(std::begin(layers), std::end(layers));
            } else {
                chosen = {layers[random() % 4]};
                text += std::to_string(chosen[0]);
            }
            text += ':';
            const auto n_ranges = 1 + random() % 4;
            for (std::size_t r = 0; r < n_ranges; ++r) {
                if (r > 0) text += '+';
                const auto first = static_cast<std::uint32_t>(random() % 40);
                const auto last = first + static_cast<std::uint32_t>(random() % (40 - first));
                text += std::to_string(first);
                if (last > first || random() % 2 == 0) {
                    text += '-';
                    text += std::to_string(last);
                }
                for (const std::uint32_t layer : chosen)
                    for (std::uint32_t e = first; e <= last; ++e)
                        expected[layer].insert(e);
            }
        }
        const auto held = expert_selection::parse(text).value().resolve(experts);
        ASSERT_TRUE(held) << text;
        ASSERT_EQ(held->size(), expected.size()) << text;
        for (const held_layer& layer : *held) {
            const std::set<std::uint32_t>& wanted = expected.at(layer.layer.value);
            ASSERT_EQ(layer.n_experts(), wanted.size()) << text;
            std::uint32_t local = 0;
            for (const std::uint32_t e : wanted) {
                ASSERT_EQ(layer.local_of(expert_id{e}), local_expert_id{local}) << text;
                ASSERT_EQ(layer.global_of(local_expert_id{local}), expert_id{e}) << text;
                ++local;
            }
            ASSERT_EQ(layer.global_of(local_expert_id{local}), std::nullopt);
            for (std::uint32_t e = 0; e < 42; ++e)
                ASSERT_EQ(layer.local_of(expert_id{e}).has_value(), wanted.contains(e));
        }
        ASSERT_EQ(expert_selection::parse(to_text(*held)).value().resolve(experts).value(), *held) << text;
    }
}

}  // namespace
}  // namespace kvasir::model
