// Runs a test's body in new processes, since CUDA does not survive a fork. Each process runs this program with only the
// calling test, reaches the same call, runs the body there and exits.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/free_port.h"
#include "support/processes.h"
#include "support/program.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"

namespace witan::testing {

// A process's number, the port of its job, and the folder to which it writes its result.
inline constexpr const char *kFreshProcess = "WITAN_TEST_PROCESS", *kFreshPort = "WITAN_TEST_PORT",
                            *kFreshFolder = "WITAN_TEST_FOLDER";

// `variables(process)` returns environment variables as "NAME=value". A test calls this once. For a process that fails
// within its test, `said` also holds the output of the test.
inline std::vector<Ended> in_fresh_processes(
    int count, const std::function<std::string(int process, int port)>& body,
    const std::function<std::vector<std::string>(int process)>& variables = [](int) {
      return std::vector<std::string>();
    }) {
  if (const char* own = std::getenv(kFreshProcess)) {
    const int process = std::atoi(own), port = std::atoi(std::getenv(kFreshPort));
    end_as(process, std::getenv(kFreshFolder), [&] { return body(process, port); });
  }
  constexpr double kMostSeconds = 120;
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = cat("--gtest_filter=", test.test_suite_name(), ".", test.name());
  const test::TempFolder folder;
  const int port = free_port();
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<test::Program>> programs;
  for (int process = 0; process < count; ++process) {
    std::vector<std::string> more = variables(process);
    more.push_back(cat(kFreshProcess, "=", process));
    more.push_back(cat(kFreshPort, "=", port));
    more.push_back(cat(kFreshFolder, "=", folder.path().string()));
    programs.push_back(std::make_unique<test::Program>(
        std::vector<std::string>{std::filesystem::read_symlink("/proc/self/exe"), filter},
        folder / cat("log-", process), std::move(more)));
  }
  std::vector<Ended> ended(programs.size());
  for (size_t process = 0; process < programs.size(); ++process) {
    if (!programs[process]->ends_within(kMostSeconds)) programs[process]->send(SIGKILL);
    const int code = programs[process]->wait();
    Ended& one = ended[process];
    one.killed = code < 0;
    one.code = code < 0 ? -1 : code;
    const int index = static_cast<int>(process);
    one.said = read_all(words_file(folder.path(), index));
    one.failures = read_all(failures_file(folder.path(), index));
    if (code == 99 || (code == 0 && !std::filesystem::exists(words_file(folder.path(), index))))
      one.said += "\n" + read_all(folder / cat("log-", process));
    one.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  report_failures(ended);
  return ended;
}

}  // namespace witan::testing
