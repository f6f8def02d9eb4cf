// Run folders as training leaves them, without training.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/cli_support.h"
#include "witan/report/events/metrics.h"

namespace witan::test {

class MadeUpRuns : public ::testing::Test {
 protected:
  // Records `steps` of 100 steps, with losses falling from `loss` and an evaluation after every tenth.
  void make(const std::string& name, int64_t steps, const std::string& toml = "", const std::string& end = "finished",
            double loss = 4) const {
    write_text(runs_ / name / "config.toml", "[train]\ntrain_iters = 100\n" + toml);
    MetricsWriter out(runs_ / name / "metrics.jsonl");
    RunEvent run;
    run.name = name;
    run.parameters = 1'500'000;
    run.tokens_per_step = 2000;
    run.total_steps = 100;
    out.append(run);
    for (int64_t n = 1; n <= steps; ++n) {
      StepEvent step;
      step.step = n;
      step.loss = loss - 0.01 * static_cast<double>(n);
      out.append(step);
      if (n % 10 == 0) out.append(EvalEvent{n, loss + 0.5, 2});
    }
    if (!end.empty()) out.append(EndEvent{end});
  }
  Said runs(std::vector<std::string> args = {}, const std::string& input = "") const {
    args.insert(args.begin(), "runs");
    args.insert(args.end(), {"--runs-folder", runs_.string()});
    return witan(args, input);
  }

  TempFolder folder_;
  const std::filesystem::path runs_ = folder_ / "runs";
};

}  // namespace witan::test
