// Slices held against the manifest of their model: intact ones pass, and whatever differs is found and named.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "model/manifest.hpp"
#include "model/slice.hpp"
#include "support/model_builder.hpp"
#include "support/temporary_directory.hpp"

namespace kvasir::model {
namespace {

using namespace test_support;
using ::testing::AllOf;
using ::testing::HasSubstr;

class verified_slice : public ::testing::Test {
  protected:
    verified_slice() {
        moe_shape shape;
        shape.n_layers = 2;
        shape.biases = true;
        shape.scales = true;
        shape.types = {GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};
        std::mt19937 random(13);
        build_moe(shape, random).write(directory_ / "m.gguf");
        const gguf_model model = gguf_model::open(directory_ / "m.gguf").value();
        manifest_ = manifest::compute(model).value();
        write_slice(model, expert_selection::parse("1:1-2+5").value(), manifest_.model_digest(), directory_ / "s.gguf")
            .value();
    }

    result<void> verify() const { return verify_slice(gguf_model::open(directory_ / "s.gguf").value(), manifest_); }

    temporary_directory directory_;
    manifest manifest_;
};

TEST_F(verified_slice, is_intact) {
    const auto verified = verify();
    EXPECT_TRUE(verified) << verified.error().message;
}

TEST_F(verified_slice, any_flipped_byte_is_found_and_its_expert_named) {
    const std::string bytes = read_file(directory_ / "s.gguf");
    const std::map<std::uint64_t, int> global = {{0, 1}, {1, 2}, {2, 5}};
    std::mt19937 random(14);
    const gguf_model slice = gguf_model::open(directory_ / "s.gguf").value();
    for (const tensor_info& tensor : slice.tensors()) {
        for (int i = 0; i < 4; ++i) {
            const std::uint64_t at = random() % tensor.size_bytes();
            std::string changed = bytes;
            char& byte = changed[tensor.file_offset + at];
            byte = static_cast<char>(byte ^ (1 << (random() % 8)));
            write_file(directory_ / "s2.gguf", changed);
            const auto verified = verify_slice(gguf_model::open(directory_ / "s2.gguf").value(), manifest_);
            ASSERT_FALSE(verified) << tensor.name << " " << at;
            EXPECT_EQ(verified.error().code, make_error_code(errc::mismatch));
            const std::uint64_t local = at / (tensor.size_bytes() / 3);
            const manifest_tensor* original = manifest_.find_tensor(tensor.name);
            EXPECT_THAT(verified.error().message,
                        AllOf(HasSubstr("tensor " + tensor.name + ", expert " + std::to_string(global.at(local)) + " "),
                              HasSubstr(original->slabs[static_cast<std::size_t>(global.at(local))].hex())));
        }
    }
}

TEST_F(verified_slice, experts_in_another_place_are_found) {
    std::string bytes = read_file(directory_ / "s.gguf");
    const gguf_model slice = gguf_model::open(directory_ / "s.gguf").value();
    const tensor_info& tensor = *slice.find_tensor("blk.1.ffn_up_exps.weight");
    const std::size_t size = tensor.nb[2];
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(tensor.file_offset),
                     bytes.begin() + static_cast<std::ptrdiff_t>(tensor.file_offset + size),
                     bytes.begin() + static_cast<std::ptrdiff_t>(tensor.file_offset + size));
    write_file(directory_ / "s2.gguf", bytes);
    EXPECT_FALSE(verify_slice(gguf_model::open(directory_ / "s2.gguf").value(), manifest_));
}

TEST_F(verified_slice, slice_of_another_model_is_named) {
    std::mt19937 random(15);
    build_moe({}, random).write(directory_ / "other.gguf");
    const manifest other = manifest::compute(gguf_model::open(directory_ / "other.gguf").value()).value();
    const auto verified = verify_slice(gguf_model::open(directory_ / "s.gguf").value(), other);
    ASSERT_FALSE(verified);
    EXPECT_THAT(verified.error().message,
                AllOf(HasSubstr(manifest_.model_digest().hex()), HasSubstr(other.model_digest().hex())));
}

// Slices that are valid by themselves and claim the right model, but are not cut from it.
TEST_F(verified_slice, forged_slices_are_found) {
    const auto forge = [&](std::uint32_t n_experts, bool with_companions, std::int64_t n_ff) {
        moe_shape shape;
        shape.n_layers = 2;
        shape.n_ff = n_ff;
        shape.n_experts = n_experts;
        shape.biases = with_companions;
        shape.scales = with_companions;
        shape.types = {GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};
        std::mt19937 random(13);
        build_moe(shape, random).write(directory_ / "forged.gguf");
        const gguf_model forged = gguf_model::open(directory_ / "forged.gguf").value();
        write_slice(forged, expert_selection::parse("1:0").value(), manifest_.model_digest(), directory_ / "f.gguf")
            .value();
        const auto verified = verify_slice(gguf_model::open(directory_ / "f.gguf").value(), manifest_);
        EXPECT_FALSE(verified);
        return verified ? std::string() : verified.error().message;
    };
    EXPECT_THAT(forge(6, false, 256), HasSubstr("is missing"));
    EXPECT_THAT(forge(7, true, 256), HasSubstr("another type or shape"));
    EXPECT_THAT(forge(6, true, 512), HasSubstr("another type or shape"));
}

TEST_F(verified_slice, whole_model_and_slice_are_not_confused) {
    const gguf_model slice = gguf_model::open(directory_ / "s.gguf").value();
    EXPECT_EQ(manifest::compute(slice).error().code, make_error_code(errc::unsupported));
    const gguf_model model = gguf_model::open(directory_ / "m.gguf").value();
    EXPECT_EQ(verify_slice(model, manifest_).error().code, make_error_code(errc::unsupported));
}

}  // namespace
}  // namespace kvasir::model
