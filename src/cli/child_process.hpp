// Another program started from this one, whose output lines are read.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace kvasir::cli {

/// Move-only. A child still running when the object goes is killed and waited for.
class child_process {
  public:
    /// Starts `program` with `arguments`; its stdout can be read here, its stderr is ours. The child does not outlive
    /// this process.
    static result<child_process> start(const std::string& program, const std::vector<std::string>& arguments);

    child_process(child_process&& other) noexcept;
    child_process& operator=(child_process&& other) noexcept;
    ~child_process();

    /// The next whole line of its stdout; empty when `patience` passes or it has closed its output.
    std::optional<std::string> read_line(duration patience);
    /// Whether the last line has been read and no more can come.
    bool has_closed_output() const { return output_closed_; }
    /// SIGKILL, and waits.
    void kill_now();

    pid_t pid() const { return pid_; }

  private:
    child_process(pid_t pid, int output) : pid_(pid), output_(output) {}

    pid_t pid_ = -1;
    int output_ = -1;
    bool output_closed_ = false;
    std::string unread_;
};

}  // namespace kvasir::cli
