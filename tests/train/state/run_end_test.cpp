// The reason for a run's end, as train() returns it and as metrics.jsonl and train.log record it, on thread-ranks of
// one process and on ranks in separate processes.
#include "witan/train/state/run_end.h"

#include <gmock/gmock.h>

#include <csignal>
#include <functional>
#include <optional>

#include "support/processes.h"
#include "train/loop/trainer_support.h"
#include "witan/train/signals/signals.h"

namespace witan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using enum RunEnd;

TEST(RunEndTest, EachHasItsOwnDescription) {
  for (const auto& [end, reason, key, code] :
       {std::tuple{finished, "finished", "", ExitCode::done},
        {stopped_early, "stopped early", "", ExitCode::done},
        {exit_interval, "stopped by exit_interval", "exit_interval", ExitCode::preempted},
        {exit_duration_in_mins, "stopped by exit_duration_in_mins", "exit_duration_in_mins", ExitCode::preempted},
        {preempted, "stopped by a signal", "", ExitCode::preempted},
        {interrupted, "stopped by a signal", "", ExitCode::interrupted}}) {
    EXPECT_EQ(reason_of(end), reason);
    EXPECT_EQ(key_of(end), key);
    EXPECT_EQ(exit_code_of(end), code) << reason;
    EXPECT_EQ(is_finished(end), code == ExitCode::done) << reason;
  }
  EXPECT_FALSE(is_finished(none));
}

// Two ranks train 12 steps and evaluate after every fifth one.
class RunEnds : public testing::Trainer {
 protected:
  RunConfig config(const std::string& name) {
    RunConfig config = Trainer::config(name);
    config.train.sample_tokens = 0;
    config.train.straggler_threshold = 0;
    config.train.save_interval = 0;
    return config;
  }
  // Sends a signal to this process during this step.
  void signal_in_step(int signal, int64_t at, int of_rank) {
    aids_.before_step = [=](int rank, int64_t step, std::vector<Batch>&, Engine&) {
      if (rank == of_rank && step == at) std::raise(signal);
    };
  }
  static std::string said_of(RunEnd end) {
    return cat(reason_of(end), ", exit code ", static_cast<int>(exit_code_of(end)));
  }
  // The end as reported by one of two processes.
  std::string train_as(RunConfig config, ProcessWorld& world) {
    config.parallel.ranks_per_process = 1;
    std::FILE* quiet = std::fopen("/dev/null", "w");
    RunResult result;
    {
      Progress progress(quiet, progress_options(quiet));
      std::optional<RunFolder> folder;
      std::optional<RunData> data;
      world.first([&] {
        folder.emplace(config.train.runs_folder, config.train.run);
        data.emplace(prepare_run_data(config, *folder, progress));
        return "";
      });
      if (!folder) {
        folder.emplace(config.train.runs_folder, config.train.run, RunFolder::Access::share);
        data.emplace(open_prepared_run_data(config, *folder));
      }
      const ResolvedConfig resolved = resolve(
          config, {.cores = 2, .launched = LaunchedRanks{2, 1, 2}, .vocabulary = data->tokenizer->vocab_size()});
      RunStart start{*folder, {}, {}};
      start.aids = aids_;
      result = train(resolved, run_plan(make_plan(resolved)), *data, start,
                     RunEvent{.name = config.train.run,
                              .started = "2026-01-01T00:00:00Z",
                              .config_hash = "h",
                              .total_steps = config.train.train_iters},
                     progress, &world);
    }
    std::fclose(quiet);
    return said_of(result.end);
  }
  std::string log(const std::string& name) { return read_file(folder_ / name / "train.log"); }
  // Checks that all records have the same reason.
  void expect_end(const std::string& name, RunEnd end, int64_t step) {
    const Metrics metrics = read_metrics(folder_ / name / "metrics.jsonl");
    ASSERT_TRUE(metrics.end) << name;
    EXPECT_EQ(metrics.end->reason, reason_of(end)) << name;
    EXPECT_EQ(metrics.steps.back().step, step) << name;
    EXPECT_TRUE(fs::exists(checkpoint(name, step))) << name;
    EXPECT_THAT(log(name), HasSubstr(cat("end: ", reason_of(end), "\n")));
    for (const char* key : {"exit_interval", "exit_duration_in_mins"})
      EXPECT_EQ(log(name).find(cat(key, ": saving")) != std::string::npos, key_of(end) == key) << name << log(name);
  }

  // Causes with the expected reasons.
  struct Case {
    const char* name;
    RunEnd end;
    int64_t step;
    std::function<void(RunConfig&)> asks;
    int signal = 0;  // received by process 1 in step 6
  };
  static std::vector<Case> cases() {
    return {{"last", finished, 12, [](RunConfig&) {}},
            // After the last step the run is finished, whatever else would end it.
            {"last-interval", finished, 12, [](RunConfig& c) { c.train.exit_interval = 12; }},
            {"interval", exit_interval, 7, [](RunConfig& c) { c.train.exit_interval = 7; }},
            {"duration", exit_duration_in_mins, 1, [](RunConfig& c) { c.train.exit_duration_in_mins = 1e-9; }},
            // Two reasons in the same step.
            {"both", exit_interval, 1,
             [](RunConfig& c) {
               c.train.exit_interval = 1;
               c.train.exit_duration_in_mins = 1e-9;
             }},
            {"preempted", preempted, 6, [](RunConfig& c) { c.train.exit_interval = 6; }, SIGTERM},
            {"interrupted", interrupted, 6, [](RunConfig&) {}, SIGINT},
            // No evaluation is better than the one at step 2, and patience ends at step 6.
            {"early", stopped_early, 6, [](RunConfig& c) {
               c.optimizer.lr = c.optimizer.min_lr = 0;
               c.train.eval_interval = 2;
               c.train.early_stopping_patience = 2;
               c.train.exit_interval = 6;
             }}};
  }
};

TEST_F(RunEnds, OfThreads) {
  for (const Case& one : cases()) {
    RunConfig config = this->config(one.name);
    one.asks(config);
    aids_.before_step = {};
    if (one.signal != 0) signal_in_step(one.signal, 6, 1);
    EXPECT_EQ(run(config).end, one.end) << one.name;
    expect_end(one.name, one.end, one.step);
    EXPECT_THAT(log(one.name), Not(HasSubstr("Another process"))) << "this process received the signal";
  }
}

// All processes return the same reason, and process 0 records it, although it arose in another one.
TEST_F(RunEnds, OfProcesses) {
  for (const Case& one : cases()) {
    RunConfig config = this->config(one.name);
    one.asks(config);
    aids_.before_step = {};
    if (one.signal != 0) signal_in_step(one.signal, 6, 1);
    const int port = testing::free_port();
    const auto ended = testing::in_processes(2, [&](int rank) {
      ProcessWorld world(testing::launch_of(rank, 2, port), {20, 20});
      return train_as(config, world);
    });
    testing::expect_whole(ended);
    for (const testing::Ended& process : ended) EXPECT_EQ(process.said, said_of(one.end)) << one.name;
    expect_end(one.name, one.end, one.step);
    EXPECT_EQ(log(one.name).find("Another process was asked to stop: saving") != std::string::npos, one.signal != 0)
        << one.name << log(one.name);
  }
}

}  // namespace
}  // namespace witan
