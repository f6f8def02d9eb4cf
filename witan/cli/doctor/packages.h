// Finds missing Debian packages by purpose: the sets of scripts/setup.sh beyond those that built this program.
#pragma once

#include <string>
#include <vector>

#include "witan/base/files/file.h"

namespace witan::cli {

struct PackageSet {
  std::string purpose;               // "make test"
  std::vector<std::string> missing;  // names
};

// Reads dpkg's records below `root`. Empty without dpkg.
std::vector<PackageSet> read_packages(const fs::path& root = "/");

}  // namespace witan::cli
