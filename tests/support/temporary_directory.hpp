// A directory of a test's own, gone with the object.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::test_support {

class temporary_directory {
  public:
    temporary_directory();
    ~temporary_directory();
    temporary_directory(const temporary_directory&) = delete;
    temporary_directory& operator=(const temporary_directory&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
    /// Names of all entries, sorted.
    std::vector<std::string> names() const;

  private:
    std::filesystem::path path_;
};

/// Throws std::runtime_error when the file cannot be read or written.
std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, std::string_view bytes);

}  // namespace kvasir::test_support
