// witan runs snapshot: asks a run that is training to write down what its memory holds.
#include <fmt/core.h>

#include <memory>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/cli/args/options.h"
#include "witan/cli/runs/subcommands.h"
#include "witan/train/record/memory.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

struct SnapshotArgs {
  std::string name;
  std::string runs_folder = "runs";
};

ExitCode snapshot(Context& context, const SnapshotArgs& args) {
  const fs::path folder = find_run(args.runs_folder, args.name);
  require<UsageError>(is_training(folder), "the run ", clipped(args.name),
                      " is not training, and has no memory to show: ask while it trains");
  request_snapshot(folder);
  fmt::print(context.err, "asked        each rank writes {} in its next step\n",
             (folder / "memory" / "step-S-rank-N.json").string());
  return ExitCode::done;
}

}  // namespace

void add_runs_snapshot(CLI::App& runs, Context& context) {
  const auto args = std::make_shared<SnapshotArgs>();
  CLI::App* command = add_command(runs, context,
                                  {"snapshot", "Have a run that is training write what its memory holds",
                                   "In its next step each rank writes RUN/memory/step-S-rank-N.json: every live block "
                                   "of its memory, with its bytes, "
                                   "kind, dtype and shape, and the layer and op that allocated it. Training goes on.",
                                   "witan runs snapshot my-run"},
                                  [&context, args] { return snapshot(context, *args); });
  add_option(*command, "name", args->name, "Name of the run").type_name("").required();
  add_option(*command, "--runs-folder", args->runs_folder, "Folder of all runs").type_name("FOLDER").show_default();
}

}  // namespace witan::cli
