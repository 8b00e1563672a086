// kvasir slice: cuts some experts of a model into a file of their own.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <string>

#include "cli/commands.hpp"
#include "cli/progress_bar.hpp"
#include "cli/size_text.hpp"
#include "model/model.hpp"

namespace kvasir::cli {
namespace {

constexpr std::string_view command = "slice";

struct slice_arguments {
    std::string model;
    std::string experts;
    std::string output;
    bool force = false;
    bool verify = false;
};

result<model::manifest> manifest_of(const model::gguf_model& model) {
    progress_bar progress("hashing " + model.path().filename().string());
    return model::manifest_for(model, {0, std::ref(progress)});
}

result<model::slice_info> write(const model::gguf_model& model, const model::expert_selection& selection,
                                const sha256_digest& model_digest, const std::filesystem::path& output) {
    progress_bar progress("writing " + output.filename().string());
    return model::write_slice(model, selection, model_digest, output, std::ref(progress));
}

result<void> verify(const std::filesystem::path& output, const model::manifest& manifest) {
    const auto slice = model::gguf_model::open(output);
    if (!slice) return slice.error();
    progress_bar progress("checking " + output.filename().string());
    return model::verify_slice(*slice, manifest, {0, std::ref(progress)});
}

int run(const slice_arguments& arguments) {
    const auto selection = model::expert_selection::parse(arguments.experts);
    if (!selection) {
        report(command, selection.error().message);
        return exit_usage;
    }
    const auto model = model::gguf_model::open(arguments.model);
    if (!model) return report(command, model.error());
    const std::filesystem::path output = arguments.output;
    std::error_code ignored;
    if (!arguments.force && std::filesystem::exists(std::filesystem::symlink_status(output, ignored)))
        return report(command, error(errc::io, output.string() + " exists already; give another name, or --force to "
                                                                 "replace it"));
    // What is wrong with the selection is said before a large model is hashed.
    if (model::is_slice(*model))
        return report(command,
                      error(errc::unsupported, arguments.model + " is a slice itself; cut from the whole model"));
    const auto experts = model::map_experts(*model);
    if (!experts) return report(command, experts.error());
    if (auto held = selection->resolve(*experts); !held) return report(command, held.error());

    const auto manifest = manifest_of(*model);
    if (!manifest) return report(command, manifest.error());
    const auto info = write(*model, *selection, manifest->model_digest(), output);
    if (!info) return report(command, info.error());
    if (arguments.verify)
        if (auto verified = verify(output, *manifest); !verified) {
            std::filesystem::remove(output, ignored);
            return report(command, verified.error());
        }
    const auto held = info->held();
    fmt::print("{}: {} of {} in {}, {} of model {}{}\n", output.string(), count_text(info->n_experts(), "expert"),
               experts->n_experts(), count_text(held.size(), "layer"),
               size_text(std::filesystem::file_size(output, ignored)), manifest->model_digest().hex(),
               arguments.verify ? ", verified" : "");
    return exit_ok;
}

}  // namespace

void add_slice_command(CLI::App& app, command_action& chosen) {
    const auto arguments = std::make_shared<slice_arguments>();
    CLI::App* sub = app.add_subcommand("slice", "Cut experts out of a model into a file that a worker can hold");
    sub->add_option("MODEL", arguments->model, "A GGUF model, or any file of a split one")->required();
    sub->add_option("--experts", arguments->experts,
                    "Which experts: 3:0-63,4:0-63 (layer:experts), 5:7+9, *:0-7 (of every layer), all")
        ->required();
    sub->add_option("-o,--output", arguments->output, "The file to write")->required();
    sub->add_flag("--force", arguments->force, "Replace the file if it exists");
    sub->add_flag("--verify", arguments->verify, "Read the slice back and compare its digests with the model's");
    sub->callback([arguments, &chosen] { chosen = [arguments] { return run(*arguments); }; });
}

}  // namespace kvasir::cli
