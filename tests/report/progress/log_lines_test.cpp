#include "witan/report/progress/log_lines.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "support/golden.h"
#include "support/temp_folder.h"

namespace witan::megatron_log {
namespace {

// 2024-10-24 21:02:27 in any time zone.
std::time_t that_evening() {
  std::tm local{};
  local.tm_year = 124;
  local.tm_mon = 9;
  local.tm_mday = 24;
  local.tm_hour = 21;
  local.tm_min = 2;
  local.tm_sec = 27;
  local.tm_isdst = -1;
  return std::mktime(&local);
}

Interval logged() {
  Interval interval;
  interval.time = that_evening();
  interval.iteration = 40;
  interval.train_iters = 40000;
  interval.consumed_samples = 2560;
  interval.ms = 235.9;
  interval.tflops = 82.4;
  interval.learning_rate = 2.4e-5;
  interval.global_batch_size = 64;
  interval.losses = {{"lm loss", 10.81154}};
  interval.grad_norm = 2.226;
  interval.scalars.set(kNumZeros, 56775512);
  interval.scalars.set(kParamsNorm, 315.029);
  return interval;
}

TEST(MegatronLog, MatchesTheLineOfAPublicRun) {
  EXPECT_EQ(format_interval(logged()),
            " [2024-10-24 21:02:27] iteration       40/   40000 | consumed samples:         2560 | elapsed time per "
            "iteration (ms): 235.9 | throughput per GPU (TFLOP/s/GPU): 82.4 | learning rate: 2.400000E-05 | global "
            "batch size:    64 | lm loss: 1.081154E+01 | loss scale: 1.0 | grad norm: 2.226 | num zeros: 56775512.0 | "
            "params norm: 315.029 | number of skipped iterations:   0 | number of nan iterations:   0 |");
}

TEST(MegatronLog, OmitsFieldsNotRequested) {
  Interval interval = logged();
  interval.tflops = {};
  interval.scalars = {};
  interval.losses = {{"lm loss", 10.81154}, {"load_balancing_loss", 1.315762}, {"z_loss", 0}};
  interval.skipped = 2;
  interval.nan = 1;
  EXPECT_EQ(format_interval(interval),
            " [2024-10-24 21:02:27] iteration       40/   40000 | consumed samples:         2560 | elapsed time per "
            "iteration (ms): 235.9 | learning rate: 2.400000E-05 | global batch size:    64 | lm loss: 1.081154E+01 | "
            "load_balancing_loss: 1.315762E+00 | loss scale: 1.0 | grad norm: 2.226 | number of skipped iterations:   "
            "2 | number of nan iterations:   1 |");
}

TEST(MegatronLog, FormatsWideAndNonFiniteNumbers) {
  Interval interval = logged();
  interval.iteration = interval.train_iters = 123456789;
  interval.consumed_samples = 12345678901234;
  interval.global_batch_size = 123456;
  interval.losses = {{"lm loss", std::numeric_limits<double>::quiet_NaN()}};  // Megatron-LM omits it as well
  interval.grad_norm = std::numeric_limits<double>::infinity();
  interval.tflops = {};
  interval.scalars = {};
  EXPECT_EQ(format_interval(interval),
            " [2024-10-24 21:02:27] iteration 123456789/123456789 | consumed samples: 12345678901234 | elapsed time "
            "per iteration (ms): 235.9 | learning rate: 2.400000E-05 | global batch size: 123456 | loss scale: 1.0 | "
            "grad norm: inf | number of skipped iterations:   0 | number of nan iterations:   0 |");
}

// All 49 lines of the runs, formatted again from the fields they show.
TEST(MegatronLog, MatchesEveryRecordedLine) {
  const auto lines = test::megatron_runs();
  ASSERT_EQ(lines.size(), 49u);
  for (const auto& line : lines) {
    const bool dense = line.at("run") == "dense";
    Interval interval = logged();
    interval.iteration = std::stoll(line.at("iter"));
    interval.consumed_samples = 64 * interval.iteration;
    interval.ms = std::stod(line.at("ms"));
    interval.tflops = std::stod(line.at("tflops"));
    interval.learning_rate = std::stod(line.at("lr"));
    interval.losses = {{"lm loss", std::stod(line.at("lm_loss"))}};
    if (!dense) interval.losses.emplace_back("load_balancing_loss", std::stod(line.at("load_balancing_loss")));
    interval.grad_norm = std::stod(line.at("grad_norm"));
    interval.scalars.set(kNumZeros, std::stod(line.at("num_zeros")));
    interval.scalars.set(kParamsNorm, std::stod(line.at("params_norm")));
    const auto right = [](const std::string& text, size_t width) {
      return std::string(width - text.size(), ' ') + text;
    };
    std::string expected = " [2024-10-24 21:02:27] iteration " + right(line.at("iter"), 8) +
                           "/   40000 | consumed samples: " + right(std::to_string(64 * interval.iteration), 12) +
                           " | elapsed time per iteration (ms): " + line.at("ms") +
                           " | throughput per GPU (TFLOP/s/GPU): " + line.at("tflops") +
                           " | learning rate: " + line.at("lr") +
                           " | global batch size:    64 | lm loss: " + line.at("lm_loss");
    if (!dense) expected += " | load_balancing_loss: " + line.at("load_balancing_loss");
    expected += " | loss scale: 1.0 | grad norm: " + line.at("grad_norm") + " | num zeros: " + line.at("num_zeros") +
                " | params norm: " + line.at("params_norm") +
                " | number of skipped iterations:   0 | number of nan iterations:   0 |";
    EXPECT_EQ(format_interval(interval), expected);
  }
}

TEST(MegatronLog, FormatsParametersAndMemory) {
  EXPECT_EQ(format_parameters(81839104, 131334144),
            "Number of parameters in transformer layers in billions:  0.08\n"
            "Number of parameters in embedding layers in billions: 0.13\n"
            "Total number of parameters in billions: 0.21\n"
            "Number of parameters in most loaded shard in billions: 0.2132");
  EXPECT_EQ(format_theoretical_memory(213173248 * 7.5),
            "Theoretical memory footprints: weight and optimizer=1524.73 MB");
  EXPECT_EQ(format_memory(0, 20, {1625705984, 3 << 20, 1 << 30, 512}),
            "[Rank 0] (after 20 iterations) memory (MB) | allocated: 1550.39404296875 | max allocated: 3.0 | reserved: "
            "1024.0 | max reserved: 0.00048828125");
}

TEST(MegatronLog, FormatsBuckets) {
  EXPECT_EQ(format_buckets({{65667072, {"head.weight"}}, {6, {"norm.weight", "embedding.weight"}}}),
            "Number of buckets for gradient all-reduce / reduce-scatter: 2\n"
            "Params for bucket 1 (65667072 elements):\n"
            "\thead.weight\n"
            "Params for bucket 2 (6 elements):\n"
            "\tnorm.weight\n"
            "\tembedding.weight");
}

TEST(MegatronLog, ShowsOnlyTimersThatRan) {
  EXPECT_EQ(format_times({{"forward-backward", 10.0, 12.345}, {"idle", 0, 0}, {"optimizer", 0, 1}}),
            "(min, max) time across ranks (ms):\n"
            "    forward-backward ...............................: (10.00, 12.35)\n"
            "    optimizer ......................................: (0.00, 1.00)");
}

TEST(MegatronLog, FramesValidationByRules) {
  EXPECT_EQ(format_validation(1000, 2.5),
            "------------------------------------------------------------------------------------------------\n"
            " validation loss at iteration 1000 | lm loss value: 2.500000E+00 | lm loss PPL: 1.218249E+01 | \n"
            "------------------------------------------------------------------------------------------------");
  EXPECT_NE(format_validation(1, 1e3).find("PPL: 4.851652E+08 |"), std::string::npos);  // at most 20 nats
  EXPECT_EQ(format_datetime("after training is done", that_evening()),
            "[after training is done] datetime: 2024-10-24 21:02:27 ");
}

}  // namespace
}  // namespace witan::megatron_log

