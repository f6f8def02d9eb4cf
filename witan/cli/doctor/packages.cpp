#include "witan/cli/doctor/packages.h"

#include <algorithm>
#include <utility>

namespace witan::cli {
namespace {

const std::vector<std::pair<std::string, std::vector<std::string>>> kSets = {
    {"the default text", {"perl-doc"}},
    {"make test", {"libgtest-dev", "libgmock-dev"}},
    {"make bench", {"libbenchmark-dev"}},
    {"make lint", {"clang-format", "clang-tidy", "shellcheck"}},
};

}  // namespace

std::vector<PackageSet> read_packages(const fs::path& root) {
  const fs::path records = root / "var/lib/dpkg/info";
  if (!fs::is_directory(records)) return {};
  std::vector<std::string> installed;  // NAME.list, or NAME:ARCHITECTURE.list
  for (const auto& entry : fs::directory_iterator(records))
    if (entry.path().extension() == ".list") {
      const std::string name = entry.path().stem();
      installed.push_back(name.substr(0, name.find(':')));
    }
  std::vector<PackageSet> sets;
  for (const auto& [purpose, names] : kSets) {
    PackageSet& set = sets.emplace_back(PackageSet{purpose, {}});
    for (const std::string& name : names)
      if (std::find(installed.begin(), installed.end(), name) == installed.end()) set.missing.push_back(name);
  }
  return sets;
}

}  // namespace witan::cli
