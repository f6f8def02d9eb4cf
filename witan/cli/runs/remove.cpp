// witan runs remove: runs that nobody needs any more.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <set>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/cli/args/options.h"
#include "witan/cli/runs/left_over.h"
#include "witan/cli/runs/run_summary.h"
#include "witan/cli/runs/subcommands.h"
#include "witan/cli/runs/usage.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

struct RemoveArgs {
  std::vector<std::string> names;
  std::string runs_folder = "runs";
  bool yes = false;
};

// What a removal that was killed has left is no run any more, and goes with the next one.
constexpr const char* kRemoved = ".removed-";

// A run that is to go, locked so that nobody begins to train it meanwhile.
struct Doomed {
  fs::path folder;
  RunLock lock;
  uint64_t bytes = 0;
};

// Names reach nothing outside of the folder of runs.
bool is_left_over(const fs::path& runs_folder, const std::string& name) {
  return fs::path(name).filename() == name && name != "." && name != ".." &&
         !left_over_of_start(runs_folder / name).empty();
}

// Throws UsageError where the run may not go.
Doomed claim(const fs::path& runs_folder, const std::string& name) {
  require<UsageError>(!name.empty(), "a run's name is empty");
  const fs::path folder = is_left_over(runs_folder, name) ? runs_folder / name : find_run(runs_folder, name);
  require<UsageError>(!fs::is_symlink(folder), folder.string(),
                      " is a link: remove the link itself, or the run where it lies");
  std::optional<RunLock> lock = RunLock::take(folder);
  require<UsageError>(lock.has_value(), "the run ", clipped(name),
                      " is training: stop it first (Ctrl-C saves it), nothing was removed");
  return {folder, std::move(*lock), disk_usage(folder)};
}

void require_unused(const std::vector<Doomed>& runs, const fs::path& runs_folder,
                    const std::set<std::string>& leaving) {
  std::vector<std::string> uses;
  for (const Doomed& run : runs) {
    for (const std::string& use : runs_that_need(run.folder, runs_folder, leaving)) uses.push_back(use);
    for (const std::string& use : processes_that_use(run.folder)) uses.push_back(use);
  }
  require<UsageError>(uses.empty(), "nothing was removed, as it is in use: ", fmt::format("{}", fmt::join(uses, "; ")),
                      ". Remove that run too, or first; end that process");
}

std::string contents_of(const Doomed& run) {
  if (const std::string left = left_over_of_start(run.folder); !left.empty())
    return cat("no run: a start that failed left ", left);
  const auto checkpoints = step_folders(run.folder / "checkpoints");
  std::string text = cat(counted(static_cast<int64_t>(checkpoints.size()), "checkpoint"));
  return checkpoints.empty() ? text : text + cat(", the newest of step ", checkpoints.front().first);
}

std::string described(const Doomed& run) {
  return fmt::format("  {:<24} {:>10}  {}\n", clipped(run.folder.filename().string(), 60),
                     format_bytes(static_cast<double>(run.bytes)), contents_of(run));
}

// Whether the person at the terminal agrees.
bool agreed(Context& context) {
  std::fputs("remove? [y/N] ", context.err);
  std::fflush(context.err);
  char answer[16] = "";
  if (!std::fgets(answer, sizeof answer, context.in)) return false;
  return answer[0] == 'y' || answer[0] == 'Y';
}

// Under a hidden name first: a removal that is cut short leaves no half run.
void remove_whole(const fs::path& folder) {
  const fs::path hidden = folder.parent_path() / cat(kRemoved, folder.filename().string());
  std::error_code error;
  fs::rename(folder, hidden, error);
  require<IoError>(!error, "cannot remove ", folder.string(), ": ", error.message());
  fsync_folder(folder.parent_path());
  fs::remove_all(hidden, error);
  require<IoError>(!error, "cannot remove all of ", hidden.string(), ": ", error.message());
}

void remove_left_over_runs(const fs::path& runs_folder) {
  std::error_code error;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(runs_folder, error))
    if (entry.path().filename().string().starts_with(kRemoved)) left.push_back(entry.path());
  for (const fs::path& path : left) fs::remove_all(path, error);
}

ExitCode remove(Context& context, const RemoveArgs& args) {
  const std::set<std::string> names(args.names.begin(), args.names.end());
  std::vector<Doomed> runs;
  uint64_t bytes = 0;
  for (const std::string& name : names) {
    runs.push_back(claim(args.runs_folder, name));
    bytes += runs.back().bytes;
  }
  require_unused(runs, args.runs_folder, names);
  for (const Doomed& run : runs) fmt::print(context.err, "{}", described(run));
  fmt::print(context.err, "{} in {} would be freed\n", format_bytes(static_cast<double>(bytes)),
             counted(static_cast<int64_t>(runs.size()), "run"));
  require<UsageError>(args.yes || agreed(context), "nothing was removed: answer y, or give --yes");
  remove_left_over_runs(args.runs_folder);
  for (const Doomed& run : runs) {
    remove_whole(run.folder);
    fmt::print(context.err, "removed      {}\n", run.folder.string());
  }
  return ExitCode::done;
}

}  // namespace

void add_runs_remove(CLI::App& runs, Context& context) {
  const auto args = std::make_shared<RemoveArgs>();
  CLI::App* command = add_command(
      runs, context,
      {"remove", "Remove runs with their checkpoints",
       "Says what would be freed, and asks. A run that trains, that another run's configuration names, or whose files "
       "a process of this machine has open is refused, and then nothing is removed.",
       "witan runs remove old --yes"},
      [&context, args] { return remove(context, *args); });
  add_option(*command, "names", args->names, "Names of the runs").type_name("").required();
  add_option(*command, "--runs-folder", args->runs_folder, "Folder of all runs").type_name("FOLDER").show_default();
  add_flag(*command, "--yes", args->yes, "Do not ask");
}

}  // namespace witan::cli
