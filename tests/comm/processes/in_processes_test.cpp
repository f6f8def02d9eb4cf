// The processes that tests start (support/processes.h, support/process_defaults.cpp): a failed expectation in one of
// them fails the test, and each runs its body in any shard of the tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/processes.h"
#include "support/program.h"

namespace witan {
namespace {

using testing::Ended;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::run_processes;

// The ways in which a process ends after a failed expectation.
const std::array<std::function<std::string()>, 6> kEnds = {
    [] { return std::string("returned"); },
    []() -> std::string { throw DataError("thrown"); },
    []() -> std::string { throw std::runtime_error("thrown"); },
    []() -> std::string { ::_exit(0); },
    []() -> std::string { ::_exit(7); },
    []() -> std::string {
      ::raise(SIGKILL);
      return "";
    },
};

TEST(InProcesses, KeepsFailedExpectationsHoweverTheProcessEnds) {
  const auto ended = run_processes(static_cast<int>(kEnds.size()), [](int index) {
    EXPECT_EQ(index, -1) << "failed on purpose";
    return kEnds[static_cast<size_t>(index)]();
  });
  for (const Ended& one : ended) EXPECT_THAT(one.failures, HasSubstr("failed on purpose"));
  EXPECT_EQ(ended[0].code, 99);
  EXPECT_EQ(ended[0].said, "returned");
  EXPECT_EQ(ended[1].code, static_cast<int>(DataError("").code()));
  EXPECT_EQ(ended[1].said, "thrown");
  EXPECT_EQ(ended[2].code, 1);
  EXPECT_EQ(ended[3].code, 0);
  EXPECT_EQ(ended[4].code, 7);
  EXPECT_TRUE(ended[5].killed);
}

TEST(InProcesses, KeepsFailedExpectationsOfOtherThreads) {
  const auto ended = run_processes(1, [](int) -> std::string {
    std::thread([] { ADD_FAILURE() << "failed in a thread"; }).join();
    throw DataError("thrown");
  });
  EXPECT_THAT(ended[0].failures, HasSubstr("failed in a thread"));
}

TEST(InProcesses, ReportsNoFailuresForPassingProcesses) {
  for (const Ended& one : run_processes(static_cast<int>(kEnds.size()), [](int index) {
         EXPECT_GE(index, 0);
         return kEnds[static_cast<size_t>(index)]();
       }))
    EXPECT_EQ(one.failures, "");
}

// The caller of in_processes() is itself a process here, so that its failure does not fail this test.
TEST(InProcesses, FailsTheTestOfTheCaller) {
  const auto caller = run_processes(1, [](int) -> std::string {
    const auto ended = in_processes(2, [](int index) -> std::string {
      EXPECT_EQ(index, 0) << "failed on purpose";
      throw DataError("thrown");
    });
    return ended[1].said;
  });
  EXPECT_EQ(caller[0].code, 99);
  EXPECT_EQ(caller[0].said, "thrown");
  EXPECT_THAT(caller[0].failures, HasSubstr("in process 1:"));
  EXPECT_THAT(caller[0].failures, HasSubstr("failed on purpose"));
}

TEST(InProcesses, ProgramsStartedInAShardBelongToNone) {
  constexpr const char* kStarted = "WITAN_TEST_STARTED_IN_A_SHARD";
  if (std::getenv(kStarted) != nullptr) {
    for (const char* name : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX", "GTEST_SHARD_STATUS_FILE", "GTEST_OUTPUT"})
      EXPECT_EQ(std::getenv(name), nullptr) << name;
    return;
  }
  const test::TempFolder folder;
  test::Program program(
      {std::filesystem::read_symlink("/proc/self/exe"),
       "--gtest_filter=InProcesses.ProgramsStartedInAShardBelongToNone"},
      folder / "log",
      {"GTEST_TOTAL_SHARDS=1", "GTEST_SHARD_INDEX=0", cat("GTEST_SHARD_STATUS_FILE=", (folder / "status").string()),
       cat("GTEST_OUTPUT=json:", (folder / "report.json").string()), cat(kStarted, "=1")});
  EXPECT_EQ(program.wait(), 0) << testing::read_all(folder / "log");
  EXPECT_THAT(testing::read_all(folder / "log"), HasSubstr("[  PASSED  ] 1 test"));
}

}  // namespace
}  // namespace witan
