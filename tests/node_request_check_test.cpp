#include "node/request_check.hpp"

#include "node_support.hpp"

namespace kvasir::node {
namespace {

struct check_case {
    const char* what;
    std::function<void(wire::received_compute&)> change;
    std::optional<wire::error_code> code;
    std::uint64_t max_result_bytes = 1 << 20;
};

TEST(node_request_check, table) {
    const auto held =
        held_slice::load({.path = shared_model().slice_path(), .manifest = {}, .skip_check = true, .progress = {}});
    ASSERT_TRUE(held);
    using wire::error_code;
    const check_case cases[] = {
        {"good", [](auto&) {}, std::nullopt},
        {"good in q8_k", [](auto& r) { r.encoding = row_encoding::q8_k; }, std::nullopt},
        {"no pairs", [](auto& r) { r.pairs.clear(); }, std::nullopt},
        {"no rows",
         [](auto& r) {
             r.pairs.clear();
             r.n_rows = 0;
         },
         std::nullopt},
        {"last expert", [](auto& r) { r.pairs[0].expert = 3; }, std::nullopt},
        {"one expert too far", [](auto& r) { r.pairs[0].expert = 4; }, error_code::expert_not_held},
        {"expert 4294967295", [](auto& r) { r.pairs[1].expert = ~0U; }, error_code::expert_not_held},
        {"too narrow", [](auto& r) { r.n_values = 255; }, error_code::shape_mismatch},
        {"too wide", [](auto& r) { r.n_values = 512; }, error_code::shape_mismatch},
        {"ungated activation for gated experts", [](auto& r) { r.act.kind = activation_kind::silu; },
         error_code::activation_not_accepted},
        {"activation without an end",
         [](auto& r) {
             r.act = {activation_kind::swiglu_oai, std::numeric_limits<float>::infinity(), 1.0F};
         },
         error_code::activation_not_accepted},
        {"exactly as large as a message may be", [](auto&) {}, std::nullopt, 24 + 2 * 256 * 4},
        {"larger than a message may be", [](auto&) {}, error_code::limit_exceeded, 24 + 2 * 256 * 4 - 1},
    };
    for (const check_case& one : cases) {
        SCOPED_TRACE(one.what);
        wire::received_compute request;
        request.layer = {1};
        request.n_rows = 2;
        request.n_values = 256;
        request.pairs = {{0, 0}, {1, 2}};
        one.change(request);
        const auto fault = find_fault(request, held->layers()[0], held->weights()[0], one.max_result_bytes);
        EXPECT_EQ(fault ? std::optional(fault->code) : std::nullopt, one.code) << (fault ? fault->text : "");
        if (fault) {
            EXPECT_FALSE(fault->text.empty());
        }
    }
}

}  // namespace
}  // namespace kvasir::node
