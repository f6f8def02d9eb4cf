// How long the stages of a pipeline take together: the schedule that a run follows (parallel/pipeline_steps.h), played
// with the times of each stage's passes. Stages need not take equally long: the one with the head holds up the others.
#pragma once

#include <vector>

#include "witan/parallel/schedule.h"

namespace witan {

// Seconds of a stage's passes of one micro-batch, by chunk of its layers.
struct StagePassTimes {
  std::vector<double> forward, backward;
  double of_all_chunks() const;  // forward and backward
};

struct PipelineTime {
  double seconds = 0;         // from the first forward to the end of the last backward, of any stage
  std::vector<double> waits;  // of it, for which each stage neither computes nor has finished; with its transfers
};

// `stages`: as many as the pipeline has, each with times for every chunk. A transfer takes `send_seconds` from the
// moment at which both ends have come to it, and holds up both. Of very many micro-batches those in the middle are
// taken to last as long as each other, as they do.
PipelineTime play_pipeline(const Pipeline& pipeline, const std::vector<StagePassTimes>& stages, double send_seconds);

}  // namespace witan
