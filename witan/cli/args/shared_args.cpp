#include "witan/cli/args/shared_args.h"

#include <fmt/core.h>

#include "witan/base/threads/threads.h"
#include "witan/cli/args/options.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {

void add_run_args(CLI::App& command, RunArgs& args) {
  add_option(command, "--run", args.run, "Name of the run (default: the latest)").type_name("NAME");
  add_runs_folder(command, args.runs_folder);
}

void add_runs_folder(CLI::App& command, std::string& folder) {
  add_option(command, "--runs-folder", folder, "Folder of all runs").type_name("FOLDER").show_default();
}

TrainedRun open_selected_run(std::FILE* err, const RunArgs& args) {
  TrainedRun run = open_run(args.runs_folder, args.run);
  for (const std::string& warning : run.warnings) fmt::print(err, "warning: {}\n", warning);
  return run;
}

void add_threads(CLI::App& command, RunArgs& args) {
  add_option(command, "--threads", args.threads, "Compute threads (0: one per core)")
      .type_name("N")
      .range(0, 4096)
      .show_default();
}

void add_device(CLI::App& command, RunArgs& args) {
  add_option(command, "--device", args.device, "Device to compute on; auto: a GPU if there is one")
      .one_of({"auto", "cpu", "cuda"})
      .show_default();
  add_flag(
      command, "--deterministic", args.deterministic,
      "On a GPU, give each token the log probability of training with --batch-invariant-mode to the bit, whatever else "
      "is in the batch; slower (a CPU always does; a run that was trained so needs no flag)");
}

int resolved_threads(const RunArgs& args) {
  return args.threads > 0 ? args.threads : usable_cores();
}

void add_text_args(CLI::App& command, CorpusOptions& options) {
  add_option(command, "--json-key", options.json_key,
             "Key of the text in rows of JSON Lines; its column in Parquet and Arrow, or a path with dots")
      .type_name("KEY")
      .show_default();
  add_option(command, "--bad-row-share", options.bad_row_share, "Fail when more than this share of rows is unusable")
      .type_name("SHARE")
      .range(0.0, 1.0)
      .show_default();
  add_flag(command, "--replace-invalid-utf8", options.replace_invalid_utf8,
           "Replace invalid UTF-8 by U+FFFD instead of refusing the text");
}

}  // namespace witan::cli
