// kvasir inspect: what a model is made of, seen by its experts, or what a slice holds.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/size_text.hpp"
#include "model/model.hpp"

namespace kvasir::cli {
namespace {

using json = nlohmann::ordered_json;
using model::expert_layer;
using model::expert_role;

constexpr std::string_view command = "inspect";
/// What a phone, a laptop and a desktop may want to carry.
constexpr std::uint32_t sample_counts[] = {8, 16, 64};

struct inspect_arguments {
    std::string model;
    bool as_json = false;
};

/// The facts, collected once for both ways to print them.
struct expert_summary {
    std::uint64_t n_blocks = 0;
    std::uint32_t min_experts = 0;
    std::uint32_t max_experts = 0;
    std::int64_t n_used = 0;
    std::int64_t n_in = 0;
    std::int64_t min_ff = 0;
    std::int64_t max_ff = 0;
    std::uint64_t min_expert_bytes = 0;
    std::uint64_t max_expert_bytes = 0;
    std::uint64_t tensor_bytes = 0;
    std::set<std::string> types;
    bool merged = false;
    bool ungated = false;
    bool biases = false;
    bool scales = false;
};

expert_summary summarise(const model::gguf_model& model, const model::expert_map& experts) {
    expert_summary summary;
    summary.n_blocks =
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, model.hyper_parameter("block_count").value_or(0)));
    summary.n_used = model.hyper_parameter("expert_used_count").value_or(0);
    for (const model::tensor_info& tensor : model.tensors())
        summary.tensor_bytes += tensor.size_bytes();
    const auto& layers = experts.layers;
    const auto by_experts = std::ranges::minmax(layers, {}, &expert_layer::n_experts);
    const auto by_ff = std::ranges::minmax(layers, {}, &expert_layer::n_ff);
    const auto by_bytes = std::ranges::minmax(layers, {}, &expert_layer::expert_size_bytes);
    summary.min_experts = by_experts.min.n_experts;
    summary.max_experts = by_experts.max.n_experts;
    summary.n_in = layers.front().n_in();
    summary.min_ff = by_ff.min.n_ff();
    summary.max_ff = by_ff.max.n_ff();
    summary.min_expert_bytes = by_bytes.min.expert_size_bytes();
    summary.max_expert_bytes = by_bytes.max.expert_size_bytes();
    for (const expert_layer& layer : layers) {
        summary.merged = summary.merged || layer[expert_role::gate_up];
        summary.ungated = summary.ungated || (!layer[expert_role::gate_up] && !layer[expert_role::gate]);
        for (const model::routed_tensor& tensor : layer.tensors) {
            if (!tensor) continue;
            summary.types.insert(model::type_name(tensor.type()));
            summary.biases = summary.biases || tensor.bias != nullptr;
            summary.scales = summary.scales || tensor.scale != nullptr;
        }
    }
    return summary;
}

std::string range_text(std::int64_t min, std::int64_t max) {
    return min == max ? fmt::format("{}", min) : fmt::format("{} to {}", min, max);
}

std::string joined(const std::set<std::string>& words) {
    std::string text;
    for (const std::string& word : words)
        text += (text.empty() ? "" : ", ") + word;
    return text;
}

std::string form_text(const expert_summary& summary) {
    std::string text = summary.merged    ? "gate and up merged"
                       : summary.ungated ? "up and down, no gate"
                                         : "gate, up and down";
    if (summary.biases) text += ", with biases";
    if (summary.scales) text += ", with scales";
    return text;
}

void print_row(std::string_view name, std::string_view value) {
    fmt::print("{:<24}{}\n", name, value);
}

void print_files(const model::gguf_model& model) {
    print_row("name", model.text("general.name").value_or("(none)"));
    print_row("architecture", model.architecture());
    print_row("files", fmt::format("{}, {}", count_text(model.files().size(), "file"), size_text(model.size_bytes())));
}

