// Part of every test program. A shell starts the jobs of a script that end in & with SIGINT and SIGQUIT ignored, and
// nohup ignores SIGHUP; programs inherit that, and their children do, and the product leaves ignored signals ignored.
// Tests of signals need them as a terminal leaves them, so that it does not matter how the tests were started.
#include <csignal>
#include <initializer_list>

namespace {

const bool by_default = [] {
  sigset_t all;
  sigemptyset(&all);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2}) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN) std::signal(signal, SIG_DFL);
    sigaddset(&all, signal);
  }
  return sigprocmask(SIG_UNBLOCK, &all, nullptr) == 0;
}();

}  // namespace
