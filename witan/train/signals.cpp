#include "witan/train/signals.h"

#include <unistd.h>

#include <cstddef>

namespace witan {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
volatile std::sig_atomic_t received = 0;  // a handler has no other way to speak to its process

void on_signal(int signal) {
  if (signal == SIGINT && received == SIGINT) ::_exit(static_cast<int>(ExitCode::interrupted));
  received = signal;
}

}  // namespace

StopSignals::StopSignals() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  ::sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &action, &before_[i]);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
}

bool StopSignals::requested() {
  return received != 0;
}

ExitCode StopSignals::exit_code() {
  return received == SIGINT ? ExitCode::interrupted : ExitCode::preempted;
}

}  // namespace witan
