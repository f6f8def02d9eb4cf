// Runs a pipeline stage: its forward and backward passes, and the tensors that it sends to and receives from its
// neighbours in between, in the order of pipeline_steps.h. The same on every back end: threads and processes exchange
// inline; on GPUs the transfers are on the stream, between the kernels of the work, and may be captured into a graph.
//
// Nothing is copied to be sent. With one chunk to a stage no output waits for its peer, and two inputs at most for
// their work; with several chunks two outputs and four inputs, and about as many as there are stages where those do not
// divide the micro-batches. All come from the stream's arena, so that a run on the meta device plans them.
#pragma once

#include <vector>

#include "witan/comm/group.h"
#include "witan/parallel/pipeline_walk.h"

namespace witan {

// What a stage computes. Tensors have the shape and dtype of the channel; x and dy are the stage's to keep or to drop.
class StageModel {
 public:
  virtual ~StageModel() = default;
  // x: the output of the chunk before, undefined for the model's first. Returns the chunk's output; of the model's last
  // one, whose loss stays here, an undefined tensor.
  virtual Tensor forward(int64_t micro_batch, int chunk, Tensor x) = 0;
  // dy: the gradient of the chunk's output, undefined where forward() returned none. Returns that of x; undefined where
  // there was none.
  virtual Tensor backward(int64_t micro_batch, int chunk, Tensor dy) = 0;
};

class PipelineChannel {
 public:
  // `group`: the stages in their order; it must outlive the channel. Every tensor that goes from stage to stage is
  // `shape` of `dtype`, contiguous. Throws ConfigError for a pipeline that is none, or not of the group's size.
  // `repetition`, of a run on the meta device, leaves some micro-batches out; it must outlive the channel.
  PipelineChannel(Group& group, const Pipeline& pipeline, const Shape& shape, DType dtype,
                  Repetition* repetition = nullptr);

  const std::vector<PipelineStep>& steps() const { return steps_; }  // of this stage

  // All micro-batches. All stages together. Throws ShapeError for an output of another shape or dtype, CommError as the
  // group does, and whatever the stage throws: then the others' waits end as those of any call do.
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
