// Walks through the steps of a pipeline stage. A run on the meta device need not take all of them: between the
// micro-batches that fill a pipeline and those that drain it, a stage's steps repeat, and soon so does its memory.
// Micro-batches that are skipped there would need what the ones before them needed.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "witan/parallel/schedule.h"

namespace witan {

// Decides which micro-batches a walk skips.
class Repetition {
 public:
  virtual ~Repetition() = default;
  virtual void begin() = 0;  // called when a walk begins
  // Called after the last pass of a micro-batch while the following steps repeat the preceding ones. Returns the number
  // of micro-batches after which everything is as it was; 0: unknown.
  virtual int64_t period(int64_t micro_batch) = 0;
  // Called when micro-batches are skipped: as many periods as fit or, with period 0 if none was found in time, all for
  // which the walk has no steps. In that case the walk says nothing about the pipeline, and all micro-batches must be
  // run.
  virtual void leave_out(int64_t micro_batches, int64_t period) = 0;
};

// The pipeline with only as many micro-batches as show how it repeats.
Pipeline shortened(const Pipeline& pipeline);

class PipelineWalk {
 public:
  // `steps`: the stage's steps in the shortened pipeline or, if `repetition` is nullptr, in the whole pipeline.
  PipelineWalk(const Pipeline& pipeline, const std::vector<PipelineStep>& steps, Repetition* repetition);

  // The next step; nullptr after the last. The micro-batches that are run are numbered so that they begin with 0 and
  // end with the pipeline's last.
  const PipelineStep* next();

 private:
  void look_back();
  void leave_out(int64_t micro_batch, int64_t period);
  size_t place_after(int64_t micro_batch) const;
  bool ends(const PipelineStep& step, int64_t micro_batch) const;

  const Pipeline pipeline_;
  const std::vector<PipelineStep>& steps_;
  Repetition* repetition_;  // nullptr: nothing is skipped, or it already was
  bool numbers_differ_ = false;
  int64_t kept_;
  size_t at_ = 0;
  PipelineStep step_{};
  int64_t added_ = 0;                                        // added to the numbers of micro-batches that begin later
  std::map<std::pair<int64_t, int>, int64_t> numbers_ = {};  // numbers by micro-batch of the steps, and chunk
};

}  // namespace witan
