#include "witan/cli/runs/usage.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/train/config/config.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

fs::path real_path(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  return error ? path : real;
}

// Whether `path` is the folder or lies in it, both without links.
bool lies_in(const fs::path& path, const fs::path& folder) {
  const auto [folder_end, at] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return folder_end == folder.end();
}

// What a run has copies of as soon as it has saved a checkpoint (train/data/run_data.h).
bool is_read_once(const std::string& key) {
  static constexpr std::string_view kOnce[] = {"init_from", "upcycle", "tokenizer", "data", "chat_template"};
  return std::ranges::find(kOnce, key) != std::end(kOnce);
}

// "key = value" of each key that names something within the run. `has_begun`: the run of the configuration has a
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
      if (!fs::exists(value, error)) value.resize(std::min(value.rfind('@'), value.size()));  // a checkpoint of it
      named = **text == run.filename().string() || value == run.filename().string();
    }
    for (size_t begin = 0; begin <= value.size() && !named;) {  // several paths stand between commas
      const size_t end = std::min(value.find(',', begin), value.size());
      const std::string one = value.substr(begin, end - begin);
      named = one.find('/') != std::string::npos && lies_in(real_path(one.substr(one.find('=') + 1)), real_run);
      begin = end + 1;
    }
    if (named) keys.push_back(cat(field.name, " = ", clipped(**text)));
  }
  return keys;
}

// The first file within `folder` that links in /proc/PID/fd or lines of /proc/PID/maps name.
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

}  // namespace

std::vector<std::string> runs_that_need(const fs::path& run, const fs::path& runs_folder,
                                        const std::set<std::string>& leaving) {
  const fs::path real = real_path(run);
  std::vector<std::string> needed;
  for (const std::string& name : list_runs(runs_folder)) {
    if (leaving.contains(name)) continue;
    std::optional<RunConfig> values;
    try {
      values = saved_config(runs_folder / name);
    } catch (const Error&) {  // it cannot be resumed either
    }
    if (!values) continue;
    const bool has_begun = !step_folders(runs_folder / name / "checkpoints").empty();
    for (const std::string& key : keys_that_name(*values, has_begun, run, real))
      needed.push_back(cat("the run ", clipped(name), " was given ", key));
  }
  return needed;
}

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

}  // namespace witan::cli
