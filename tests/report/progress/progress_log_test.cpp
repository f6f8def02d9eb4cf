#include "witan/report/progress/progress_log.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "support/temp_folder.h"
#include "witan/report/progress/log_lines.h"

namespace witan {
namespace {

using test::TempFolder;

constexpr std::time_t kStart = 1'730'000'000;  // and hours without a change of clocks behind it

std::string at(std::time_t time) {
  return megatron_log::format_time(time);
}

class ProgressLogFile : public ::testing::Test {
 protected:
  ProgressLogFile() { ::unsetenv("SLURM_JOB_ID"); }

  TempFolder folder_;
  fs::path path_ = folder_ / "progress.txt";
};

TEST_F(ProgressLogFile, AJob) {
  ::setenv("SLURM_JOB_ID", "4711", 1);
  ProgressLog log(path_, 8, 1.5554653559e14);
  log.start(kStart, 0);
  log.saved(kStart + 300, {1000, 1000, 1000 * 64 * 2048});
  ::unsetenv("SLURM_JOB_ID");
  // 1000 iterations of 1.5554653559e14 FLOPs in 300 s on 8 ranks.
  EXPECT_EQ(read_file(path_), at(kStart) + "\tJob ID: 4711\t# GPUs: 8\tStarting job\n" + at(kStart + 300) +
                                  "\tJob ID: 4711\t# GPUs: 8\tSaved checkpoint\tIteration: 1000\tJob throughput: 64.8 "
                                  "TFLOP/s/GPU\tCumulative throughput: 64.8 TFLOP/s/GPU\tFloating-point operations: "
                                  "1.56e+17\tTokens (in billions): 0.13\n");
}

TEST_F(ProgressLogFile, CumulativeThroughputIsSinceTheFirstJobOnSoManyRanks) {
  {
    ProgressLog log(path_, 4, 1e15);  // other ranks: of no account
    log.start(kStart - 1000, 0);
    log.saved(kStart - 500, {10, 10, 0});
  }
  {
    ProgressLog log(path_, 2, 1e15);
    log.start(kStart, 10);
    log.saved(kStart + 50, {20, 20, 0});
  }
  {
    // Resumed from step 20, after a pause: 20 of 1e15 FLOPs in 50 s, and 30 since kStart, 200 s ago.
    ProgressLog log(path_, 2, 1e15);
    log.start(kStart + 150, 20);
    log.saved(kStart + 200, {40, 40, 0});
  }
  const std::string text = read_file(path_);
  EXPECT_NE(text.find("Iteration: 20\tJob throughput: 100.0 TFLOP/s/GPU\tCumulative throughput: 100.0 TFLOP/s/GPU"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("Iteration: 40\tJob throughput: 200.0 TFLOP/s/GPU\tCumulative throughput: 75.0 TFLOP/s/GPU"),
            std::string::npos)
      << text;
}

TEST_F(ProgressLogFile, LinesOfOthersAndTornOnesCountForNothing) {
  write_file_atomically(path_,
                        "\n\t\t\tStarting job\nx\ty\t# GPUs: many\tStarting job\nyesterday\t\t# GPUs: 1\tStarting "
                        "job\n2024-10-24 21:02:27\tJob ID: \t# GPUs: 1\tSaved checkpoint\tIterat");
  ProgressLog log(path_, 1, 1e12);
  log.start(kStart, 0);
  log.saved(kStart, {1, 1, 0});  // within the second
  EXPECT_NE(read_file(path_).find("Iterat\n" + at(kStart) + "\tJob ID: \t# GPUs: 1\tStarting job\n"),
            std::string::npos);
  EXPECT_NE(read_file(path_).find("Job throughput: 1.0 TFLOP/s/GPU\tCumulative throughput: 1.0 TFLOP/s/GPU\t"),
            std::string::npos);
}

TEST_F(ProgressLogFile, AJobOnOtherRanksEndsTheSeries) {
  {
    ProgressLog log(path_, 2, 1e15);
    log.start(kStart - 1000, 0);
    log.saved(kStart - 900, {10, 10, 0});
  }
  {
    ProgressLog log(path_, 4, 1e15);
    log.start(kStart - 500, 10);
    log.saved(kStart - 400, {20, 20, 0});
  }
  ProgressLog log(path_, 2, 1e15);
  log.start(kStart, 20);
  log.saved(kStart + 50, {40, 40, 0});
  EXPECT_NE(read_file(path_).find("Iteration: 40\tJob throughput: 200.0 TFLOP/s/GPU\tCumulative throughput: 200.0"),
            std::string::npos)
      << read_file(path_);
}

}  // namespace
}  // namespace witan
