#include "witan/comm/deadline.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "witan/base/process.h"

namespace witan {
namespace {

Deadline now;  // the tests' clock

PatientDeadline deadline_of(double seconds, const DebugHold* hold) {
  return {seconds, hold, [] { return now; }};
}

void let_pass(double seconds) {
  now += std::chrono::duration_cast<Deadline::duration>(std::chrono::duration<double>(seconds));
}

TEST(DebugHold, CoversOnlyGivenRanks) {
  DebugHold hold({2, 5}, {2});
  EXPECT_TRUE(hold.may_hold(2));
  EXPECT_TRUE(hold.may_hold(5));
  EXPECT_FALSE(hold.may_hold(0));
  EXPECT_FALSE(hold.held());
  hold.wait_for_debugger(5, true);  // a rank of another process, which reports it itself
  hold.hear(2, true);               // a rank of this process, which nobody else knows of
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

TEST(PatientDeadline, ExpiresAfterItsTime) {
  const DebugHold nobody({1}, {});
  for (const DebugHold* hold : {static_cast<const DebugHold*>(nullptr), &nobody}) {
    PatientDeadline deadline = deadline_of(0.5, hold), later = deadline_of(0.75, hold);
    let_pass(0.25);
    EXPECT_FALSE(deadline.expired());
    let_pass(0.25);
    EXPECT_TRUE(deadline.expired());
    EXPECT_FALSE(later.expired());
  }
}

TEST(PatientDeadline, IsPolledMoreOftenIfARankMayBeHeld) {
  const DebugHold nobody({1}, {});
  const auto seconds_to_look = [](const PatientDeadline& deadline) {
    return std::chrono::duration<double>(deadline.next_look() - now).count();
  };
  EXPECT_DOUBLE_EQ(seconds_to_look(deadline_of(100, nullptr)), 1);
  EXPECT_DOUBLE_EQ(seconds_to_look(deadline_of(100, &nobody)), 0.2);
  EXPECT_DOUBLE_EQ(seconds_to_look(deadline_of(0.125, nullptr)), 0.125);
}

TEST(PatientDeadline, RestartsWhileARankIsHeld) {
  DebugHold hold({1}, {});
  PatientDeadline deadline = deadline_of(1, &hold);
  hold.hear(1, true);
  let_pass(1.5);
  EXPECT_FALSE(deadline.expired());
  hold.hear(1, false);
  let_pass(0.75);
  EXPECT_FALSE(deadline.expired());
  let_pass(0.25);
  EXPECT_TRUE(deadline.expired());
}

// Stopping a process stops all of its ranks, so after a stop every rank gets its time again before deadlines count.
TEST(PatientDeadline, RestartsAfterThisProcessWasStopped) {
  const DebugHold nobody({1}, {});
  PatientDeadline plain = deadline_of(1, nullptr), patient = deadline_of(1, &nobody), busy = deadline_of(1, nullptr);
  let_pass(kStoppedSeconds + 0.25);  // longer than a wait ever goes without polling
  EXPECT_FALSE(plain.expired());
  EXPECT_FALSE(patient.expired());
  EXPECT_TRUE(busy.expired(1)) << "it was busy for a second";
  let_pass(1);
  EXPECT_TRUE(plain.expired());
  EXPECT_TRUE(patient.expired());
}

TEST(DebugHold, HoldsARankWhileADebuggerIsAttached) {
  if (tracer() != 0) GTEST_SKIP() << "this test runs under a debugger";
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
  if (!may) GTEST_SKIP() << "tracing is not permitted on this machine";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace witan
