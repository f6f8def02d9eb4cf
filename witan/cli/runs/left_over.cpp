#include "witan/cli/runs/left_over.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "witan/base/error.h"
#include "witan/report/events/metrics.h"

namespace witan::cli {
namespace {

struct LeftOver {
  bool lock = false, tokenizer = false, tokens = false, record = false, other = false;
};

bool is_plain(const fs::directory_entry& entry) {
  return !entry.is_symlink() && entry.is_regular_file();
}

// Of text, and of text that is cut short while it is tokenized.
void look_at_tokens(const fs::path& data, LeftOver& found) {
  for (const auto& entry : fs::directory_iterator(data)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.starts_with("tokens.") || name.starts_with("tokens-") || name.starts_with(".tmp-tokens");
    (ours && is_plain(entry) ? found.tokens : found.other) = true;
  }
}

// Of a start that failed after it had opened the run's records: files whose names begin so, alone.
void look_at_records(const fs::path& folder, std::string_view prefix, LeftOver& found) {
  found.record = true;
  for (const auto& entry : fs::directory_iterator(folder))
    if (!is_plain(entry) || !entry.path().filename().string().starts_with(prefix)) found.other = true;
}

// Steps, and what follows them, are a run's that has lost its configuration: no start fails so late.
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
  if (name == "memory" && is_folder) return look_at_records(entry.path(), "rank-", found);  // it ran out
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