double share_of(std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

int print_model(const model::gguf_model& model, const model::expert_map& experts) {
    const expert_summary summary = summarise(model, experts);
    print_files(model);
    print_row("blocks", fmt::format("{}, {} of them with routed experts", summary.n_blocks, experts.layers.size()));
    print_row("experts per block", fmt::format("{}, {} active per token",
                                               range_text(summary.min_experts, summary.max_experts), summary.n_used));
    print_row("experts in all", fmt::format("{}", experts.n_experts()));
    print_row("row, hidden row",
              fmt::format("{}, {} values", summary.n_in, range_text(summary.min_ff, summary.max_ff)));
    print_row("tensors", form_text(summary));
    print_row("types of weights", joined(summary.types));
    print_row("one expert", size_range_text(summary.min_expert_bytes, summary.max_expert_bytes));
    for (const std::uint32_t count : sample_counts)
        print_row(fmt::format("{} experts", count),
                  size_range_text(count * summary.min_expert_bytes, count * summary.max_expert_bytes));
    print_row("all experts", fmt::format("{}, {:.1f} % of the weights", size_text(experts.size_bytes()),
                                         100.0 * share_of(experts.size_bytes(), summary.tensor_bytes)));
    return exit_ok;
}

int print_slice(const model::gguf_model& slice, const model::slice_info& info, const model::expert_map& experts) {
    const expert_summary summary = summarise(slice, experts);
    print_files(slice);
    print_row("slice of model", info.model_digest.hex());
    print_row("holds",
              fmt::format("{} in {}", count_text(info.n_experts(), "expert"), count_text(info.layers.size(), "layer")));
    print_row("experts", model::to_text(info.held()));
    print_row("tensors", form_text(summary));
    print_row("types of weights", joined(summary.types));
    print_row("one expert", size_range_text(summary.min_expert_bytes, summary.max_expert_bytes));
    return exit_ok;
}

json describe(const expert_layer& layer) {
    json tensors = json::array();
    for (std::size_t i = 0; i < model::n_expert_roles; ++i) {
        const model::routed_tensor& tensor = layer.tensors[i];
        if (!tensor) continue;
        tensors.push_back({{"role", model::name_of(static_cast<expert_role>(i))},
                           {"type", model::type_name(tensor.type())},
                           {"n_in", tensor.n_in()},
                           {"n_out", tensor.n_out()},
                           {"expert_bytes", tensor.expert_size_bytes()},
                           {"bias", tensor.bias != nullptr},
                           {"scale", tensor.scale != nullptr}});
    }
    return {{"layer", layer.layer.value},
            {"n_experts", layer.n_experts},
            {"expert_bytes", layer.expert_size_bytes()},
            {"tensors", std::move(tensors)}};
}

json describe(const model::gguf_model& model, const model::expert_map& experts) {
    const expert_summary summary = summarise(model, experts);
    json document;
    document["name"] = model.text("general.name").value_or("");
    document["architecture"] = model.architecture();
    json& files = document["files"] = json::array();
    for (const model::model_file& file : model.files())
        files.push_back({{"name", file.path.filename().string()}, {"size_bytes", file.size_bytes}});
    document["size_bytes"] = model.size_bytes();
    document["n_blocks"] = summary.n_blocks;
    document["n_expert_blocks"] = experts.layers.size();
    document["experts_per_block"] = summary.max_experts;
    document["experts_used_per_token"] = summary.n_used;
    document["n_experts"] = experts.n_experts();
    document["n_in"] = summary.n_in;
    document["n_ff"] = summary.max_ff;
    document["types"] = summary.types;
    document["merged_gate_up"] = summary.merged;
    document["biases"] = summary.biases;
    document["scales"] = summary.scales;
    document["expert_bytes"] = {{"min", summary.min_expert_bytes}, {"max", summary.max_expert_bytes}};
    document["experts_bytes"] = experts.size_bytes();
    document["share_of_weights"] = share_of(experts.size_bytes(), summary.tensor_bytes);
    json& layers = document["layers"] = json::array();
    for (const expert_layer& layer : experts.layers)
        layers.push_back(describe(layer));
    return document;
}

json describe(const model::slice_info& info) {
    json layers = json::array();
    for (const model::slice_layer& layer : info.layers) {
        json ranges = json::array();
        for (const model::expert_range& range : layer.held.ranges)
            ranges.push_back({{"first", range.first.value}, {"count", range.count}});
        layers.push_back({{"layer", layer.held.layer.value},
                          {"n_experts_in_model", layer.n_experts_in_model},
                          {"ranges", std::move(ranges)}});
    }
    return {{"model_digest", info.model_digest.hex()},
            {"experts", model::to_text(info.held())},
            {"n_experts", info.n_experts()},
            {"layers", std::move(layers)}};
}

int run(const inspect_arguments& arguments) {
    const auto model = model::gguf_model::open(arguments.model);
    if (!model) return report(command, model.error());
    const bool slice = model::is_slice(*model);
    // The slice's own checks come first: they say better what is wrong with it.
    const auto info = slice ? model::read_slice_info(*model) : result<model::slice_info>(model::slice_info{});
    if (!info) return report(command, info.error());
    const auto experts = model::map_experts(*model);
    if (!experts) return report(command, experts.error());
    if (!arguments.as_json) return slice ? print_slice(*model, *info, *experts) : print_model(*model, *experts);
    json document = describe(*model, *experts);
    if (slice) document["slice"] = describe(*info);
    fmt::print("{}\n", document.dump(2, ' ', false, json::error_handler_t::replace));
    return exit_ok;
}

}  // namespace

void add_inspect_command(CLI::App& app, command_action& chosen) {
    const auto arguments = std::make_shared<inspect_arguments>();
    CLI::App* sub =
        app.add_subcommand("inspect", "Show a model's experts: how many, how large, how much a share of them weighs");
    sub->add_option("MODEL", arguments->model, "A GGUF model or slice, or any file of a split model")->required();
    sub->add_flag("--json", arguments->as_json, "Print JSON, with every layer");
    sub->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace kvasir::cli
