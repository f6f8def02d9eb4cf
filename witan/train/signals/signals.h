// Handles signals that ask a run to stop. While it trains, the handler only sets a flag, and the ranks agree on it at
// the end of a step.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <string>

#include "witan/train/state/run_end.h"

namespace witan {

// Handles SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP during its lifetime; after it, the previous handlers do so
// again. Only one thread of a process may make them.
class StopSignals {
 public:
  enum class Answer : uint8_t {
    end,   // the process ends at once, with the exit code of asked(), since there is nothing to save
    stop,  // sets requested(); a second SIGINT ends the process at once, and the last checkpoint stays intact
  };
  enum class Voice : uint8_t {
    loud,    // reports on the standard error what a signal will do
    silent,  // for all but one of the processes that a launcher signals at once
  };
  explicit StopSignals(Answer answer, Voice own_voice = Voice::loud);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool requested();
  // Notes that there is a checkpoint to resume from, for the message after a second SIGINT. Thread-safe; the next
  // StopSignals resets it.
  static void saved();
  // How the signal ends a run: none without one, interrupted after SIGINT, preempted after the others.
  static RunEnd asked();
  // The signal and, if known, its sender: "SIGTERM from process 4711 (timeout)". Empty without a signal.
  static std::string cause();
  // Asks another process to save its run and end without a message, since its supervisor will restart it.
  static void send_restart(pid_t process);
  // Whether the signal came from send_restart().
  static bool restarts();

 private:
  Answer answer_before_;
  Voice voice_before_;
  struct sigaction before_[5];
};

}  // namespace witan
