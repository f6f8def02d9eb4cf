// The witan program in processes that a test starts, waits for and kills.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "support/comes_true.h"

namespace witan::test {

class Program {
 public:
  // Runs words[0] with the environment's variables and `more` ("RANK=0"); stdout and stderr go to the file `log`.
  Program(std::vector<std::string> words, const std::filesystem::path& log, std::vector<std::string> more = {}) {
    std::vector<char*> argv, variables;
    for (std::string& word : words) argv.push_back(word.data());
    for (std::string& variable : more) variables.push_back(variable.data());
    // Given duplicates, a shell uses the last value and getenv() the first, so each name occurs once.
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view name = std::string_view(*variable).substr(0, std::string_view(*variable).find('=') + 1);
      if (std::ranges::none_of(more, [&](const std::string& given) { return given.starts_with(name); }))
        variables.push_back(*variable);
    }
    argv.push_back(nullptr);
    variables.push_back(nullptr);
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::posix_spawn_file_actions_adddup2(&files, 1, 2);
    if (::posix_spawn(&process_, argv[0], &files, nullptr, argv.data(), variables.data()) != 0) process_ = -1;
    ::posix_spawn_file_actions_destroy(&files);
  }
  // A failing test leaves no process behind.
  ~Program() {
    send(SIGKILL);
    wait();
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Sends nothing if no process was started: kill(-1) would reach every process.
  void send(int signal) const {
    if (process_ > 0 && !ended_) ::kill(process_, signal);
  }
  // Signals its whole process group, as a terminal does, if it leads one.
  void send_to_group(int signal) const {
    if (process_ > 0 && !ended_) ::kill(-process_, signal);
  }
  // Its exit code, or minus the signal that ended it.
  int wait() {
    if (process_ < 0) return 127;
    if (!ended_) ::waitpid(process_, &status_, 0);
    ended_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }
  bool ends_within(double seconds) {
    return comes_true([this] { return ended(); }, seconds);
  }
  // Whether the condition holds before the process ends or the time is over.
  template <class Place>
  bool reaches(const Place& place, double seconds) {
    return comes_true([&] { return place() || ended(); }, seconds) && place();
  }

 private:
  bool ended() {
    if (process_ < 0) return true;
    if (!ended_) ended_ = ::waitpid(process_, &status_, WNOHANG) == process_;
    return ended_;
  }

  pid_t process_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace witan::test
