// The names of a split model's files: `<prefix>-00002-of-00003.gguf`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir::model {

struct split_name {
    std::string prefix;        ///< without directory
    std::uint32_t number = 0;  ///< from 1
    std::uint32_t count = 0;

    static std::optional<split_name> parse(std::string_view file_name);
    /// The file name of another part.
    std::string part(std::uint32_t part_number) const;
};

}  // namespace kvasir::model
