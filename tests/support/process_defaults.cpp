// Part of every test program: it makes no difference from where tests were started.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <initializer_list>

namespace {

// A shell starts the jobs of a script that end in & with SIGINT and SIGQUIT ignored, and nohup ignores SIGHUP; programs
// inherit that, and their children do, and the product leaves ignored signals ignored. Tests of signals need them as a
// terminal leaves them.
const bool signals_by_default = [] {
  sigset_t all;
  sigemptyset(&all);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2}) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN) std::signal(signal, SIG_DFL);
    sigaddset(&all, signal);
  }
  return sigprocmask(SIG_UNBLOCK, &all, nullptr) == 0;
}();

// GoogleTest has read its variables when tests begin. A test program that a test starts for one test would run none of
// it in another shard, and would overwrite the report of this one.
class NoVariablesForChildren : public ::testing::Environment {
 public:
  void SetUp() override {
    for (const char* name : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX", "GTEST_SHARD_STATUS_FILE", "GTEST_OUTPUT"})
      ::unsetenv(name);
  }
};
const ::testing::Environment* const no_variables = ::testing::AddGlobalTestEnvironment(new NoVariablesForChildren);

}  // namespace
