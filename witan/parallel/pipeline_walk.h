// The steps of a pipeline's stage, one after another. A run on the meta device need not take all of them: between the
// micro-batches that fill a pipeline and those that empty it, the steps of a stage repeat, and so does its memory after
// some more of them. What is left out there would take what the micro-batches before it took.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "witan/parallel/schedule.h"

namespace witan {

// Decides what a walk leaves out.
class Repetition {
 public:
  virtual ~Repetition() = default;
  virtual void begin() = 0;  // a walk
  // Called after the last pass of a micro-batch, as far as the steps that follow are those that followed before: the
  // number of micro-batches since everything was as it is now. 0: not known.
  virtual int64_t period(int64_t micro_batch) = 0;
  // Called where so many are left out: as many periods as fit, or, of period 0, where none was found in time, all that
  // the walk has no steps for. Then the walk says nothing about the pipeline, and all its micro-batches must be run.
  virtual void leave_out(int64_t micro_batches, int64_t period) = 0;
};

// The pipeline, with no more micro-batches than show how it repeats.
Pipeline shortened(const Pipeline& pipeline);

class PipelineWalk {
 public:
  // `steps`: of the stage, in the shortened pipeline, or, where `repetition` is null, in the pipeline.
  PipelineWalk(const Pipeline& pipeline, const std::vector<PipelineStep>& steps, Repetition* repetition);

  // Null after the last. Micro-batches that are not left out have numbers of their own, from 0 to the pipeline's last.
  const PipelineStep* next();

 private:
  void look_back();
  void leave_out(int64_t micro_batch, int64_t period);
  size_t place_after(int64_t micro_batch) const;
  bool ends(const PipelineStep& step, int64_t micro_batch) const;

  const Pipeline pipeline_;
  const std::vector<PipelineStep>& steps_;
  Repetition* repetition_;  // null: nothing is left out, or it was
  bool numbers_differ_ = false;
  int64_t kept_;
  size_t at_ = 0;
  PipelineStep step_{};
  int64_t added_ = 0;                                        // to the numbers of micro-batches that begin from now on
  std::map<std::pair<int64_t, int>, int64_t> numbers_ = {};  // by micro-batch of the steps, and chunk
};

}  // namespace witan
