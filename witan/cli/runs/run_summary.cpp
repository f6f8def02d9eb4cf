#include "witan/cli/runs/run_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/cli/args/run_config.h"
#include "witan/convert/ledger.h"
#include "witan/report/events/metrics.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/weights/load_run.h"

namespace witan::cli {
namespace {

// Whether the path is a regular file; opening a pipe would block.
bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

RunState state_of(const RunSummary& run, const MetricsStanding& standing) {
  if (is_training(run.folder)) return RunState::running;
  if (!standing.step && run.step == 0)
    return has_imported_weights(run.folder) ? RunState::imported : RunState::not_begun;
  if (!standing.end || standing.end->failed()) return RunState::failed;
  return standing.end->reason.starts_with("stopped by ") ? RunState::interrupted : RunState::finished;
}

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

void take_standing(RunSummary& run, const MetricsStanding& standing) {
  if (standing.run) {
    run.parameters = standing.run->parameters;
    if (!run.steps) run.steps = standing.run->total_steps;
  }
  if (standing.eval) run.validation_loss = finite(standing.eval->loss);
  if (!standing.step) {  // metrics may be lost although steps were done
    run.step = newest_checkpoint_step(run.folder);
    return;
  }
  run.step = standing.step->step;
  run.loss = finite(standing.step->loss);
  if (standing.run) run.tokens = standing.step->tokens.value_or(standing.run->tokens_per_step * run.step);
}

// "init_from base" for a run that was started from other weights; otherwise empty.
std::string source_of_weights(const TrainConfig& train) {
  if (!train.init_from.empty()) return "init_from " + clipped(train.init_from, 200);
  return train.upcycle.empty() ? "" : "upcycle " + clipped(train.upcycle, 200);
}

// `damaged` receives a line for each file that cannot be read.
RunSummary summary_of(const fs::path& folder, std::vector<std::string>& damaged) {
  RunSummary run;
  run.folder = folder;
  run.name = folder.filename().string();
  const fs::path config = folder / "config.toml", metrics = folder / "metrics.jsonl";
  const auto attempt = [&](const auto& read) {
    try {
      read();
    } catch (const Error& error) {
      damaged.push_back(cat(clipped(run.name), ": ", error.what()));
    }
  };
  attempt([&] {
    run.config = saved_config(folder);
    if (!run.config) throw CorruptionError(cat(config.string(), " is lost or empty, and no checkpoint has another"));
    run.steps = run.config->train.train_iters;
    run.origin = read_origin(config);
    if (run.origin.empty()) run.origin = source_of_weights(run.config->train);
  });
  MetricsStanding standing;
  if (is_file(metrics)) attempt([&] { standing = read_standing(metrics); });
  if (!standing.damage.empty()) damaged.push_back(cat(clipped(run.name), ": ", standing.damage));
  take_standing(run, standing);
  run.state = state_of(run, standing);
  if (run.state == RunState::imported) run.steps.reset();  // its configuration has only the default
  std::error_code error;
  const auto written = fs::last_write_time(is_file(metrics) ? metrics : config, error);
  if (!error) run.age = std::chrono::duration_cast<std::chrono::seconds>(fs::file_time_type::clock::now() - written);
  run.bytes = disk_usage(folder);
  return run;
}

// Why the entry is not a run; empty if it is one. Hidden folders are runs that are being created or removed.
std::string why_no_run(const fs::directory_entry& entry) {
  std::error_code error;
  if (!entry.is_directory(error)) return error ? error.message() : "not a folder";
  const auto config = fs::status(entry.path() / "config.toml", error);
  if (config.type() == fs::file_type::not_found) {
    if (holds_run(entry.path())) return "";
    const std::string left = left_over_of_start(entry.path());
    if (!left.empty() && is_training(entry.path())) return "no run yet: it is being started";
    return left.empty() ? "no config.toml, so no run"
                        : cat("no run: a start that failed left ", left, " there, for the next one of that name; `",
                              "witan runs remove ", flags_of_run(entry.path()), "` removes it");
  }
  if (error) return error.message();
  return config.type() == fs::file_type::regular ? "" : "its config.toml is not a file";
}

struct LeftOver {
  bool lock = false, tokenizer = false, tokens = false, record = false, other = false;
};

bool is_plain(const fs::directory_entry& entry) {
  return !entry.is_symlink() && entry.is_regular_file();
}

// Adds what the folder of text has: tokens, whole or cut short by an interruption.
void look_at_tokens(const fs::path& data, LeftOver& found) {
  for (const auto& entry : fs::directory_iterator(data)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.starts_with("tokens.") || name.starts_with("tokens-") || name.starts_with(".tmp-tokens");
    (ours && is_plain(entry) ? found.tokens : found.other) = true;
  }
}

// Adds a folder of records, in which a failed start leaves only files with this prefix.
void look_at_records(const fs::path& folder, std::string_view prefix, LeftOver& found) {
  found.record = true;
  for (const auto& entry : fs::directory_iterator(folder))
    if (!is_plain(entry) || !entry.path().filename().string().starts_with(prefix)) found.other = true;
}

// A file with steps or evaluations belongs to a run that has lost its configuration, since no start fails so late.
bool records_no_step(const fs::path& metrics) try {
  const MetricsStanding standing = read_standing(metrics);
  return standing.damage.empty() && !standing.step && !standing.eval;
} catch (const Error&) {
  return false;
}

void look_at(const fs::directory_entry& entry, LeftOver& found) {
  const std::string name = entry.path().filename().string();
  const bool is_folder = entry.is_directory() && !entry.is_symlink();
  if (name == "data" && is_folder) return look_at_tokens(entry.path(), found);
  if (name == "tensorboard" && is_folder) return look_at_records(entry.path(), "events.out.tfevents.", found);
  if (name == "memory" && is_folder) return look_at_records(entry.path(), "rank-", found);  // memory ran out
  if (!is_plain(entry))
    found.other = true;
  else if (name == "metrics.jsonl")
    (records_no_step(entry.path()) ? found.record : found.other) = true;
  else if (name == "train.log" || name == "progress.txt")
    found.record = true;
  else if (name == ".lock")
    found.lock = true;
  else if (name == "tokenizer.json" || name == "tokenizer.record.json" || name == "tokenizer_config.json" ||
           name.starts_with(".tmp-tokenizer"))
    found.tokenizer = true;
  else
    found.other = true;
}

}  // namespace

const char* name_of(RunState state) {
  static constexpr const char* kNames[] = {"running", "finished", "interrupted", "failed", "imported", "not begun"};
  return kNames[static_cast<size_t>(state)];
}

std::vector<RunSummary> summarise_runs(const fs::path& runs_folder, std::vector<std::string>& skipped,
                                       std::vector<std::string>& damaged) {
  std::error_code error;
  fs::directory_iterator entries(runs_folder, error);
  require<UsageError>(!error, "cannot read the folder of runs ", runs_folder.string(), ": ", error.message(),
                      "; train a run first (`witan train`), or give the folder with --runs-folder");
  std::vector<RunSummary> runs;
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.')) continue;
    if (const std::string why = why_no_run(entry); !why.empty())
      skipped.push_back(cat(clipped(name), ": ", why));
    else
      runs.push_back(summary_of(entry.path(), damaged));
  }
  std::ranges::sort(
      runs, [](const RunSummary& a, const RunSummary& b) { return a.age != b.age ? a.age < b.age : a.name < b.name; });
  for (auto* lines : {&skipped, &damaged}) std::ranges::sort(*lines);
  return runs;
}

