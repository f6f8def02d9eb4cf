// witan runs remove: removes runs that nothing uses.
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/files/file.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/cli/args/options.h"
#include "witan/cli/args/shared_args.h"
#include "witan/cli/command.h"
#include "witan/cli/runs/run_summary.h"
#include "witan/train/config/config.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

fs::path real_path(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  return error ? path : real;
}

// Whether `path` is the folder or is inside it; links are resolved in both.
bool lies_in(const fs::path& path, const fs::path& folder) {
  const auto [folder_end, at] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return folder_end == folder.end();
}

// Keys whose files a run has copied once it has saved a checkpoint (train/data/run_data.h).
bool is_read_once(const std::string& key) {
  static constexpr std::string_view kOnce[] = {"init_from", "upcycle", "tokenizer", "data", "chat_template"};
  return std::ranges::find(kOnce, key) != std::end(kOnce);
}

// "key = value" for each key that names something inside `run`. `has_begun`: the configuration's own run has a
// checkpoint.
std::vector<std::string> keys_that_name(RunConfig config, bool has_begun, const fs::path& run,
                                        const fs::path& real_run) {
  std::vector<std::string> keys;
  for (const Field& field : config.fields()) {
    const auto* const text = std::get_if<std::string*>(&field.value);
    if (!text || (*text)->empty() || field.name == "run" || field.name == "runs_folder") continue;
    if (has_begun && is_read_once(field.name)) continue;
    std::string value = **text;
    bool named = false;
    if (field.name == "init_from" || field.name == "upcycle") {
      std::error_code error;
      if (!fs::exists(value, error)) value.resize(std::min(value.rfind('@'), value.size()));  // RUN@CHECKPOINT
      named = **text == run.filename().string() || value == run.filename().string();
    }
    for (size_t begin = 0; begin <= value.size() && !named;) {  // paths separated by commas
      const size_t end = std::min(value.find(',', begin), value.size());
      const std::string one = value.substr(begin, end - begin);
      named = one.find('/') != std::string::npos && lies_in(real_path(one.substr(one.find('=') + 1)), real_run);
      begin = end + 1;
    }
    if (named) keys.push_back(cat(field.name, " = ", clipped(**text)));
  }
  return keys;
}

// The first file inside `folder` that the process has open or mapped, by /proc/PID/fd and /proc/PID/maps.
std::string file_in_use(const fs::path& process, const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(process / "fd", error)) {
    std::error_code unreadable;
    const fs::path open = fs::read_symlink(entry.path(), unreadable);
    if (!unreadable && lies_in(open, folder)) return open.string();
  }
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);)
    if (const size_t slash = line.find('/'); slash != std::string::npos && lies_in(line.substr(slash), folder))
      return line.substr(slash);
  return "";
}

// A sentence for each other run in the folder that reads something inside `run` when it resumes, by the run's name or a
// path: init_from, upcycle, a tokenizer, shards, routes. Runs in `leaving` do not count.
std::vector<std::string> runs_that_need(const fs::path& run, const fs::path& runs_folder,
                                        const std::set<std::string>& leaving) {
  const fs::path real = real_path(run);
  std::vector<std::string> needed;
  for (const std::string& name : list_runs(runs_folder)) {
    if (leaving.contains(name)) continue;
    std::optional<RunConfig> values;
    try {
      values = saved_config(runs_folder / name);
    } catch (const Error&) {  // a run that cannot be read cannot be resumed either
    }
    if (!values) continue;
    const bool has_begun = !step_folders(runs_folder / name / "checkpoints").empty();
    for (const std::string& key : keys_that_name(*values, has_begun, run, real))
      needed.push_back(cat("the run ", clipped(name), " was given ", key));
  }
  return needed;
}

// Other processes of this host that have a file inside `folder` open or mapped, as far as this user may see:
// "process 4711 (witan) has .../shard-0.safetensors open".
std::vector<std::string> processes_that_use(const fs::path& folder) {
  const fs::path real = real_path(folder);
  std::vector<std::string> users;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string id = entry.path().filename().string();
    if (id.find_first_not_of("0123456789") != std::string::npos || id == std::to_string(::getpid())) continue;
    const std::string file = file_in_use(entry.path(), real);
    if (file.empty()) continue;
    std::string name;
    std::ifstream comm(entry.path() / "comm");
    std::getline(comm, name);
    users.push_back(cat("process ", id, " (", clipped(name), ") has ", clipped(file, 200), " open"));
  }
  return users;
}

struct RemoveArgs {
  std::vector<std::string> names;
  std::string runs_folder = "runs";
  bool yes = false;
};

// Removes what a killed removal has left, which is no run any more.
constexpr const char* kRemoved = ".removed-";

// A run to remove, locked so that no process starts to train it meanwhile.
struct Doomed {
  fs::path folder;
  RunLock lock;
  uint64_t bytes = 0;
};

// Refuses names that reach outside the folder of runs.
bool is_left_over(const fs::path& runs_folder, const std::string& name) {
  return fs::path(name).filename() == name && name != "." && name != ".." &&
         !left_over_of_start(runs_folder / name).empty();
}

// Throws UsageError if the run must not be removed.
Doomed claim(const fs::path& runs_folder, const std::string& name) {
  require<UsageError>(!name.empty(), "a run's name is empty");
  const fs::path folder = is_left_over(runs_folder, name) ? runs_folder / name : find_run(runs_folder, name);
  require<UsageError>(!fs::is_symlink(folder), folder.string(),
                      " is a link: remove the link itself, or the run at its own path");
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

// Asks at the terminal for confirmation.
bool agreed(Context& context) {
  std::fputs("remove? [y/N] ", context.err);
  std::fflush(context.err);
  char answer[16] = "";
  if (!std::fgets(answer, sizeof answer, context.in)) return false;
  return answer[0] == 'y' || answer[0] == 'Y';
}

// Renames the run to a hidden name first, so that an interrupted removal leaves no half of a run.
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
       "Shows what would be freed, and asks. A run that trains, that another run's configuration names, or whose files "
       "a process of this machine has open is refused, and then nothing is removed.",
       "witan runs remove old --yes"},
      [&context, args] { return remove(context, *args); });
  add_option(*command, "names", args->names, "Names of the runs").type_name("").required();
  add_runs_folder(*command, args->runs_folder);
  add_flag(*command, "--yes", args->yes, "Do not ask");
}

}  // namespace witan::cli
