#include "witan/cli/run_args.h"

#include <CLI/CLI.hpp>

#include "witan/base/threads.h"

namespace witan::cli {

void add_run_args(CLI::App& command, RunArgs& args) {
  command.add_option("--run", args.run, "Name of the run (default: the latest)")->type_name("NAME");
  command.add_option("--runs-folder", args.runs_folder, "Folder of all runs")
      ->type_name("FOLDER")
      ->capture_default_str();
}

void add_threads(CLI::App& command, RunArgs& args) {
  command.add_option("--threads", args.threads, "Compute threads (0: one per core)")
      ->type_name("N")
      ->check(CLI::Range(0, 4096).description(""))
      ->capture_default_str();
}

int resolved_threads(const RunArgs& args) {
  return args.threads > 0 ? args.threads : usable_cores();
}

}  // namespace witan::cli
