// Runs a pipeline stage: its forward and backward passes, and in between its transfers to and from neighbours, in the
// order of pipeline_steps() (schedule.h). It is the same on every back end: threads and processes exchange inline; on
// GPUs the transfers are on the stream, between the kernels of the work, and can be captured into a graph.
//
// Nothing is copied in order to be sent. With one chunk per stage no output waits for its peer, and at most two inputs
// wait for their work; with several chunks two outputs and four inputs, and about as many as there are stages if these
// do not divide the micro-batches. All tensors come from the stream's arena, so that a run on the meta device plans
// them.
#pragma once

#include <vector>

#include "witan/comm/group.h"
#include "witan/parallel/pipeline_walk.h"

namespace witan {

// The computation of a stage. Tensors have the channel's shape and dtype; x and dy belong to the callee.
class StageModel {
 public:
  virtual ~StageModel() = default;
  // x: output of the previous chunk; undefined for the model's first one. Returns the chunk's output; undefined for the
  // model's last chunk, whose loss stays on the rank.
  virtual Tensor forward(int64_t micro_batch, int chunk, Tensor x) = 0;
  // dy: gradient of the chunk's output; undefined if forward() returned none. Returns the gradient of x; undefined if
  // there was no x.
  virtual Tensor backward(int64_t micro_batch, int chunk, Tensor dy) = 0;
};

class PipelineChannel {
 public:
  // `group`: the stages in order; it must outlive the channel. Tensors sent between stages have this shape and dtype
  // and are contiguous. Throws ConfigError for an invalid pipeline, or one that does not have the group's size.
  // `repetition` skips micro-batches of a run on the meta device; it must outlive the channel.
  PipelineChannel(Group& group, const Pipeline& pipeline, const Shape& shape, DType dtype,
                  Repetition* repetition = nullptr);

  const std::vector<PipelineStep>& steps() const { return steps_; }  // of this stage

  // Runs all micro-batches; called by all stages together. Throws ShapeError for an output of another shape or dtype,
  // CommError as the group does, and whatever the stage throws, which ends the other stages' waits as in any call.
  void run(Stream& stream, StageModel& model);

 private:
  Tensor compute(StageModel& model, const Work& work, Tensor input) const;
  void check_output(const Work& work, const Tensor& output) const;

  Group& group_;
  const Pipeline pipeline_;
  const Shape shape_;
  const DType dtype_;
  Repetition* repetition_;
  std::vector<PipelineStep> steps_;
};

}  // namespace witan
