#include "structure/structure_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>

namespace kvasir::structure {
namespace {

using names = std::vector<std::string_view>;

constexpr std::size_t max_lines = 800;

struct part_rule {
    std::string_view part;
    names below;  ///< the parts it may include besides itself
};

// The table of parts. A new part is a row here; so is a new direction, after it has been agreed on.
const std::vector<part_rule>& part_rules() {
    static const std::vector<part_rule> rules = {
        {"base", {}},
        {"model", {"base"}},
        {"expert", {"base"}},
        {"wire", {"base"}},
        {"net", {"wire", "base"}},
        {"relay", {"net", "wire", "base"}},
        {"market", {"net", "wire", "model", "base"}},
        {"ring", {"net", "wire", "model", "base"}},
        {"node", {"net", "wire", "model", "expert", "base"}},
        {"swarm", {"net", "wire", "expert", "base"}},
        {"backend", {"swarm", "net", "wire", "expert", "model", "base"}},
        {"cli", {"backend", "swarm", "node", "ring", "market", "relay", "net", "wire", "expert", "model", "base"}},
    };
    return rules;
}

const part_rule* rule_of(std::string_view part) {
    const auto found = std::ranges::find(part_rules(), part, &part_rule::part);
    return found == part_rules().end() ? nullptr : &*found;
}

struct foreign_rule {
    std::string_view prefix;  ///< of the header's name as it is included
    names places;             ///< prefixes of the files that may include it
};

// Headers of others that only some places may see. The first row whose prefix fits decides.
const std::vector<foreign_rule>& foreign_rules() {
    static const std::vector<foreign_rule> rules = {
        {"ggml-backend-impl.h", {"src/backend/"}},
        {"ggml", {"src/expert/", "src/model/", "src/backend/", "src/ring/", "src/cli/"}},
        {"gguf.h", {"src/model/", "src/ring/", "src/cli/"}},
        {"llama", {"src/ring/", "src/cli/"}},
        {"boost/beast", {"src/net/"}},
        {"boost/asio",
         {"src/net/", "src/node/", "src/swarm/", "src/ring/", "src/market/", "src/relay/", "src/backend/", "src/cli/"}},
        {"openssl/", {"src/net/", "src/base/sha256.cpp"}},
        {"sqlite3.h", {"src/market/"}},
    };
    return rules;
}

struct include {
    std::string_view name;
    bool quoted = false;
};

std::string_view without_leading_blanks(std::string_view text) {
    const auto first = text.find_first_not_of(" \t");
    return first == std::string_view::npos ? std::string_view{} : text.substr(first);
}

/// What follows `word` in a preprocessor line `# word …`.
std::optional<std::string_view> directive(std::string_view line, std::string_view word) {
    line = without_leading_blanks(line);
    if (!line.starts_with('#')) {
        return std::nullopt;
    }
    line = without_leading_blanks(line.substr(1));
    if (!line.starts_with(word)) {
        return std::nullopt;
    }
    return without_leading_blanks(line.substr(word.size()));
}

std::optional<include> include_in(std::string_view line) {
    const auto rest = directive(line, "include");
    if (!rest || rest->size() < 2 || (rest->front() != '"' && rest->front() != '<')) {
        return std::nullopt;
    }
    const bool quoted = rest->front() == '"';
    const auto end = rest->find(quoted ? '"' : '>', 1);
    if (end == std::string_view::npos) {
        return std::nullopt;
    }
    return include{rest->substr(1, end - 1), quoted};
}

std::string_view first_folder(std::string_view path) {
    const auto slash = path.find('/');
    return slash == std::string_view::npos ? std::string_view{} : path.substr(0, slash);
}

/// Why a file of `part` at `file` may not have this include; empty when it may.
std::string objection(std::string_view file, std::string_view part, const include& wanted) {
    const auto folder = first_folder(wanted.name);
    const part_rule* const target = rule_of(folder);
    // <net/if.h> and its like are the system's; our headers end in .hpp.
    if (wanted.quoted || (target != nullptr && wanted.name.ends_with(".hpp"))) {
        if (target == nullptr) {
            return fmt::format("\"{}\" is no <part>/<header> of this project; headers of others are included with <>",
                               wanted.name);
        }
        const part_rule* const rule = rule_of(part);
        if (folder == part || rule == nullptr || std::ranges::find(rule->below, folder) != rule->below.end()) {
            return {};
        }
        return fmt::format("{} may not include {}; below it are only: {}", part, wanted.name,
                           rule->below.empty() ? "nothing" : fmt::format("{}", fmt::join(rule->below, ", ")));
    }
    for (const auto& rule : foreign_rules()) {
        if (!wanted.name.starts_with(rule.prefix)) {
            continue;
        }
        const bool allowed =
            std::ranges::any_of(rule.places, [&](std::string_view place) { return file.starts_with(place); });
        return allowed ? std::string()
                       : fmt::format("<{}> may be included only in {}", wanted.name, fmt::join(rule.places, ", "));
    }
    return {};
}

void check_file(const std::filesystem::path& path, const std::string& file, report& out) {
    std::ifstream stream(path);
    if (!stream) {
        throw std::runtime_error("cannot read " + path.string());
    }
    const bool in_source = file.starts_with("src/");
    const auto part = in_source ? first_folder(std::string_view(file).substr(4)) : std::string_view{};
    bool has_guard = false;
    std::size_t number = 0;
    for (std::string line; std::getline(stream, line);) {
        ++number;
        has_guard = has_guard || directive(line, "pragma once").has_value();
        if (!in_source) {
            continue;
        }
        if (const auto found = include_in(line)) {
            if (auto reason = objection(file, part, *found); !reason.empty()) {
                out.violations.push_back({file, number, std::move(reason)});
            }
        }
    }
    if (stream.bad()) {
        throw std::runtime_error("cannot read " + path.string());
    }
    if (number > max_lines) {
        out.violations.push_back(
            {file, 0, fmt::format("has {} lines, more than {}; it is probably two things", number, max_lines)});
    }
    if (!file.ends_with(".cpp") && !has_guard) {
        out.violations.push_back({file, 0, "is a header without #pragma once"});
    }
    if (in_source && rule_of(part) == nullptr) {
        out.violations.push_back(
            {file, 0, "belongs to no known part; a new part is a row in tests/structure/structure_rules.cpp"});
    }
}

}  // namespace

report check(const std::filesystem::path& root) {
    if (!std::filesystem::is_directory(root / "src")) {
        throw std::runtime_error("no folder src in " + root.string());
    }
    std::vector<std::filesystem::path> files;
    for (const auto* const folder : {"src", "tests", "fuzz", "bench"}) {
        if (!std::filesystem::is_directory(root / folder)) {
            continue;
        }
        for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
            const auto extension = entry.path().extension();
            if (entry.is_regular_file() && (extension == ".cpp" || extension == ".hpp" || extension == ".h")) {
                files.push_back(entry.path());
            }
        }
    }
    std::ranges::sort(files);

    report out;
    std::set<std::string, std::less<>> parts;
    for (const auto& path : files) {
        const auto file = path.lexically_relative(root).generic_string();
        check_file(path, file, out);
        if (file.starts_with("src/")) {
            parts.emplace(first_folder(std::string_view(file).substr(4)));
        }
    }
    out.n_files = files.size();
    out.parts.assign(parts.begin(), parts.end());
    return out;
}

}  // namespace kvasir::structure
