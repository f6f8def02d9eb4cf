// Which Debian packages are there, by what they are for: the sets of scripts/setup.sh beyond what built this program.
#pragma once

#include <string>
#include <vector>

#include "witan/base/file.h"

namespace witan::cli {

struct PackageSet {
  std::string purpose;               // "make test"
  std::vector<std::string> missing;  // names
};

// Reads dpkg's own records below `root`. Empty where there is no dpkg.
std::vector<PackageSet> read_packages(const fs::path& root = "/");

}  // namespace witan::cli
