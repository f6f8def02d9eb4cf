// The state of each run in a folder, from the files in the run's folder. Nothing is written, and no checkpoint is
// opened.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/train/config/config.h"

namespace witan::cli {

enum class RunState : uint8_t {
  running,      // a process holds its lock
  finished,     // all its steps are done, or it was stopped early
  interrupted,  // stopped by a signal, or by exit_interval or exit_duration_in_mins
  failed,       // it ended otherwise: by an error, or killed
  imported,     // weights of another program, never trained
  not_begun,    // it has a configuration and no step
};
const char* name_of(RunState state);  // "running", "not begun"

struct RunSummary {
  std::string name;
  fs::path folder;
  RunState state = RunState::not_begun;
  std::optional<RunConfig> config;  // nothing if it cannot be read
  int64_t step = 0;                 // the last step in metrics.jsonl
  std::optional<int64_t> steps;     // of the whole run; nothing for an imported one
  std::optional<double> loss;       // of the last step, in nats per token, as:
  std::optional<double> validation_loss;
  std::optional<int64_t> tokens;  // trained on so far
  std::optional<int64_t> parameters;
  std::chrono::seconds age{0};  // since metrics.jsonl, or else config.toml, was last written
  uint64_t bytes = 0;           // on disk
  std::string origin;           // the preset, file or weights that it was started with; empty: unknown
};

// The runs, the latest first. `skipped` receives a line about each entry of the folder that is not a run, `damaged`
// about each file of a run that cannot be read. Throws UsageError if the folder itself cannot be read.
std::vector<RunSummary> summarise_runs(const fs::path& runs_folder, std::vector<std::string>& skipped,
                                       std::vector<std::string>& damaged);
// One run. Throws UsageError, naming the runs in the folder, if there is no such run.
RunSummary summarise_run(const fs::path& runs_folder, const std::string& name, std::vector<std::string>& damaged);

// Describes a problem with the metrics.jsonl of a trained run (one with a checkpoint or a report): "is missing", "is
// empty" or "has no step". Empty for a run that has not begun.
std::string lost_metrics(const fs::path& run_folder);
// The step of the newest checkpoint, which is not verified; 0: none.
int64_t newest_checkpoint_step(const fs::path& run_folder);

// Bytes that a path and everything below it take on disk. Hard links are counted once; symbolic links are not followed.
uint64_t disk_usage(const fs::path& path);

// Whether `witan import` made the run.
bool has_imported_weights(const fs::path& run);
// Whether a run has imported weights and nothing else: no text, no steps.
bool is_imported_only(const fs::path& run);

// Names files that a failed start has left in a folder without config.toml, for the next start of the same name: "a
// lock", "a tokenizer and tokens", "a tokenizer, tokens and records without a step". Empty if the folder contains
// anything else, or nothing that only a start makes.
std::string left_over_of_start(const fs::path& folder);

}  // namespace witan::cli
