// Prints the output of `witan train` before and after training, and writes its report meanwhile. All of it goes to
// standard error, except the model's sample.
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
#include "witan/report/progress/timing.h"
#include "witan/train/loop/trainer.h"

namespace witan::cli {

// The first line: the run's folder, and whether it is new or resumed, and from which step. If the call does not name
// its run (`named`), the line mentions a more recent one.
enum class RunBegin : uint8_t { anew, resumed, archived };
void announce_run(const RunConfig& config, RunBegin begin, bool named, Progress& progress);

// Says that --max-minutes leaves the run `steps` steps, how long all of them (`whole`) would take, and how to train
// all.
void announce_shortened(const Context& context, const GivenConfig& given, int64_t steps, const Timing& whole,
                        Progress& progress);

// A warning if the learning rate jumps because a run is resumed after `done` steps with another schedule. `saved`: the
// run's configuration so far.
std::optional<std::string> schedule_warning(const RunConfig& saved, const RunConfig& now, int64_t done);

// Prints the model, ranks, layout, libraries and work before the first step.
void announce(const ResolvedConfig& config, const Plan& plan, const Timing& timing, int64_t done, Progress& progress);

// Prints the result of a run: validation, speed, memory, the path of the report, and commands to continue with. The
// sample goes to standard output, unless log_format prints lines there.
void summarise(const Context& context, const ResolvedConfig& config, const RunPlan& predicted, const RunResult& result,
               const Metrics& recorded, const fs::path& report, Progress& progress);

// For ranks that end after `step` to be restarted by `witan run`: the summary follows when the run ends.
void say_restart(const RunConfig& config, int64_t step, Progress& progress);

// Lists flags that have no effect because the run is finished.
void say_unused(RunConfig saved, RunConfig given, Progress& progress);
// A run with nothing left to train after step `done`: it has the `asked` steps of this call, or early stopping has
// ended it. `validation`: the results of its evaluations.
struct DoneRun {
  int64_t done = 0, asked = 0;
  ValidationRecord validation = {};
};
// Prints the state of such a run, and how to continue. `config`: the configuration that it was trained with.
void say_done(const Context& context, const RunConfig& config, const RunFolder& folder, const DoneRun& run,
              Progress& progress);

// Writes the report of the run in `folder` every `seconds` seconds, from its own thread, as a page that reloads itself
// at the same interval; less often if writing would take more than a hundredth of the time. Each report reads only the
// metrics recorded since the last one, and needs no more memory for a long run. A report that cannot be written is
// skipped: a later one, or the one at the end of the run, replaces it.
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
