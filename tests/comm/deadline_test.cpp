#include "witan/comm/deadline.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "witan/base/process.h"

namespace witan {
namespace {

constexpr double kSeconds = 0.4;  // of deadlines: a busy machine may take some of it

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

TEST(DebugHold, IsOfTheRanksThatMayBeHeldAlone) {
  DebugHold hold({2, 5}, {2});
  EXPECT_TRUE(hold.may_hold(2));
  EXPECT_TRUE(hold.may_hold(5));
  EXPECT_FALSE(hold.may_hold(0));
  EXPECT_FALSE(hold.held());
  hold.wait_for_debugger(5, true);  // a rank of another process: that one says so
  hold.hear(2, true);               // a rank of this process: nobody else knows
  hold.hear(0, true);
  EXPECT_FALSE(hold.held());
  hold.wait_for_debugger(2, true);
  EXPECT_TRUE(hold.held());
  EXPECT_TRUE(hold.held_here());
  hold.wait_for_debugger(2, false);
  hold.hear(5, true);
  EXPECT_TRUE(hold.held());
  EXPECT_FALSE(hold.held_here());
  hold.hear(5, false);
  EXPECT_FALSE(hold.held());
}

TEST(PatientDeadline, ComesWhenItsTimeIsOver) {
  const DebugHold nobody({1}, {});
  PatientDeadline plain(0.1, nullptr), patient(0.1, &nobody), later(100, nullptr), patient_later(100, &nobody);
  sleep_for(0.15);
  EXPECT_FALSE(later.expired());
  EXPECT_FALSE(patient_later.expired());
  EXPECT_TRUE(plain.expired());
  EXPECT_TRUE(patient.expired());
}

TEST(PatientDeadline, BeginsAnewWhileARankIsHeld) {
  DebugHold hold({1}, {});
  PatientDeadline deadline(kSeconds, &hold);
  hold.hear(1, true);
  sleep_for(1.1 * kSeconds);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(deadline.expired());
  hold.hear(1, false);
  const bool expired = deadline.expired();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  EXPECT_TRUE(!expired || passed.count() >= kSeconds) << "a busy machine may take the whole time to look again";
  sleep_for(1.1 * kSeconds);
  EXPECT_TRUE(deadline.expired());
}

// Whoever stops a process stops all of its ranks: what was due meanwhile is looked at only after all have had their
// time again.
TEST(PatientDeadline, BeginsAnewAfterThisProcessWasStopped) {
  const DebugHold nobody({1}, {});
  PatientDeadline plain(kSeconds, nullptr), patient(kSeconds, &nobody), busy(kSeconds, nullptr);
  sleep_for(2.2);  // nobody looked for longer than a wait ever lets pass
  EXPECT_FALSE(plain.expired());
  EXPECT_FALSE(patient.expired());
  EXPECT_TRUE(busy.expired(1)) << "it did something else for a second";
  sleep_for(1.1 * kSeconds);
  EXPECT_TRUE(plain.expired());
  EXPECT_TRUE(patient.expired());
}

TEST(DebugHold, HoldsARankOfThisProcessWhileADebuggerIsAttached) {
  if (tracer() != 0) GTEST_SKIP() << "this test is run under a debugger";
  int attached[2];
  ASSERT_EQ(::pipe(attached), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    allow_debugger();
    const DebugHold here({1}, {1}), elsewhere({1}, {});
    bool right = !here.held();
    ::raise(SIGSTOP);
    char word = 0;
    right = ::read(attached[0], &word, 1) == 1 && right;
    ::_exit(right && here.held() && here.held_here() && !elsewhere.held() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  const bool may = ::ptrace(PTRACE_SEIZE, child, nullptr, nullptr) == 0;
  ::kill(child, may ? SIGCONT : SIGKILL);
  EXPECT_EQ(::write(attached[1], "!", 1), 1);
  while (::waitpid(child, &status, __WALL) == child && WIFSTOPPED(status))
    ::ptrace(PTRACE_CONT, child, nullptr, nullptr);
  if (!may) GTEST_SKIP() << "this machine lets nobody trace";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace witan
