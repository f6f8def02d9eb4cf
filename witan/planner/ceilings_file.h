// Measured ceilings that are kept: measuring takes a second, and a machine seldom changes.
#pragma once

#include <optional>
#include <string>

#include "witan/base/file.h"
#include "witan/planner/ceilings.h"

namespace witan {

// $XDG_CACHE_HOME/witan/ceilings.json, or the same below ~/.cache (the XDG base directory specification); empty where
// neither variable says a folder.
fs::path ceilings_path();

// JSON: {"machine": …, "ceilings": [one object for each load]}. What was measured on another machine, or by another
// program, counts for nothing: `machine` names both.
class CeilingsFile {
 public:
  CeilingsFile(fs::path path, std::string machine) : path_(std::move(path)), machine_(std::move(machine)) {}

  // Nothing where the file is absent, damaged, another machine's, or has none for this load.
  std::optional<Ceilings> find(const Load& load) const;
  // Keeps them beside those of other loads. A folder that cannot be written to keeps nothing.
  void keep(const Ceilings& ceilings) const;
  // find(), or else measure and keep.
  Ceilings get(const Load& load) const;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  std::string machine_;
};

}  // namespace witan
