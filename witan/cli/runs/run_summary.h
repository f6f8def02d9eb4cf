// Where each run of a folder stands, from what lies in its folder. Nothing is written, and no checkpoint is opened.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "witan/base/files/file.h"
#include "witan/train/run/config.h"

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
  std::optional<RunConfig> config;  // nothing where it cannot be read
  int64_t step = 0;                 // the last one that metrics.jsonl has
  std::optional<int64_t> steps;     // of the whole run; nothing of one that was imported
  std::optional<double> loss;       // of that step, nats per token; likewise:
  std::optional<double> validation_loss;
  std::optional<int64_t> tokens;  // read until then
  std::optional<int64_t> parameters;
  std::chrono::seconds age{0};  // since metrics.jsonl, or else config.toml, was last written
  uint64_t bytes = 0;           // on the disk
  std::string origin;  // the preset or file that it was started with, or where its weights come from; empty: not known
};

// The runs, the latest first. `skipped` receives a line about each thing in the folder that is no run, `damaged` about
// what of a run cannot be read. Throws UsageError where the folder itself cannot be read.
std::vector<RunSummary> summarise_runs(const fs::path& runs_folder, std::vector<std::string>& skipped,
                                       std::vector<std::string>& damaged);
// One of them. Throws UsageError where there is no such run, naming those that there are.
RunSummary summarise_run(const fs::path& runs_folder, const std::string& name, std::vector<std::string>& damaged);

// Of a run whose metrics.jsonl has no step though it was trained what is wrong with the file: "is missing", "is empty",
// "has no step"; "" of a run that has not begun. A checkpoint or a report tells that it was trained.
std::string lost_metrics(const fs::path& run_folder);
// The step of its newest checkpoint, not checked; 0: there is none.
int64_t newest_checkpoint_step(const fs::path& run_folder);

// Bytes that everything below a path takes on its disk. A file of several names is counted once; links are not
// followed.
uint64_t disk_usage(const fs::path& path);

// Whether `witan import` made the run.
bool has_imported_weights(const fs::path& run);
// Whether a run has weights of another program and nothing else: no text, no steps.
bool is_imported_only(const fs::path& run);

// What a start that failed has left in a folder without config.toml: "a lock", "a tokenizer and tokens", "a tokenizer,
// tokens and records without a step". Empty where anything else lies there, or nothing that only a start makes.
std::string left_over_of_start(const fs::path& folder);

}  // namespace witan::cli
