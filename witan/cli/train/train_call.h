// One call of `witan train`: resolves the given configuration, plans it, and runs the plan.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "witan/cli/args/run_config.h"
#include "witan/cli/command.h"
#include "witan/comm/processes/launch.h"
#include "witan/train/config/config.h"

namespace witan::cli {

// Options of this call that are not part of the run's configuration.
struct TrainOptions {
  bool fresh = false;            // archive the run and start over
  bool dry_run = false;          // end before anything is written
  double max_minutes = 0;        // a new run that is predicted to take longer gets fewer steps; 0: no limit
  std::vector<int> debug_ranks;  // ranks that wait for a debugger
  std::string trace_steps;       // "3:5"; empty: none
  std::optional<StepRange>
      profiled;  // steps of Megatron-LM's --profile, which, unlike trace_steps, may be outside the run
};

// `launch`: this process's place in a job; nothing: the only process. `loud`: a stream for ranks that wait for a
// debugger, which also works in processes whose other output is discarded. Throws the error that prevents training.
ExitCode run_training(Context& context, const TrainOptions& options, const GivenConfig& given,
                      const std::optional<Launch>& launch, std::FILE* loud);

// Environment variables by which `witan run` tells the `witan train` processes that it starts which layout remains
// after ranks were lost.
inline constexpr const char* kLayoutVariable = "WITAN_RUN_LAYOUT";   // TOML, as layout_keys() writes it
inline constexpr const char* kResumeVariable = "WITAN_RUN_RESUMES";  // "1": the call was started before
inline constexpr const char* kCallVariable = "WITAN_RUN_CALL";       // the words before `train`: "run --ranks 4 --"

struct Supervised {
  std::string layout;
  bool resumes = false;
  std::string call = {};
};

// The values of these variables; nothing if `witan run` did not start this process.
std::optional<Supervised> find_supervised();

// The options of a restart, which does not repeat --fresh and --trace-steps.
TrainOptions options_of(TrainOptions options, const Supervised& supervised);

// Sets the layout, which overrides preset, file and flags. Throws ConfigError for text that is not a layout.
void lay_out(GivenConfig& given, const Supervised& supervised);

}  // namespace witan::cli
