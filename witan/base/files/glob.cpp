#include "witan/base/files/glob.h"

#include <fnmatch.h>

#include <algorithm>

namespace witan {
namespace {

bool matches_text(const std::string& pattern, const std::string& text) {
  return ::fnmatch(pattern.c_str(), text.c_str(), FNM_NOESCAPE) == 0;
}

std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    parts.emplace_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

bool matches_any(const std::vector<std::string>& patterns, const std::string& path) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return matches_text(pattern.ends_with('/') ? pattern + "*" : pattern, path);
  });
}

bool matches_data_files(std::string_view pattern, std::string_view path) {
  if (pattern.starts_with("./")) pattern.remove_prefix(2);
  const std::vector<std::string> names = parts_of(path);
  // reached[n]: whether the parts of the pattern so far match the first n names.
  std::vector<char> reached(names.size() + 1, 0);
  reached[0] = 1;
  for (const std::string& part : parts_of(pattern)) {
    std::vector<char> next(reached.size(), 0);
    for (size_t n = 0; n < reached.size(); ++n)
      next[n] = part == "**" ? reached[n] || (n > 0 && next[n - 1])
                             : n > 0 && reached[n - 1] && matches_text(part, names[n - 1]);
    reached = next;
  }
  return reached.back() != 0;
}

std::string common_folder(const std::vector<std::string>& patterns) {
  std::string common;
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::string& pattern = patterns[i];
    const size_t slash = pattern.substr(0, pattern.find_first_of("*?[")).rfind('/');
    const std::string folder = slash == std::string::npos ? "" : pattern.substr(0, slash);
    if (i == 0) common = folder;
    while (!common.empty() && folder != common && !folder.starts_with(common + "/"))
      common.resize(common.rfind('/') == std::string::npos ? 0 : common.rfind('/'));
  }
  return common.starts_with(".") ? "" : common;
}

}  // namespace witan
