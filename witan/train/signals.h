// Asking a run to stop: while it trains, the handler only sets a flag, which the ranks agree on at the end of a step.
#pragma once

#include <csignal>
#include <cstdint>

#include "witan/base/error.h"

namespace witan {

// While one is alive, it answers SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP; the one before it does so again when it
// is gone. A process has one thread that makes them.
class StopSignals {
 public:
  enum class Answer : uint8_t {
    end,   // the process ends at once, with exit_code(): there is nothing to save, or all is saved
    stop,  // requested(); a second SIGINT ends the process at once, with the last checkpoint intact
  };
  explicit StopSignals(Answer answer);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool requested();
  // interrupted after SIGINT, preempted after the others.
  static ExitCode exit_code();

 private:
  Answer answer_before_;
  struct sigaction before_[5];
};

}  // namespace witan
