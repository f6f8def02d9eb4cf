// A part of a training step that a run may have or lack: a loss scale, QK-clip, receive buffers of a bounded size.
//
// The engine calls each of its features at the points of a step, in the order of its list (step_features.cpp), and
// knows none by name. A point is either on the stream or on the host:
//
//   host    before_step    outside of the recorded graph, in every step: decides what this step does, uploads for it
//   stream  begin_step     before the first forward
//   stream  begin_pass     before each forward and backward of a micro-batch; end_pass after it
//   stream  after_passes   after the last backward, once the gradients are reduced
//   stream  before_update  the gradients' norm is computed: scales or skips the update
//   stream  after_update   before the updated values are published to other ranks
//   host    report         the step is over, and its report was read: fills in the result
//
// On a GPU the points on the stream are recorded with the step as one CUDA graph, which later steps replay without
// calling them. They queue work and nothing else: no wait for the stream, no value read, no decision that differs from
// step to step. The meta device calls all points, so that plans count the memory, kernels and messages of features.
#pragma once

#include <cstdint>
#include <vector>

#include "witan/nn/model_services.h"
#include "witan/train/step/step_report.h"
#include "witan/train/step/step_result.h"

namespace witan {

class LossScaler;   // optim/loss_scaler.h
struct TrainState;  // train/state/train_state.h

// The shape of steps, the same until the global batch grows (rampup_batch_size).
struct StepShape {
  int64_t micro_batches;     // of this rank
  int64_t tokens;            // [T], of a micro-batch on this rank
  const StepReport& report;  // lives until release()
};

class StepFeature {
 public:
  StepFeature() = default;
  virtual ~StepFeature() = default;
  StepFeature(const StepFeature&) = delete;
  StepFeature& operator=(const StepFeature&) = delete;

  // Before the first step: adds the services that this feature lends to the model's modules.
  virtual void offer(ModelServices& /*services*/) {}
  // Allocates buffers before the first step, and again when the shape changes, which drops recorded graphs. All
  // features release their old buffers first, so that both never take memory together.
  virtual void allocate(const StepShape& /*shape*/) {}
  virtual void release() {}

  // Host.
  virtual void before_step(int64_t /*iteration*/) {}
  // After a computation of the step: true if its update was skipped to be made again in another way. before_step()
  // follows.
  virtual bool repeats(const StepReport::Result& /*read*/) { return false; }
  virtual void report(const StepReport::Result& /*read*/, StepResult& /*result*/) {}

  // Around a computation of the step that gave this result once more, in the way in which it was computed.
  virtual void begin_again(const StepResult& /*of*/) {}
  virtual void end_again() {}
  // The ways in which repeats() may have a step computed again, as results that begin_again() takes.
  virtual std::vector<StepResult> repetitions() const { return {}; }

  // Stream. `total` [2] float64: of the gradients (GlobalNorm::compute()).
  virtual void begin_step() {}
  enum class Pass : uint8_t { forward, backward };
  virtual void begin_pass(Pass /*pass*/, int64_t /*micro_batch*/) {}
  virtual void end_pass() {}
  virtual void after_passes() {}
  virtual void before_update(const Tensor& /*total*/) {}
  virtual void after_update() {}

  // Recording. A feature may keep a step from being a graph, and it may launch some kernels only in some steps: each
  // combination of those is a graph of its own.
  virtual bool recordable() const { return true; }
  virtual bool may_repeat() const { return false; }   // buffers then keep their values from before the step
  virtual bool launches_all() const { return true; }  // whether the next step has all kernels of this feature
  virtual void set_launches_all(bool /*all*/) {}      // overrides before_step(): a first step loads them all

  // The scaler of the step's losses, if this feature has it.
  virtual const LossScaler* loss_scaler() const { return nullptr; }

  // The feature's own state in a checkpoint. `anew`: the optimizer starts afresh.
  virtual void save(TrainState& /*state*/) const {}
  virtual void restore(const TrainState& /*state*/, bool /*anew*/) {}
};

}  // namespace witan
