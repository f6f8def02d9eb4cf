// One call of `witan train`: what is given and what is known are resolved into a configuration, this is planned, and
// the plan is run.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "witan/cli/args/run_config.h"
#include "witan/cli/command.h"
#include "witan/comm/processes/launch.h"
#include "witan/train/trace/step_range.h"

namespace witan::cli {

// What is asked of this call alone, and not of the run.
struct TrainOptions {
  bool fresh = false;            // archives the run and starts anew
  bool dry_run = false;          // ends before anything is written
  double max_minutes = 0;        // a new run that is predicted to take longer gets fewer steps; 0: no limit
  std::vector<int> debug_ranks;  // which wait for a debugger
  std::string trace_steps;       // "3:5"; empty: none
  std::optional<StepRange>
      profiled;  // of Megatron-LM's --profile; unlike the above, steps that do not come are no error
};

// `launch`: which process of a job this one is; nothing: the only one. `loud`: where a process that is otherwise silent
// is heard. Throws what keeps the run from being trained.
ExitCode run_training(Context& context, const TrainOptions& options, const GivenConfig& given,
                      const std::optional<Launch>& launch, std::FILE* loud);

inline constexpr const char* kLayoutVariable = "WITAN_RUN_LAYOUT";   // TOML, as layout_keys() writes it
inline constexpr const char* kResumeVariable = "WITAN_RUN_RESUMES";  // "1": after an earlier start of the same call
inline constexpr const char* kCallVariable = "WITAN_RUN_CALL";       // what stands before `train`: "run --ranks 4 --"

struct Supervised {
  std::string layout;
  bool resumes = false;
  std::string call = {};
};

// Of this process; nothing where `witan run` did not start it.
std::optional<Supervised> find_supervised();

// What was asked of the first start is not done again: to begin anew, and to trace steps that lie behind.
TrainOptions options_of(TrainOptions options, const Supervised& supervised);

// Sets the layout over what preset, file and flags say. Throws ConfigError for what is no layout.
void lay_out(GivenConfig& given, const Supervised& supervised);

}  // namespace witan::cli
