#include "cli/child_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace kvasir::cli {

result<child_process> child_process::start(const std::string& program, const std::vector<std::string>& arguments) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("cannot make a pipe");
    // Everything the child needs after fork() is made before: between fork and exec only system calls are safe.
    std::vector<std::string> texts = {program};
    texts.insert(texts.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& text : texts)
        pointers.push_back(text.data());
    pointers.push_back(nullptr);

    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) {
        error failure = system_error("cannot start " + program);
        ::close(ends[0]);
        ::close(ends[1]);
        return failure;
    }
    if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(127);
        ::dup2(ends[1], STDOUT_FILENO);
        ::execv(program.c_str(), pointers.data());
        ::_exit(127);
    }
    ::close(ends[1]);
    return child_process(child, ends[0]);
}

child_process::child_process(child_process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::exchange(other.output_, -1)),
      output_closed_(other.output_closed_),
      unread_(std::move(other.unread_)) {}

child_process& child_process::operator=(child_process&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(output_, other.output_);
    std::swap(output_closed_, other.output_closed_);
    std::swap(unread_, other.unread_);
    return *this;
}

child_process::~child_process() {
    kill_now();
    if (output_ >= 0) ::close(output_);
}

void child_process::kill_now() {
    if (pid_ < 0) return;
    const pid_t child = std::exchange(pid_, -1);
    ::kill(child, SIGKILL);
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
}

std::optional<std::string> child_process::read_line(duration patience) {
    const time_point deadline = steady_clock_source().now() + patience;
    for (;;) {
        if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
            std::string line = unread_.substr(0, end);
            unread_.erase(0, end + 1);
            return line;
        }
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock_source().now()).count();
        if (left <= 0) return std::nullopt;
        pollfd waiting{output_, POLLIN, 0};
        const int ready = ::poll(&waiting, 1, static_cast<int>(left));
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return std::nullopt;
        std::array<char, 4096> chunk{};
        const ssize_t size = ::read(output_, chunk.data(), chunk.size());
        if (size <= 0) {
            output_closed_ = true;
            return std::nullopt;
        }
        unread_.append(chunk.data(), static_cast<std::size_t>(size));
    }
}

}  // namespace kvasir::cli
