#include "witan/checkpoint/step_folders.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "witan/base/error.h"

namespace witan {
namespace {

constexpr std::string_view kPrefix = "step-";

// Parses N of "step-N" as step_folder_name() writes it: "step-007" is not such a name.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || step < 0 || step_folder_name(step) != name) return std::nullopt;
  return step;
}

// Calls nothing for a folder that does not exist.
template <class Action>
void for_names(const fs::path& folder, const Action& action) try {
  if (!fs::exists(folder)) return;
  for (const auto& item : fs::directory_iterator(folder)) action(item.path(), item.path().filename().string());
} catch (const fs::filesystem_error& e) {
  throw_failed(cat("cannot list ", folder.string()), e.code());
}

}  // namespace

std::string step_folder_name(int64_t step) {
  return cat(kPrefix, step);
}

std::vector<std::pair<int64_t, fs::path>> step_folders(const fs::path& folder) {
  std::vector<std::pair<int64_t, fs::path>> found;
  for_names(folder, [&](const fs::path& path, std::string_view name) {
    if (const auto step = step_of(name)) found.emplace_back(*step, path);
  });
  std::ranges::sort(found, std::greater{});
  return found;
}

void throw_failed(const std::string& what, std::error_code why) {
  const std::string message = cat(what, ": ", why.message());
  if (why == std::errc::no_space_on_device || why.value() == EDQUOT) throw DiskFullError(message);
  throw CheckpointError(message);
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) throw_failed(cat("cannot remove ", folder.string()), error);
}

void remove_left_overs(const fs::path& folder) {
  std::vector<fs::path> left;
  for_names(folder, [&](const fs::path& path, std::string_view name) {
    if (name.starts_with(kUnfinished) || name.starts_with(kRenamedAway)) left.push_back(path);
  });
  for (const fs::path& path : left) remove_folder(path);
}

fs::path rename_away(const fs::path& step_folder) {
  const auto step = step_of(step_folder.filename().string());
  require<CheckpointError>(step.has_value(), step_folder.string(), " is not a checkpoint folder");
  const fs::path hidden = step_folder.parent_path() / cat(kRenamedAway, *step, '.', ::getpid());
  std::error_code error;
  fs::rename(step_folder, hidden, error);
  if (error) throw_failed(cat("cannot rename ", step_folder.string(), " to ", hidden.string()), error);
  return hidden;
}

}  // namespace witan