namespace witan::nanogpt_log {
namespace {

// Formats of modded-nanogpt's train_gpt.py: {:.4f}, {:.0f}ms, {:.2f}ms.
TEST(NanogptLog, MatchesTheLinesOfTheProgram) {
  const Progress at{50, 1750, 7.0119};
  EXPECT_EQ(format_step(at), "step:50/1750 train_time:7012ms step_avg:140.24ms");
  EXPECT_EQ(format_validation(at, 7.62094, {}), "step:50/1750 val_loss:7.6209 train_time:7012ms step_avg:140.24ms");
  EXPECT_EQ(format_validation(at, 7.62094, 1.02338),
            "step:50/1750 val_loss:7.6209 val_balance_loss:1.0234 step_time:140.24ms");
  EXPECT_EQ(format_validation({0, 1750, 0}, 10.825, {}), "step:0/1750 val_loss:10.8250 train_time:0ms step_avg:0.00ms");
}

TEST(NanogptLog, ChecksMatchTutelsExample) {
  EXPECT_EQ(format_check("weights-init"),
            "[DEBUG(weights-init)] Validating all parameters are in proper states..\n"
            "[DEBUG(weights-init)] Validation passed. ✅");
}

}  // namespace
}  // namespace witan::nanogpt_log

namespace witan {
namespace {

using test::TempFolder;

constexpr std::time_t kStart = 1'730'000'000;  // no change to or from summer time in the hours after it

std::string at(std::time_t time) {
  return megatron_log::format_time(time);
}

class ProgressLogFile : public ::testing::Test {
 protected:
  ProgressLogFile() { ::unsetenv("SLURM_JOB_ID"); }

  TempFolder folder_;
  fs::path path_ = folder_ / "progress.txt";
};

TEST_F(ProgressLogFile, RecordsAJob) {
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

TEST_F(ProgressLogFile, CumulativeThroughputStartsAtTheFirstJobWithTheSameRanks) {
  {
    ProgressLog log(path_, 4, 1e15);  // another number of ranks: ignored
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

TEST_F(ProgressLogFile, IgnoresForeignAndTornLines) {
  write_file_atomically(path_,
                        "\n\t\t\tStarting job\nx\ty\t# GPUs: many\tStarting job\nyesterday\t\t# GPUs: 1\tStarting "
                        "job\n2024-10-24 21:02:27\tJob ID: \t# GPUs: 1\tSaved checkpoint\tIterat");
  ProgressLog log(path_, 1, 1e12);
  log.start(kStart, 0);
  log.saved(kStart, {1, 1, 0});  // within the same second
  EXPECT_NE(read_file(path_).find("Iterat\n" + at(kStart) + "\tJob ID: \t# GPUs: 1\tStarting job\n"),
            std::string::npos);
  EXPECT_NE(read_file(path_).find("Job throughput: 1.0 TFLOP/s/GPU\tCumulative throughput: 1.0 TFLOP/s/GPU\t"),
            std::string::npos);
}

TEST_F(ProgressLogFile, AJobWithOtherRanksEndsTheSeries) {
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
