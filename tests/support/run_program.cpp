#include "support/run_program.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "support/temporary_directory.hpp"

namespace kvasir::test_support {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& words) {
    std::vector<char*> pointers;
    for (std::string& word : words)
        pointers.push_back(word.data());
    pointers.push_back(nullptr);
    return pointers;
}

std::string name_of(const std::string& assignment) {
    return assignment.substr(0, assignment.find('=') + 1);
}

}  // namespace

program_result run_program(const std::vector<std::string>& words, const std::vector<std::string>& environment) {
    const temporary_directory directory;
    const std::string out_path = (directory / "out").string();
    const std::string err_path = (directory / "err").string();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out_path.c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err_path.c_str(), O_WRONLY | O_CREAT, 0600);

    std::vector<std::string> all_words = words;
    std::vector<std::string> variables = environment;
    for (char** variable = environ; *variable != nullptr; ++variable) {
        bool replaced = false;
        for (const std::string& addition : environment)
            replaced = replaced || std::string(*variable).starts_with(name_of(addition));
        if (!replaced) variables.emplace_back(*variable);
    }
    pid_t child = 0;
    const int failure = ::posix_spawn(&child, words.front().c_str(), &actions, nullptr, pointers_to(all_words).data(),
                                      pointers_to(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    if (failure != 0) throw std::runtime_error("cannot start " + words.front());
    int status = 0;
    if (::waitpid(child, &status, 0) != child) throw std::runtime_error("lost " + words.front());
    program_result result;
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.out = read_file(out_path);
    result.err = read_file(err_path);
    return result;
}

}  // namespace kvasir::test_support
