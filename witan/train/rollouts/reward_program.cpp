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
#include "witan/tokenizer/chat/chat_template.h"

extern char** environ;

namespace witan {
namespace {

constexpr size_t kMostShown = 1000;                       // bytes of a program's errors in a message
constexpr size_t kMostBytesOfLine = size_t{4096};         // of its output, on average
constexpr size_t kMostBytesOfMessages = size_t{1} << 16;  // the same, of conversations

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

// The finite number that a line is; none if it is something else.
std::optional<double> number_of(std::string_view line) {
  double value = 0;
  const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  const bool whole = error == std::errc() && rest == line.data() + line.size();
  return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// Throws DataError for messages that cannot follow an answer.
std::vector<std::string> messages_of(std::string_view line) {
  const jinja::Value object = jinja::from_json(line, "the line"),
                     list = decoded_messages(*jinja::find(*object.entries(), "messages"));
  require<DataError>(list.sequence() != nullptr, "its \"messages\" are no list");
  std::vector<std::string> messages;
  bool answer = false;
  for (const jinja::Value& message : *list.sequence()->items) {
    const jinja::Value normal = normal_message(message);
    const jinja::Value* role = jinja::find(*normal.entries(), "role");
    require<DataError>(role != nullptr && role->string() != nullptr, "a message has no role");
    answer = *role->string() == "assistant";
    require<DataError>(!answer || messages.empty(),
                       "a message of the assistant is not the first one: what it says is sampled");
    messages.push_back(to_json(normal));
  }
  require<DataError>(messages.empty() || !answer, "no message follows the assistant's");
  return messages;
}

// Throws DataError for a line that is neither a number nor an object with one or, with turns, with messages.
ProgramReply reply_of(std::string_view line, bool turns) {
  const size_t first = line.find_first_not_of(" \t\r");
  line = first == line.npos ? "" : line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
  ProgramReply reply{number_of(line)};
  if (!reply.reward && line.starts_with('{')) {
    const Json object = parse_json(line, "it");
    const auto reward = object.find("reward"), messages = object.find("messages");
    if (reward != object.end() && reward->is_number() && std::isfinite(reward->get<double>()))
      reply.reward = reward->get<double>();
    if (turns && messages != object.end() && !messages->is_null()) reply.messages = messages_of(line);
  }
  require<DataError>(reply.reward || !reply.messages.empty(), "it has no finite number");
  return reply;
}

// Replies to `sampled`, in order.
std::vector<ProgramReply> replies_of(const std::string& output, std::span<const SampledAnswer> sampled,
                                     const std::function<void(std::string)>& fail) {
  std::vector<ProgramReply> replies;
  size_t begin = 0;
  while (begin < output.size()) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    const std::string line = output.substr(begin, end - begin);
    begin = end + 1;
    const size_t number = replies.size();
    const bool turns = number < sampled.size() && sampled[number].turn > 0;
    try {
      replies.push_back(reply_of(line, turns));
    } catch (const Error& error) {
      fail(cat("line ", number + 1, " of its output is neither a finite number nor {\"reward\": NUMBER}",
               turns ? " nor {\"messages\": [...]}" : "", turns ? cat(" (", error.what(), ")") : "", ": ",
               line.substr(0, 200)));
    }
    if (turns && sampled[number].final && !replies.back().reward)
      fail(cat(
          "line ", number + 1,
          " of its output has no reward, and its answer is \"final\": no turn can follow it: ", line.substr(0, 200)));
  }
  if (replies.size() != sampled.size())
    fail(cat("it wrote ", replies.size(), " rewards for ", sampled.size(), " answers"));
  return replies;
}

std::string lines_of(std::span<const SampledAnswer> sampled) {
  std::string lines;
  for (const SampledAnswer& one : sampled) {
    Json line = {{"prompt", one.prompt}, {"completion", one.completion}, {"answer", one.answer}};
    if (one.turn > 0) {
      line["turn"] = one.turn;
      line["final"] = one.final;
      line["messages"] = parse_json(one.messages, "messages of a rollout");
    }
    lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  return lines;
}

std::vector<ProgramReply> run_once(const RewardProgram& with, std::span<const SampledAnswer> sampled) {
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
                          ". Give it a line of a file in the run's folder rollouts to see what it does"));
  };
  const size_t most = (sampled.front().turn > 0 ? kMostBytesOfMessages : kMostBytesOfLine) * sampled.size();
  const bool in_time = program.exchange(input, most, since, with.seconds) && program.finish(since, with.seconds);
  if (program.output.size() > most) fail(cat("it wrote more than ", most, " bytes for ", sampled.size(), " answers"));
  if (!in_time) fail(cat("it has not ended after reward_timeout = ", with.seconds, " s"));
  if (program.status != 0) fail(cat("it ", ended_by(program.status)));
  return replies_of(program.output, sampled, fail);
}

std::vector<ProgramReply> run_with_retries(const RewardProgram& with, std::span<const SampledAnswer> sampled) {
  for (int64_t tried = 0;; ++tried) try {
      return run_once(with, sampled);
    } catch (const RewardError& error) {
      if (tried < with.retries) continue;
      if (tried == 0) throw;
      throw RewardError(cat("run ", tried + 1, " times (reward_retries = ", with.retries, "), ", error.what()));
    }
}

}  // namespace

std::vector<ProgramReply> run_conversation_program(const RewardProgram& program,
                                                   const std::vector<SampledAnswer>& sampled) {
  const size_t workers = std::min(static_cast<size_t>(program.workers), sampled.size());
  std::vector<std::vector<ProgramReply>> parts(workers);
  side_by_side(workers, [&](size_t i) {
    const size_t begin = sampled.size() * i / workers, end = sampled.size() * (i + 1) / workers;
    parts[i] = run_with_retries(program, std::span(sampled).subspan(begin, end - begin));
  });
  std::vector<ProgramReply> replies;
  for (std::vector<ProgramReply>& part : parts) std::ranges::move(part, std::back_inserter(replies));
  return replies;
}

std::vector<double> run_reward_program(const RewardProgram& program, const std::vector<SampledAnswer>& sampled) {
  std::vector<double> rewards;
  for (const ProgramReply& reply : run_conversation_program(program, sampled)) rewards.push_back(reply.reward.value());
  return rewards;
}

}  // namespace witan
