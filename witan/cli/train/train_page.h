// What `witan train` says before and after it trains: the plan in some lines, and what came of the run. All of it is
// talk, for the standard error, but for what the model writes.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "witan/base/files/file.h"
#include "witan/cli/args/run_config.h"
#include "witan/cli/command.h"
#include "witan/cli/train/planning.h"
#include "witan/report/events/metrics.h"
#include "witan/report/events/metrics_follower.h"
#include "witan/report/progress/progress.h"
#include "witan/report/progress/ticker.h"
#include "witan/train/run/trainer.h"

namespace witan::cli {

// The first line: the run's folder, and whether it is new or resumed, and from where. A call that does not name its run
// (`named`) hears of a later one.
enum class RunBegin : uint8_t { anew, resumed, archived };
void announce_run(const RunConfig& config, RunBegin begin, bool named, Progress& progress);

// That a new run gets only so many steps (--max-minutes), since all of them would take as long as `whole` says; and how
// to have all.
void announce_shortened(const Context& context, const GivenConfig& given, int64_t steps, const Timing& whole,
                        Progress& progress);

// Of a run that is resumed after `done` steps with another schedule: a jump of the learning rate must not come as a
// surprise. `saved`: the run's configuration until now.
std::optional<std::string> schedule_warning(const RunConfig& saved, const RunConfig& now, int64_t done);

// Model, ranks, layout, libraries and work, before the first step.
void announce(const ResolvedConfig& config, const Plan& plan, const Timing& timing, int64_t done, Progress& progress);

// What came of it, as far as `recorded` says how fast it was; where `report` is, and the commands to continue with. The
// sample goes to the standard output, unless lines for programs are there (log_format).
void summarise(const Context& context, const ResolvedConfig& config, const RunPlan& promised, const RunResult& result,
               const Metrics& recorded, const fs::path& report, Progress& progress);

// Of ranks that end to be started again by their supervisor, after `step`: the rest is said when the run ends.
void say_restart(const RunConfig& config, int64_t step, Progress& progress);

// Flags that a finished run has no use for: there is nothing left to train.
void say_unused(RunConfig saved, RunConfig given, Progress& progress);
// Of a run of which no more is trained after step `done`: it has the `asked` steps of this call, or early stopping has
// ended it before. `validation`: what its evaluations have found.
struct DoneRun {
  int64_t done = 0, asked = 0;
  ValidationRecord validation = {};
};
// `config`: what it was trained with.
void say_done(const Context& context, const RunConfig& config, const RunFolder& folder, const DoneRun& run,
              Progress& progress);

// Writes the report of the run in `folder` every so many seconds, from a thread of its own, as a page that loads itself
// again as often. A report that takes longer is written less often, so that it takes a hundredth of the time at most.
// Each reads what was recorded since the one before, and keeps as much of a long run as of a short one. What cannot be
// written is left, as a later one may be, and the run's end writes its own.
class LiveReport {
 public:
  static constexpr double kSeconds = 60;

  explicit LiveReport(fs::path folder, double seconds = kSeconds);

 private:
  void write();

  const fs::path folder_;
  const double seconds_;
  MetricsFollower recorded_;
  std::chrono::steady_clock::time_point due_;
  Ticker ticker_;  // the last member: its thread uses the others
};

}  // namespace witan::cli
