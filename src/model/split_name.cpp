#include "model/split_name.hpp"

#include <fmt/core.h>

#include <charconv>

namespace kvasir::model {
namespace {

std::optional<std::uint32_t> five_digits(std::string_view text) {
    std::uint32_t value = 0;
    const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.size() != 5 || status != std::errc() || stop != text.data() + text.size()) return std::nullopt;
    return value;
}

}  // namespace

std::optional<split_name> split_name::parse(std::string_view file_name) {
    constexpr std::string_view shape = "-00001-of-00001.gguf";
    if (file_name.size() <= shape.size()) return std::nullopt;
    const std::string_view tail = file_name.substr(file_name.size() - shape.size());
    const auto number = five_digits(tail.substr(1, 5));
    const auto count = five_digits(tail.substr(10, 5));
    if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf" || !number || !count)
        return std::nullopt;
    return split_name{std::string(file_name.substr(0, file_name.size() - shape.size())), *number, *count};
}

std::string split_name::part(std::uint32_t part_number) const {
    return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, part_number, count);
}

}  // namespace kvasir::model
