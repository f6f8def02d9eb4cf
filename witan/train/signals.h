// Asking a run to stop: the handler only sets a flag, which the ranks agree on at the end of a step.
#pragma once

#include <csignal>

#include "witan/base/error.h"

namespace witan {

// While one is alive, SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP ask for a stop instead of ending the process. A
// second SIGINT ends it at once, with the last checkpoint intact. One at a time per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static bool requested();
  // interrupted after SIGINT, preempted after the others.
  static ExitCode exit_code();

 private:
  struct sigaction before_[5];
};

}  // namespace witan
