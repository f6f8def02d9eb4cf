#include "witan/train/rollouts/reward_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "witan/base/json.h"
#include "witan/base/process.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"

extern char** environ;

namespace witan {
namespace {

constexpr size_t kMostShown = 1000;                // bytes of a program's errors in a message
constexpr size_t kMostBytesOfLine = size_t{4096};  // of its output, on average

// A running program with pipes to its standard streams; killed with its group when this ends before it does.
class Program {
 public:
  Program(const std::string& command, int64_t memory_mib) {
    // A socket, since writing to one that the program has closed can be told apart from a signal.
    require_call(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in_.data()), "socketpair");
    require_call(::pipe2(out_.data(), O_CLOEXEC), "pipe");
    require_call(::pipe2(errors_.data(), O_CLOEXEC), "pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in_[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out_[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, errors_[1], STDERR_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    // The limit is set by a shell before it becomes the one that runs the command.
    std::string shell = "sh", option = "-c", text = command, limit = std::to_string(memory_mib * 1024),
                limited = "ulimit -v \"$1\" && exec sh -c \"$0\"";
    std::array<char*, 6> arguments = {shell.data(), option.data(), text.data(), nullptr, nullptr, nullptr};
    if (memory_mib > 0) arguments = {shell.data(), option.data(), limited.data(), text.data(), limit.data(), nullptr};
    const int failure = ::posix_spawn(&pid_, "/bin/sh", &actions, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (failure != 0) throw RewardError(cat("cannot run /bin/sh: ", std::strerror(failure)));
    for (int* fd : {&in_[1], &out_[1], &errors_[1]}) close(*fd);
    for (const int fd : {in_[0], out_[0], errors_[0]}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  ~Program() {
    if (pid_ > 0) {
      ::kill(-pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    for (int* fd : {&in_[0], &in_[1], &out_[0], &out_[1], &errors_[0], &errors_[1]}) close(*fd);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Sends `input` and reads until both outputs are closed. Returns false if that takes longer than until `deadline`, or
  // the output grows beyond `most`.
  bool exchange(const std::string& input, size_t most, const Stopwatch& since, double seconds) {
    size_t sent = 0;
    while (out_[0] >= 0 || errors_[0] >= 0) {
      std::array<pollfd, 3> fds = {{{in_[0], POLLOUT, 0}, {out_[0], POLLIN, 0}, {errors_[0], POLLIN, 0}}};
      const double left = seconds - since.seconds();
      if (left <= 0) return false;
      if (::poll(fds.data(), fds.size(), static_cast<int>(std::ceil(std::min(left, 3600.0) * 1000))) < 0) {
        if (errno == EINTR) continue;
        throw RewardError(cat("poll: ", std::strerror(errno)));
      }
      if (fds[0].revents != 0) send(input, sent);
      if (fds[1].revents != 0) read(out_[0], output);
      if (fds[2].revents != 0) read(errors_[0], errors);
      if (output.size() > most) return false;
      if (errors.size() > 2 * kMostShown) errors.erase(0, errors.size() - kMostShown);
    }
    return true;
  }

  // Waits for its end; nothing if it goes on until the deadline. Its outputs are closed, so it is about to end.
  bool finish(const Stopwatch& since, double seconds) {
    while (true) {
      const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
      if (ended == pid_) break;
      if (ended < 0 && errno != EINTR) throw RewardError(cat("waitpid: ", std::strerror(errno)));
      if (since.seconds() > seconds) return false;
      ::poll(nullptr, 0, 1);
    }
    ::kill(-pid_, SIGKILL);  // what it started and left
    pid_ = -1;
    return true;
  }

  std::string output, errors;
  int status = 0;

 private:
  static void require_call(int result, const char* name) {
    if (result != 0) throw RewardError(cat(name, ": ", std::strerror(errno)));
  }
  static void close(int& fd) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  void send(const std::string& input, size_t& sent) {
    const ssize_t n = ::send(in_[0], input.data() + sent, input.size() - sent, MSG_NOSIGNAL);
    if (n > 0) sent += static_cast<size_t>(n);
    const bool closed = n < 0 && errno != EAGAIN && errno != EINTR;  // a program need not read all of its input
    if (closed || sent == input.size()) close(in_[0]);
  }
  static void read(int& fd, std::string& to) {
    std::array<char, 1 << 16> buffer;
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n > 0) to.append(buffer.data(), static_cast<size_t>(n));
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) close(fd);
  }

  std::array<int, 2> in_ = {-1, -1}, out_ = {-1, -1}, errors_ = {-1, -1};
  pid_t pid_ = -1;
};

std::string ended_by(int status) {
  return WIFSIGNALED(status) ? cat("was killed by signal ", WTERMSIG(status))
                             : cat("ended with code ", WEXITSTATUS(status));
}

// The number of a line; none if it has no finite one.
std::optional<double> number_of(std::string_view line) {
  const size_t first = line.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  line = line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
  double value = 0;
  const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error == std::errc() && rest == line.data() + line.size() && std::isfinite(value)) return value;
  if (line.front() != '{') return {};
  try {
    const Json object = parse_json(line, "a reward");
    const auto reward = object.find("reward");
    if (reward == object.end() || !reward->is_number()) return {};
    value = reward->get<double>();
  } catch (const Error&) {
    return {};
  }
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::vector<double> numbers_of(const std::string& output, size_t wanted, const std::function<void(std::string)>& fail) {
  std::vector<double> numbers;
  size_t begin = 0;
  while (begin < output.size()) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    const std::string line = output.substr(begin, end - begin);
    begin = end + 1;
    const std::optional<double> number = number_of(line);
    if (!number)
      fail(cat("line ", numbers.size() + 1,
               " of its output is neither a finite number nor {\"reward\": NUMBER}: ", line.substr(0, 200)));
    numbers.push_back(*number);
  }
  if (numbers.size() != wanted) fail(cat("it wrote ", numbers.size(), " rewards for ", wanted, " answers"));
  return numbers;
}

std::string lines_of(std::span<const SampledAnswer> sampled) {
  std::string lines;
  for (const SampledAnswer& one : sampled)
    lines += Json{{"prompt", one.prompt}, {"completion", one.completion}, {"answer", one.answer}}.dump(
                 -1, ' ', false, Json::error_handler_t::replace) +
             "\n";
  return lines;
}

std::vector<double> run_once(const RewardProgram& with, std::span<const SampledAnswer> sampled) {
  const std::string input = lines_of(sampled);
  const Stopwatch since;
  Program program(with.command, with.memory_mib);
  const auto fail = [&](const std::string& why) {
    std::string errors = program.errors.substr(program.errors.size() - std::min(program.errors.size(), kMostShown));
    while (!errors.empty() && errors.back() == '\n') errors.pop_back();
    throw RewardError(cat("reward_command = ", with.command, ": ", why,
                          errors.empty() ? "" : cat("; it wrote to its standard error: ", errors),
                          with.memory_mib == 0 ? ""
                                               : cat("; its processes have reward_memory_limit = ", with.memory_mib,
                                                     " MiB of address space each"),
                          ". Run it on a line of RUN/rollouts to see what it does"));
  };
  const size_t most = kMostBytesOfLine * sampled.size();
  const bool in_time = program.exchange(input, most, since, with.seconds) && program.finish(since, with.seconds);
  if (program.output.size() > most) fail(cat("it wrote more than ", most, " bytes for ", sampled.size(), " answers"));
  if (!in_time) fail(cat("it has not ended after reward_timeout = ", with.seconds, " s"));
  if (program.status != 0) fail(cat("it ", ended_by(program.status)));
  return numbers_of(program.output, sampled.size(), fail);
}

std::vector<double> run_with_retries(const RewardProgram& with, std::span<const SampledAnswer> sampled) {
  for (int64_t tried = 0;; ++tried) try {
      return run_once(with, sampled);
    } catch (const RewardError& error) {
      if (tried < with.retries) continue;
      if (tried == 0) throw;
      throw RewardError(cat("run ", tried + 1, " times (reward_retries = ", with.retries, "), ", error.what()));
    }
}

}  // namespace

std::vector<double> run_reward_program(const RewardProgram& program, const std::vector<SampledAnswer>& sampled) {
  const size_t workers = std::min(static_cast<size_t>(program.workers), sampled.size());
  std::vector<std::vector<double>> parts(workers);
  side_by_side(workers, [&](size_t i) {
    const size_t begin = sampled.size() * i / workers, end = sampled.size() * (i + 1) / workers;
    parts[i] = run_with_retries(program, std::span(sampled).subspan(begin, end - begin));
  });
  std::vector<double> rewards;
  for (const std::vector<double>& part : parts) std::ranges::copy(part, std::back_inserter(rewards));
  return rewards;
}

}  // namespace witan
