#include "witan/base/process.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "support/process_state.h"

namespace witan {
namespace {

TEST(Debugger, IsDetectedWhileAttached) {
  if (tracer() != 0) GTEST_SKIP() << "the test runs under a debugger";
  int ready[2], answers[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(answers), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    allow_debugger();
    char word = 0;
    for (int i = 0; i < 3; ++i) {
      if (::read(ready[0], &word, 1) != 1) ::_exit(1);
      const pid_t found[] = {tracer(), tracer_of_thread(this_thread())};
      if (::write(answers[1], found, sizeof found) != sizeof found) ::_exit(1);
    }
    ::_exit(0);
  }
  const auto ask = [&] {
    pid_t found[2] = {-1, -1};
    EXPECT_EQ(::write(ready[1], "?", 1), 1);
    EXPECT_EQ(::read(answers[0], found, sizeof found), static_cast<ssize_t>(sizeof found));
    EXPECT_EQ(found[0], found[1]) << "a process of one thread";
    return found[0];
  };
  EXPECT_EQ(ask(), 0);
  const bool may = ::ptrace(PTRACE_SEIZE, child, nullptr, nullptr) == 0;
  const int why = errno;
  EXPECT_EQ(ask(), may ? ::getpid() : 0);
  if (may) {
    EXPECT_EQ(::ptrace(PTRACE_INTERRUPT, child, nullptr, nullptr), 0);
    ::waitpid(child, nullptr, __WALL);
    EXPECT_EQ(::ptrace(PTRACE_DETACH, child, nullptr, nullptr), 0);
  }
  EXPECT_EQ(ask(), 0);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  if (!may) GTEST_SKIP() << "this machine does not allow tracing: errno " << why;
}

TEST(Debugger, ThreadsAreNumbered) {
  EXPECT_EQ(this_thread(), ::getpid()) << "the first thread of a process has its number";
}

TEST(Resident, CountsTouchedMemoryAndKeepsThePeak) {
  constexpr size_t kBytes = 64 << 20;
  const auto before = read_resident();
  ASSERT_TRUE(before);
  EXPECT_GT(before->now, 0u);
  EXPECT_GE(before->peak, before->now);
  EXPECT_LE(before->files, before->now);
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  const auto touched = read_resident();
  ::munmap(memory, kBytes);
  const auto after = read_resident();
  constexpr uint64_t kSlack = 8 << 20;  // the kernel counts in batches
  EXPECT_GE(touched->now + kSlack, before->now + kBytes);
  EXPECT_LE(after->now, touched->now + kSlack - kBytes);
  EXPECT_GE(after->peak + kSlack, touched->now);
  EXPECT_GE(after->peak, before->peak);
  restart_resident_peak();
  EXPECT_LE(read_resident()->peak + kBytes, after->peak + kSlack);
}

TEST(Resident, ANewPeakExcludesFreedMemory) {
  const test::FreedMemory freed;
  if (!freed.is_kept()) GTEST_SKIP() << "the allocator keeps nothing";
  const uint64_t kept = read_resident()->now;
  restart_resident_peak();
  EXPECT_FALSE(freed.is_kept());
  EXPECT_LT(read_resident()->peak + freed.kBytes / 2, kept);
}

}  // namespace
}  // namespace witan
