#include "witan/train/signals/signals.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string_view>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP};
constexpr pid_t kKernel = -1;  // sent by the terminal, not a process
// Written by handlers on any thread and read by every rank; lock-free, as handlers require.
std::atomic<int> received = 0;
std::atomic<pid_t> sender = kKernel;
std::atomic<bool> for_restart = false;
std::atomic<bool> any_saved = false;
std::atomic<StopSignals::Answer> current = StopSignals::Answer::end;
std::atomic<StopSignals::Voice> voice = StopSignals::Voice::loud;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<StopSignals::Answer>::is_always_lock_free &&
              std::atomic<StopSignals::Voice>::is_always_lock_free);

constexpr int kRestartValue = 0x77697461;  // the value that send_restart() queues

// Only async-signal-safe functions may be called from a handler.
void say(std::string_view text) {
  if (voice == StopSignals::Voice::silent) return;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

RunEnd end_by(int signal) {
  if (signal == 0) return RunEnd::none;
  return signal == SIGINT ? RunEnd::interrupted : RunEnd::preempted;
}

void on_signal(int signal, siginfo_t* info, void* /*context*/) {
  const bool restart = info->si_code == SI_QUEUE && info->si_value.sival_int == kRestartValue;
  if (current == StopSignals::Answer::end) {
    if (!restart) say("\nStopped while nothing was training, so there is nothing to save; the same command resumes\n");
    ::_exit(static_cast<int>(exit_code_of(end_by(signal))));
  }
  if (signal == SIGINT && received == SIGINT) {
    say(any_saved ? "\nQuit without saving: steps since the last checkpoint, which is intact, are lost\n"
                  : "\nQuit without saving: there is no checkpoint yet; the same command starts the run again\n");
    ::_exit(static_cast<int>(ExitCode::interrupted));
  }
  if (!restart && (received == 0 || signal == SIGINT))
    say("\nFinishing this step and saving; Ctrl-C again quits without saving\n");
  for_restart = restart;
  sender = info->si_code <= 0 ? info->si_pid : kKernel;  // SI_USER, SI_QUEUE, SI_TKILL
  received = signal;
}

}  // namespace

StopSignals::StopSignals(Answer answer, Voice own_voice) : answer_before_(current), voice_before_(voice) {
  received = 0;
  for_restart = false;
  any_saved = false;
  current = answer;
  voice = own_voice;
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], &action, &before_[i]);
    // nohup ignores SIGHUP, so that a run survives its terminal.
    if (kSignals[i] == SIGHUP && before_[i].sa_handler == SIG_IGN) ::sigaction(SIGHUP, &before_[i], nullptr);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  current = answer_before_;
  voice = voice_before_;
}

bool StopSignals::requested() {
  return asked() != RunEnd::none;
}

void StopSignals::saved() {
  any_saved = true;
}

RunEnd StopSignals::asked() {
  return end_by(received);
}

std::string StopSignals::cause() {
  const int signal = received;
  if (signal == 0) return "";
  const std::string name = cat("SIG", ::sigabbrev_np(signal));
  const pid_t from = sender;
  if (from == kKernel) return name + (signal == SIGHUP ? ": the terminal was closed" : " from the terminal");
  if (from == 0) return name + " from a process outside of this container";
  std::string program;  // empty if the process has ended
  std::getline(std::ifstream(cat("/proc/", from, "/comm")), program);
  return cat(name, " from process ", from, program.empty() ? "" : cat(" (", program, ")"));
}

void StopSignals::send_restart(pid_t process) {
  sigval value{};
  value.sival_int = kRestartValue;
  ::sigqueue(process, SIGUSR1, value);
}

bool StopSignals::restarts() {
  return for_restart;
}

}  // namespace witan
