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

// A snapshot as one JSON object, with a line for each block of memory (docs/cli.md).
std::string memory_json(int rank, const MemorySnapshot& snapshot);

// Makes the arena write its snapshots to the run's folder; that of a refused allocation replaces that of an unplanned
// one. A failure to write is ignored, since a more important error follows. The folder must outlive the arena.
void write_snapshots(Arena& arena, const RunFolder& folder, const RunPlan& plan, int rank);

// Removes the snapshots of an earlier start.
void remove_snapshots(const RunFolder& folder);

// Asks the run in this folder for snapshots of its memory. Throws IoError, DiskFullError.
void request_snapshot(const fs::path& run);

// One rank's answers to such requests. The folder and the arena must outlive it.
class MemoryRequest {
 public:
  // A request that exists already was made to an earlier start, and is not answered.
  MemoryRequest(const RunFolder& folder, const Arena& arena, int rank);

  // Looks for a request before a step.
  void before_step(int64_t step);
  // Called within the step, while its memory is of interest: writes the snapshot if one was asked for. Returns its
  // path, or nothing if there was no request or writing failed, which does not end the run.
  std::optional<fs::path> answer();

 private:
  std::string found() const;

  const RunFolder& folder_;
  const Arena& arena_;
  int rank_;
  std::string known_;             // text of the last request
  std::optional<int64_t> asked_;  // the step whose memory is shown
};

// The peaks in bytes of every rank's arena `own`, in total and by memory tag, in the order of ranks. Collective over
// the group, on a stream of the host.
std::vector<MemoryEvent> gather_memory(Stream& stream, Group& group, const Arena& own);

}  // namespace witan
