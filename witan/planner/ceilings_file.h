// Measured ceilings that are kept: measuring takes a second, and a machine seldom changes.
#pragma once

#include <functional>
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
  struct Probe {
    std::function<Ceilings(const Load&)> measure = measure_ceilings;
    std::function<bool(const Load&)> busy = machine_is_busy;
  };
  CeilingsFile(fs::path path, std::string machine) : CeilingsFile(std::move(path), std::move(machine), Probe{}) {}
  CeilingsFile(fs::path path, std::string machine, Probe probe)
      : path_(std::move(path)), machine_(std::move(machine)), probe_(std::move(probe)) {}

  // Nothing where the file is absent, damaged, another machine's, or has none for this load.
  std::optional<Ceilings> find(const Load& load) const;
  // Keeps them beside those of other loads. A folder that cannot be written to keeps nothing.
  void keep(const Ceilings& ceilings) const;
  // find(), or else renew(). What a busy machine was measured to do is measured again once it is so no longer.
  Ceilings get(const Load& load) const;
  // Measures and keeps. Where the machine was busy, now or when it was measured before, the faster figures of both.
  Ceilings renew(const Load& load) const;
  // A run did so many FLOP/s: where that is more than the ceiling, the ceiling was measured on a busy machine.
  void raise(const Load& load, double flops) const;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  std::string machine_;
  Probe probe_;
};

}  // namespace witan
