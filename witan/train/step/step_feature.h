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
// step to step. The meta device calls all points: what those on the stream allocate, launch and send is in the plan.
#pragma once

#include <cstdint>

#include "witan/nn/model_services.h"
#include "witan/train/step/step_report.h"
#include "witan/train/step/step_result.h"

namespace witan {

class LossScaler;   // optim/loss_scaler.h
struct TrainState;  // train/run/train_state.h

// What steps have in common until the global batch grows (rampup_batch_size).
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

  // Before the first step: adds the services that the model's modules are to have of it.
  virtual void offer(ModelServices& /*services*/) {}
  // Before the first step, and when the shape changes, which drops recorded graphs: allocates buffers of that shape.
  // Those of the shape before are released first, by all features, so that both never take memory together.
  virtual void allocate(const StepShape& /*shape*/) {}
  virtual void release() {}

  // Host.
  virtual void before_step(int64_t /*iteration*/) {}
  // After a computation of the step: true if its update was skipped to be made again in another way. before_step()
  // follows.
  virtual bool repeats(const StepReport::Result& /*read*/) { return false; }
  virtual void report(const StepReport::Result& /*read*/, StepResult& /*result*/) {}

  // Around a computation of the step that gave this result once more, without an update: how it was computed is how it
  // is computed again.
  virtual void begin_again(const StepResult& /*of*/) {}
  virtual void end_again() {}

  // Stream. `total` [2] float64: of the gradients, as GlobalNorm::compute() gives it.
  virtual void begin_step() {}
  enum class Pass : uint8_t { forward, backward };
  virtual void begin_pass(Pass /*pass*/, int64_t /*micro_batch*/) {}
  virtual void end_pass() {}
  virtual void after_passes() {}
  virtual void before_update(const Tensor& /*total*/) {}
  virtual void after_update() {}

  // What is recorded. A feature may keep a step from being a graph, and it may launch some kernels in some steps only:
  // each combination of those is a graph of its own.
  virtual bool recordable() const { return true; }
  virtual bool may_repeat() const { return false; }   // buffers then keep their values from before the step
  virtual bool launches_all() const { return true; }  // whether the next step has all kernels of this feature
  virtual void set_launches_all(bool /*all*/) {}      // overrides before_step(): a first step loads them all

  // By whose scale the step's losses are multiplied; null: not by this feature's.
  virtual const LossScaler* loss_scaler() const { return nullptr; }

  // What a checkpoint holds of it, besides tensors. `anew`: the optimizer begins anew.
  virtual void save(TrainState& /*state*/) const {}
  virtual void restore(const TrainState& /*state*/, bool /*anew*/) {}
};

}  // namespace witan
