#include "witan/cli/args/recipes.h"

#include <algorithm>
#include <string_view>

#include "witan/base/error.h"
#include "witan/base/text.h"

namespace witan::cli {
namespace {

constexpr std::string_view kRecipes = "recipes/";

bool is_recipes_folder(const fs::path& folder) {
  std::error_code none;
  return fs::is_regular_file(folder / "default.toml", none);
}

}  // namespace

fs::path recipes_folder() {
  constexpr int kDeepest = 4;  // TREE/build/PRESET/tests/test_cli
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  fs::path above = program.parent_path();
  const fs::path installed = above.parent_path() / "share/witan/recipes";
  if (is_recipes_folder(installed)) return installed;
  for (int i = 0; i < kDeepest && above.has_relative_path(); ++i, above = above.parent_path())
    if (is_recipes_folder(above / "recipes")) return above / "recipes";
  return {};
}

std::string find_recipe(const std::string& path, const std::string& flag) {
  std::error_code none;
  if (!path.starts_with(kRecipes) || fs::exists(path, none)) return path;
  const fs::path own = recipes_folder();
  if (own.empty()) return path;
  const fs::path found = own / path.substr(kRecipes.size());
  if (fs::is_regular_file(found, none)) return found.string();
  const fs::path extension = fs::path(path).extension();
  throw ConfigError(cat(flag, clipped(path), ": there is no such file, neither below this folder nor among the ",
                        "recipes of this program, in ", own.string(),
                        suggestion(path, recipe_names(extension.empty() ? ".toml" : extension.string()))));
}

std::vector<std::string> recipe_names(const std::string& ending) {
  std::vector<std::string> names;
  const fs::path folder = recipes_folder();
  std::error_code none;
  for (fs::recursive_directory_iterator at(folder, none), end; !none && at != end; at.increment(none))
    if (at->is_regular_file(none) && at->path().extension() == ending)
      names.push_back(std::string(kRecipes) + at->path().lexically_relative(folder).string());
  std::ranges::sort(names);
  return names;
}

}  // namespace witan::cli
