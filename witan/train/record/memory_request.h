// Snapshots of the memory of a run that is training, asked for by another process (`witan runs snapshot`): it writes
// RUN/memory/request, and each rank that finds it there writes RUN/memory/step-S-rank-N.json in its next step.
#pragma once

#include <optional>
#include <string>

#include "witan/tensor/arena.h"
#include "witan/train/state/run_folder.h"

namespace witan {

// Asks the run of this folder. Throws IoError, DiskFullError.
void request_snapshot(const fs::path& run);

// One rank's answers. The folder and the arena must outlive it.
class MemoryRequest {
 public:
  // A request that is there already is an earlier start's, and not answered.
  MemoryRequest(const RunFolder& folder, const Arena& arena, int rank);

  // Before a step: looks for a request.
  void before_step(int64_t step);
  // Within it, where memory is as it should be shown: writes what was asked for, once. Returns the file; nothing where
  // nothing was asked for. What cannot be written is left: a run does not end because of it.
  std::optional<fs::path> answer();

 private:
  std::string found() const;

  const RunFolder& folder_;
  const Arena& arena_;
  int rank_;
  std::string known_;             // the last request's text
  std::optional<int64_t> asked_;  // the step that shows its memory
};

}  // namespace witan
