// kvasir manifest: the digests of a model, and slices held against them.
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

constexpr std::string_view command = "manifest";

struct manifest_arguments {
    std::string model;
    std::string output;
    std::string slice;
    std::string against;
    unsigned n_threads = 0;
};

int make_manifest(const manifest_arguments& arguments) {
    const auto model = model::gguf_model::open(arguments.model);
    if (!model) return report(command, model.error());
    std::filesystem::path output = model::manifest_path_beside(*model);
    if (!arguments.output.empty()) output = arguments.output;
    std::error_code ignored;
    for (const model::model_file& file : model->files())
        if (std::filesystem::equivalent(output, file.path, ignored))
            return report(command,
                          error(errc::invalid_input, output.string() + " is the model itself; give another name"));
    result<model::manifest> made = [&] {
        progress_bar progress("hashing " + model->path().filename().string());
        return model::manifest::compute(*model, {arguments.n_threads, std::ref(progress)});
    }();
    if (!made) return report(command, made.error());
    if (output == "-") {
        fmt::print("{}", made->to_json());
        return exit_ok;
    }
    if (auto saved = made->save(output); !saved) return report(command, saved.error());
    fmt::print("model digest {}\nwritten to {}\n", made->model_digest().hex(), output.string());
    return exit_ok;
}

int check_slice(const manifest_arguments& arguments) {
    const auto manifest = model::manifest::load(arguments.against);
    if (!manifest) return report(command, manifest.error());
    const auto slice = model::gguf_model::open(arguments.slice);
    if (!slice) return report(command, slice.error());
    const result<void> verified = [&] {
        progress_bar progress("checking " + slice->path().filename().string());
        return model::verify_slice(*slice, *manifest, {arguments.n_threads, std::ref(progress)});
    }();
    if (!verified) return report(command, verified.error());
    const auto info = model::read_slice_info(*slice);
    if (!info) return report(command, info.error());
    fmt::print("{} is intact: {} of model {}\n", slice->path().string(), count_text(info->n_experts(), "expert"),
               manifest->model_digest().hex());
    return exit_ok;
}

}  // namespace

void add_manifest_command(CLI::App& app, command_action& chosen) {
    const auto arguments = std::make_shared<manifest_arguments>();
    CLI::App* sub = app.add_subcommand("manifest",
                                       "Make a model's manifest (the digests of all its parts), or check a slice "
                                       "against one");
    auto* model = sub->add_option("MODEL", arguments->model, "A GGUF model, or any file of a split one");
    auto* output = sub->add_option("-o,--output", arguments->output,
                                   "Where to write the manifest (default: MODEL.manifest.json; - is standard output)");
    sub->add_option("--threads", arguments->n_threads, "Threads to hash with (default: all processors)")
        ->check(CLI::Range(1U, 256U));
    auto* check = sub->add_option("--check", arguments->slice, "A slice to check instead of making a manifest");
    auto* against = sub->add_option("--against", arguments->against, "The manifest to check it against");
    check->needs(against)->excludes(model)->excludes(output);
    against->needs(check);
    sub->callback([arguments, check, model, &chosen] {
        if (model->empty() && check->empty()) throw CLI::RequiredError("a model, or --check with --against,");
        chosen = [arguments] { return arguments->slice.empty() ? make_manifest(*arguments) : check_slice(*arguments); };
    });
}

}  // namespace kvasir::cli
