// The memory of a run's ranks: their peaks for the report, and files of what is live in it. RUN/memory/rank-N.json is
// written when an arena runs out or exceeds the plan. RUN/memory/step-S-rank-N.json is written in the next step after
// another process asked for it (`witan runs snapshot`) by writing RUN/memory/request.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "witan/comm/group.h"
#include "witan/report/events/events.h"
#include "witan/tensor/arena.h"
#include "witan/tensor/tensor.h"
#include "witan/train/config/run_plan.h"
#include "witan/train/state/run_folder.h"

namespace witan {

// One JSON object, a block of memory a line (docs/cli.md).
std::string memory_json(int rank, const MemorySnapshot& snapshot);

// From now on the arena's snapshots are written there; one that memory was refused for replaces one that was not
// planned. What cannot be written is left: the error that follows is the one to tell. The folder must outlive its use.
void write_snapshots(Arena& arena, const RunFolder& folder, const RunPlan& plan, int rank);

// Of the run that begins: what an earlier one has left.
void remove_snapshots(const RunFolder& folder);

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

// Collective over the group, on a stream of the host: the peak of every rank's arena `own`, and that of each memory
// tag, in bytes, in the order of ranks.
std::vector<MemoryEvent> gather_memory(Stream& stream, Group& group, const Arena& own);

}  // namespace witan
