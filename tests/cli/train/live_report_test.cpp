// The report of a running run.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cli/small_runs.h"
#include "support/comes_true.h"
#include "support/temp_folder.h"
#include "witan/cli/train/train_page.h"
#include "witan/report/events/metrics.h"

namespace witan::cli {
namespace {

constexpr const char* kRefresh = "<meta http-equiv=\"refresh\" content=\"";

TEST(LiveReport, IsUpdatedDuringTheRunAndReloads) {
  const test::TempFolder folder;
  const fs::path page = folder / "report.html";
  MetricsWriter metrics(folder / "metrics.jsonl");
  RunEvent run;
  run.name = "mine";
  metrics.append(run);
  StepEvent step;
  const LiveReport report(folder.path(), 0.02);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(fs::exists(page)) << "without a step there is nothing to show";
  step.step = 1, step.loss = 4.25;
  metrics.append(step);
  ASSERT_TRUE(test::comes_true([&] { return fs::exists(page); }));
  EXPECT_NE(read_file(page).find(kRefresh), std::string::npos);
  step.step = 2, step.loss = 3.125;
  metrics.append(step);
  EXPECT_TRUE(test::comes_true([&] { return read_file(page).find("3.125") != std::string::npos; }));
}

class ReportsOfFailures : public test::SmallRuns {};

TEST_F(ReportsOfFailures, ShowTheError) {
  train_small("wild", {});
  const fs::path page = folder_ / "runs/wild/report.html";
  fs::remove(page);
  const test::Said said =
      run({"train", "--run", "wild", "--train-iters", "30", "--lr", "1e30", "--min-lr", "1e30", "--most-skipped", "2"});
  EXPECT_EQ(said.code, 6) << said.err;
  ASSERT_TRUE(fs::exists(page));
  EXPECT_NE(read_file(page).find("2 steps in a row had gradients that were not finite"), std::string::npos);
  EXPECT_EQ(read_file(page).find(kRefresh), std::string::npos) << "the run has ended";
}

}  // namespace
}  // namespace witan::cli
