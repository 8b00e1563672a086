#include "support/model_builder.hpp"

#include <gguf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace kvasir::test_support {
namespace {

struct gguf_deleter {
    void operator()(gguf_context* context) const { gguf_free(context); }
};
struct ggml_deleter {
    void operator()(ggml_context* context) const { ggml_free(context); }
};

std::int64_t n_elements(const std::vector<std::int64_t>& ne) {
    std::int64_t product = 1;
    for (const std::int64_t size : ne)
        product *= size;
    return product;
}

}  // namespace

void model_builder::add_tensor(std::string name, ggml_type type, std::vector<std::int64_t> ne, std::mt19937& random) {
    const auto size = static_cast<std::size_t>(n_elements(ne) / ggml_blck_size(type)) * ggml_type_size(type);
    std::string data(size, '\0');
    for (char& byte : data)
        byte = static_cast<char>(random());
    tensors_.push_back({std::move(name), type, std::move(ne), std::move(data)});
}

void model_builder::write_part(const std::filesystem::path& path, std::size_t first, std::size_t count,
                               bool with_metadata,
                               const std::vector<std::pair<std::string, std::uint32_t>>& split_keys) const {
    const std::unique_ptr<gguf_context, gguf_deleter> file(gguf_init_empty());
    if (with_metadata) {
        gguf_set_val_str(file.get(), "general.architecture", architecture_.c_str());
        for (const auto& [key, value] : integers_)
            gguf_set_val_u32(file.get(), key.c_str(), value);
        for (const auto& [key, value] : texts_)
            gguf_set_val_str(file.get(), key.c_str(), value.c_str());
        if (n_tokens_ > 0) {
            std::vector<std::string> tokens;
            for (std::size_t i = 0; i < n_tokens_; ++i)
                tokens.push_back("token" + std::to_string(i));
            std::vector<const char*> pointers;
            for (const std::string& token : tokens)
                pointers.push_back(token.c_str());
            gguf_set_arr_str(file.get(), "tokenizer.ggml.tokens", pointers.data(), pointers.size());
            const std::vector<float> scores(n_tokens_, -0.5F);
            gguf_set_arr_data(file.get(), "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
        }
    }
    for (const auto& [key, value] : split_keys) {
        if (key == "split.tensors.count") {
            gguf_set_val_i32(file.get(), key.c_str(), static_cast<std::int32_t>(value));
        } else {
            gguf_set_val_u16(file.get(), key.c_str(), static_cast<std::uint16_t>(value));
        }
    }
    const std::unique_ptr<ggml_context, ggml_deleter> context(
        ggml_init({(count + 1) * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    for (std::size_t i = first; i < first + count; ++i) {
        const built_tensor& built = tensors_[i];
        ggml_tensor* tensor =
            ggml_new_tensor(context.get(), built.type, static_cast<int>(built.ne.size()), built.ne.data());
        ggml_set_name(tensor, built.name.c_str());
        // ggml only reads from it.
        tensor->data = const_cast<char*>(built.data.data());
        gguf_add_tensor(file.get(), tensor);
    }
    if (!gguf_write_to_file(file.get(), path.c_str(), /*only_meta=*/false))
        throw std::runtime_error("ggml cannot write " + path.string());
}

void model_builder::write(const std::filesystem::path& path) const {
    write_part(path, 0, tensors_.size(), true, {});
}

std::vector<std::filesystem::path> model_builder::write_split(const std::filesystem::path& prefix, std::size_t n_files,
                                                              bool metadata_only_first) const {
    std::vector<std::filesystem::path> paths;
    const std::size_t n_with_tensors = metadata_only_first ? n_files - 1 : n_files;
    std::size_t next = 0;
    for (std::size_t i = 0; i < n_files; ++i) {
        char suffix[64];
        std::snprintf(suffix, sizeof suffix, "-%05zu-of-%05zu.gguf", i + 1, n_files);
        paths.emplace_back(prefix.string() + suffix);
        std::size_t count = 0;
        if (i > 0 || !metadata_only_first) {
            const std::size_t position = metadata_only_first ? i - 1 : i;
            count = tensors_.size() * (position + 1) / n_with_tensors - next;
        }
        write_part(paths.back(), next, count, i == 0,
                   {{"split.no", static_cast<std::uint32_t>(i)},
                    {"split.count", static_cast<std::uint32_t>(n_files)},
                    {"split.tensors.count", static_cast<std::uint32_t>(tensors_.size())}});
        next += count;
    }
    return paths;
}

model_builder build_moe(const moe_shape& shape, std::mt19937& random) {
    model_builder model(shape.biases ? "gpt-oss" : "qwen3moe");
    const std::string& architecture = model.architecture();
    model.set_text("general.name", "built for a test");
    model.set_integer(architecture + ".block_count", shape.n_layers);
    model.set_integer(architecture + ".embedding_length", static_cast<std::uint32_t>(shape.n_embd));
    model.set_integer(architecture + ".expert_count", static_cast<std::uint32_t>(shape.n_experts));
    model.set_integer(architecture + ".expert_used_count", 2);
    model.set_vocabulary(20);
    std::size_t next_type = 0;
    const auto type = [&] { return shape.types[next_type++ % shape.types.size()]; };
    model.add_tensor("token_embd.weight", GGML_TYPE_F16, {shape.n_embd, 20}, random);
    for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
        const std::string prefix = "blk." + std::to_string(layer) + ".";
        model.add_tensor(prefix + "attn_norm.weight", GGML_TYPE_F32, {shape.n_embd}, random);
        if (layer < shape.n_dense_layers) {
            model.add_tensor(prefix + "ffn_up.weight", GGML_TYPE_Q8_0, {shape.n_embd, shape.n_ff}, random);
            continue;
        }
        const auto add_expert_tensor = [&](const std::string& role, std::int64_t n_in, std::int64_t n_out) {
            const std::string name = prefix + "ffn_" + role + "_exps.";
            model.add_tensor(name + "weight", type(), {n_in, n_out, shape.n_experts}, random);
            if (shape.biases) model.add_tensor(name + "bias", GGML_TYPE_F32, {n_out, shape.n_experts}, random);
            if (shape.scales) model.add_tensor(name + "scale", GGML_TYPE_F32, {shape.n_experts}, random);
        };
        model.add_tensor(prefix + "ffn_gate_inp.weight", GGML_TYPE_F32, {shape.n_embd, shape.n_experts}, random);
        if (shape.merged) {
            add_expert_tensor("gate_up", shape.n_embd, 2 * shape.n_ff);
        } else {
            if (shape.gated) add_expert_tensor("gate", shape.n_embd, shape.n_ff);
            add_expert_tensor("up", shape.n_embd, shape.n_ff);
        }
        add_expert_tensor("down", shape.n_ff, shape.n_embd);
        model.add_tensor(prefix + "ffn_up_shexp.weight", GGML_TYPE_Q8_0, {shape.n_embd, shape.n_ff}, random);
    }
    return model;
}

moe_shape random_moe_shape(std::mt19937& random) {
    static constexpr ggml_type types[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_Q4_0,  GGML_TYPE_Q8_0,
                                          GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ3_S, GGML_TYPE_MXFP4};
    const auto chance = [&](unsigned one_in) { return random() % one_in == 0; };
    moe_shape shape;
    shape.n_dense_layers = static_cast<std::uint32_t>(random() % 3);
    shape.n_layers = shape.n_dense_layers + 1 + static_cast<std::uint32_t>(random() % 4);
    shape.n_experts = 1 + static_cast<std::int64_t>(random() % 6);
    shape.merged = chance(3);
    shape.gated = !chance(4);
    shape.biases = chance(3);
    shape.scales = chance(3);
    shape.types.clear();
    for (std::size_t i = 0; i < 1 + random() % 4; ++i)
        shape.types.push_back(types[random() % std::size(types)]);
    return shape;
}

}  // namespace kvasir::test_support
