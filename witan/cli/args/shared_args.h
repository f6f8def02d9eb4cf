// Flags that several commands share: those that select a run, a device and threads, and those of commands that read
// text.
#pragma once

#include <cstdio>
#include <string>

#include "witan/data/corpus/corpus.h"

namespace CLI {
class App;
}

namespace witan {
struct TrainedRun;
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
// --runs-folder alone.
void add_runs_folder(CLI::App& command, std::string& folder);
// Opens the run; prints warnings about damaged checkpoints to `err`. Throws as open_run() does.
TrainedRun open_selected_run(std::FILE* err, const RunArgs& args);
// --threads, for commands that compute.
void add_threads(CLI::App& command, RunArgs& args);
// --device and --deterministic, for commands that generate.
void add_device(CLI::App& command, RunArgs& args);
// The number of threads for --threads on this machine.
int resolved_threads(const RunArgs& args);

// --json-key, --bad-row-share and --replace-invalid-utf8.
void add_text_args(CLI::App& command, CorpusOptions& options);

}  // namespace witan::cli
