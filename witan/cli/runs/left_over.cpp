#include "witan/cli/runs/left_over.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace witan::cli {
namespace {

struct LeftOver {
  bool lock = false, tokenizer = false, tokens = false, other = false;
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

void look_at(const fs::directory_entry& entry, LeftOver& found) {
  const std::string name = entry.path().filename().string();
  if (name == "data" && entry.is_directory() && !entry.is_symlink()) return look_at_tokens(entry.path(), found);
  if (!is_plain(entry))
    found.other = true;
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
  return parts.empty() ? "a lock" : fmt::format("{}", fmt::join(parts, " and "));
} catch (const fs::filesystem_error&) {
  return "";
}

}  // namespace witan::cli
