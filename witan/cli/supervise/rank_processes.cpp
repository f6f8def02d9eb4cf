#include "witan/cli/supervise/rank_processes.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "witan/base/error.h"
#include "witan/comm/processes/launch.h"
#include "witan/serve/access.h"
#include "witan/train/signals/signals.h"

namespace witan::cli {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";  // valid even if the program's file has been replaced
constexpr const char* kLoopback = "127.0.0.1";

// A socket at a free port, which reserves the port: the system gives it to no other program, and rank 0 can listen
// there (SO_REUSEADDR) since this socket does not.
Socket reserve_port() {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  require<IoError>(socket.open() && ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                       ::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0,
                   "no port of this host is free for the ranks to meet: ", std::strerror(errno));
  return socket;
}

// This process's environment with the variables `own` added, without those of other launchers.
std::vector<std::string> environment_with(std::vector<std::string> own) {
  constexpr std::string_view kLaunchers[] = {"LOCAL_WORLD_SIZE=", "TORCHELASTIC_USE_AGENT_STORE="};
  std::vector<std::string> all = std::move(own);
  const size_t owned = all.size();
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable, name = text.substr(0, text.find('=') + 1);
    const bool said = std::any_of(all.begin(), all.begin() + static_cast<ptrdiff_t>(owned),
                                  [&](const std::string& one) { return one.starts_with(name); });
    if (!said && std::ranges::find(kLaunchers, name) == std::end(kLaunchers)) all.emplace_back(text);
  }
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Runs in the new process, where only calls that are safe in a signal handler are allowed. Does not return.
[[noreturn]] void become(char* const* argv, char* const* variables, int nothing, int log, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(static_cast<int>(ExitCode::preempted));  // the supervisor has died already
  ::dup2(nothing, STDIN_FILENO);
  if (log >= 0) {
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(kThisProgram, argv, variables);
  constexpr int kNotStarted = 127;
  ::_exit(kNotStarted);
}

}  // namespace

RankProcesses::RankProcesses(const JobCall& call)
    : notice_(call.notice), terminate_(call.terminate), reserved_(reserve_port()) {
  const int port = local_end(reserved_).port;
  const std::string secret = serve::new_secret();
  for (int rank = 0; rank < call.ranks; ++rank) start(call, rank, port, secret);
}

RankProcesses::~RankProcesses() {
  send(SIGKILL);
  for (const Process& process : processes_) {
    if (process.runs) ::waitpid(process.pid, nullptr, 0);
    if (process.log >= 0) ::close(process.log);
  }
}

void RankProcesses::start(const JobCall& call, int rank, int port, const std::string& secret) {
  std::vector<std::string> own = call.variables, words = call.words;
  for (const std::string& variable :
       {cat("RANK=", rank), cat("WORLD_SIZE=", call.ranks), cat("LOCAL_RANK=", rank), cat("MASTER_ADDR=", kLoopback),
        cat("MASTER_PORT=", port), cat("WITAN_JOB_SECRET=", secret)})
    own.push_back(variable);
  std::vector<std::string> environment = environment_with(std::move(own));
  const std::vector<char*> argv = pointers_to(words), variables = pointers_to(environment);
  Process process;
  if (rank > 0) {
    process.log = ::memfd_create("rank", MFD_CLOEXEC);
    require<IoError>(process.log >= 0, "cannot keep what rank ", rank, " writes: ", std::strerror(errno));
    ::fcntl(process.log, F_SETFL, O_APPEND);
  }
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t parent = ::getpid();
  process.pid = nothing < 0 ? -1 : ::fork();
  if (process.pid == 0) become(argv.data(), variables.data(), nothing, process.log, parent);
  const int why = errno;
  if (nothing >= 0) ::close(nothing);
  if (process.pid < 0 && process.log >= 0) ::close(process.log);
  require<IoError>(process.pid > 0, "cannot start the process of rank ", rank, ": ", std::strerror(why));
  processes_.push_back(process);
}

void RankProcesses::send(int signal) const {
  for (const Process& process : processes_)
    if (process.runs) ::kill(process.pid, signal);
}

void RankProcesses::send_restart() const {
  for (const Process& process : processes_)
    if (process.runs) StopSignals::send_restart(process.pid);
}

void RankProcesses::poll() {
  for (Process& process : processes_) {
    int status = 0;
    if (!process.runs || ::waitpid(process.pid, &status, WNOHANG) != process.pid) continue;
    process.runs = false;
    process.end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    process.end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    process.end.ended_by_supervisor = signals_sent_ > 0;
    if (!over_ && (is_failure(process.end) || &process == &processes_.front())) over_ = Clock::now();
  }
  if (over_ && !ended()) end_the_others();
}

void RankProcesses::end_the_others() {
  const auto since = Clock::now() - *over_;
  if (signals_sent_ == 0 && since > notice_) {
    signals_sent_ = 1;
    send(SIGTERM);
  } else if (signals_sent_ == 1 && since > notice_ + terminate_) {
    signals_sent_ = 2;
    send(SIGKILL);
  }
}

bool RankProcesses::ended() const {
  return std::ranges::none_of(processes_, &Process::runs);
}

bool RankProcesses::has_failed() const {
  return std::ranges::any_of(processes_, [](const Process& process) {
    return !process.runs && !process.end.ended_by_supervisor && is_failure(process.end);
  });
}

std::vector<RankEnd> RankProcesses::ends() const {
  std::vector<RankEnd> ends;
  for (const Process& process : processes_) ends.push_back(process.end);
  return ends;
}

std::string RankProcesses::said(int rank) const {
  constexpr off_t kMost = 4096;
  const int log = processes_[static_cast<size_t>(rank)].log;
  struct stat status {};
  if (log < 0 || ::fstat(log, &status) != 0) return "";
  std::string text(static_cast<size_t>(std::min(status.st_size, kMost)), '\0');
  const ssize_t got = ::pread(log, text.data(), text.size(), std::max<off_t>(status.st_size - kMost, 0));
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  std::string lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines += cat("rank ", rank, ": ", text.substr(begin, end - begin), "\n");
    begin = end + 1;
  }
  return lines;
}

}  // namespace witan::cli
