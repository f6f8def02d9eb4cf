// Caches measured ceilings in a file, since measuring takes a second and machines seldom change.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "witan/base/files/file.h"
#include "witan/planner/speeds/ceilings.h"

namespace witan {

// $XDG_CACHE_HOME/witan/ceilings.json, or below ~/.cache by default (XDG base directory specification); empty if
// neither variable names a folder.
fs::path ceilings_path();

// JSON: {"machine": …, "ceilings": [one object per load]}. Measurements by another machine or another build are
// ignored: `machine` names both.
class CeilingsFile {
 public:
  struct Probe {
    std::function<Ceilings(const Load&)> measure = measure_ceilings;
    std::function<bool(const Load&)> busy = machine_is_busy;
  };
  CeilingsFile(fs::path path, std::string machine) : CeilingsFile(std::move(path), std::move(machine), Probe{}) {}
  CeilingsFile(fs::path path, std::string machine, Probe probe)
      : path_(std::move(path)), machine_(std::move(machine)), probe_(std::move(probe)) {}

  // nullopt if the file is absent, damaged or another machine's, or has no entry for this load.
  std::optional<Ceilings> find(const Load& load) const;
  // Stores them beside those of other loads; does nothing if the folder is not writable.
  void keep(const Ceilings& ceilings) const;
  // find(), or else renew(). A measurement of a busy machine is repeated once it is idle.
  Ceilings get(const Load& load) const;
  // Measures and stores. If the machine was busy now or at the earlier measurement, keeps the faster values of both.
  Ceilings renew(const Load& load) const;
  // Raises the ceiling to the FLOP/s of a run that exceeds it: the ceiling was then measured on a busy machine.
  void raise(const Load& load, double flops) const;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  std::string machine_;
  Probe probe_;
};

}  // namespace witan
