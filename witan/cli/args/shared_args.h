// Flags that select the run that a command reads.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace witan::cli {

struct RunArgs {
  std::string run;  // empty: the latest
  std::string runs_folder = "runs";
  int threads = 0;  // 0: as many as there are cores
  std::string device = "auto";
  bool deterministic = false;
};

// --run and --runs-folder.
void add_run_args(CLI::App& command, RunArgs& args);
// --threads, for commands that compute.
void add_threads(CLI::App& command, RunArgs& args);
// --device and --deterministic, for commands that generate.
void add_device(CLI::App& command, RunArgs& args);
// The number of threads for --threads on this machine.
int resolved_threads(const RunArgs& args);

}  // namespace witan::cli