RunSummary summarise_run(const fs::path& runs_folder, const std::string& name, std::vector<std::string>& damaged) {
  require<UsageError>(!name.empty(), "a run's name is empty");
  return summary_of(find_run(runs_folder, name), damaged);
}

int64_t newest_checkpoint_step(const fs::path& run_folder) {
  const auto saved = step_folders(run_folder / "checkpoints");
  return saved.empty() ? 0 : saved.front().first;
}

std::string lost_metrics(const fs::path& run_folder) {
  std::error_code error;
  if (newest_checkpoint_step(run_folder) == 0 && !fs::exists(run_folder / "report.html", error)) return "";
  const fs::path metrics = run_folder / "metrics.jsonl";
  if (!fs::exists(metrics, error)) return "is missing";
  return fs::file_size(metrics, error) == 0 ? "is empty" : "has no step";
}

uint64_t disk_usage(const fs::path& path) {
  constexpr uint64_t kBlock = 512;  // bytes in the unit of st_blocks, on every file system
  uint64_t bytes = 0;
  std::set<std::pair<dev_t, ino_t>> seen;
  const auto add = [&](const fs::path& one) {
    struct stat status {};
    if (::lstat(one.c_str(), &status) != 0) return;
    if (status.st_nlink > 1 && !S_ISDIR(status.st_mode) && !seen.emplace(status.st_dev, status.st_ino).second) return;
    bytes += kBlock * static_cast<uint64_t>(status.st_blocks);
  };
  add(path);
  std::error_code error;
  const auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator at(path, options, error), end; !error && at != end; at.increment(error))
    add(at->path());
  return bytes;
}

bool has_imported_weights(const fs::path& run) {
  std::error_code error;
  return fs::is_regular_file(run / kLedgerName, error) && fs::exists(run / "checkpoints", error);
}

bool is_imported_only(const fs::path& run) {
  std::error_code error;
  return has_imported_weights(run) && !fs::exists(run / "metrics.jsonl", error);
}

std::string left_over_of_start(const fs::path& folder) try {
  if (fs::is_symlink(folder)) return "";
  LeftOver found;
  for (const auto& entry : fs::directory_iterator(folder)) look_at(entry, found);
  if (found.other || !found.lock) return "";
  std::vector<std::string> parts;
  if (found.tokenizer) parts.emplace_back("a tokenizer");
  if (found.tokens) parts.emplace_back("tokens");
  if (found.record) parts.emplace_back("records without a step");
  if (parts.empty()) return "a lock";
  const std::string last = parts.back();
  parts.pop_back();
  return parts.empty() ? last : fmt::format("{} and {}", fmt::join(parts, ", "), last);
} catch (const fs::filesystem_error&) {
  return "";
}

}  // namespace witan::cli
