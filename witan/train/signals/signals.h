// Handles signals that ask a run to stop: while it trains, the handler only sets a flag, which the ranks agree on at
// the end of a step.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <string>

#include "witan/train/state/run_end.h"

namespace witan {

// While one is alive, it answers SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP; the one before it does so again when it
// is gone. A process has one thread that makes them.
class StopSignals {
 public:
  enum class Answer : uint8_t {
    end,   // the process ends at once, with the code of asked(): there is nothing to save, or all is saved
    stop,  // requested(); a second SIGINT ends the process at once, with the last checkpoint, if there is one, intact
  };
  enum class Voice : uint8_t {
    loud,    // says on the standard error what comes of a signal
    silent,  // of processes that a launcher signals all at once: one of them speaks
  };
  explicit StopSignals(Answer answer, Voice own_voice = Voice::loud);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool requested();
  // Tells that there is a checkpoint to resume from, for what is said of a second SIGINT. Thread-safe; forgotten by the
  // next StopSignals.
  static void saved();
  // How that ends a run: none, interrupted after SIGINT, preempted after the others.
  static RunEnd asked();
  // The signal that asked and, as far as it is known, who sent it: "SIGTERM from process 4711 (timeout)". Empty: none.
  static std::string cause();
  // Asks another process to save its run and end, as its supervisor starts it again: nothing is said of the end.
  static void send_restart(pid_t process);
  // Whether asked() is because of that.
  static bool restarts();

 private:
  Answer answer_before_;
  Voice voice_before_;
  struct sigaction before_[5];
};

}  // namespace witan
