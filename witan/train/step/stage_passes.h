// The passes of a step's micro-batches through this rank's layers. A forward's tape is kept here until its backward,
// which comes next with one stage; in a pipeline other passes come in between.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "witan/optim/loss_scaler.h"
#include "witan/optim/step_state.h"
#include "witan/parallel/pipeline_channel.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/train/config/config.h"
#include "witan/train/step/loss_gradients.h"
#include "witan/train/step/objective.h"
#include "witan/train/step/step_features.h"
#include "witan/train/step/step_inputs.h"
#include "witan/train/step/step_report.h"

namespace witan {

class ReferencePasses;  // step/reference.h

// How attention of a run's passes may compute.
kernels::AttentionHints position_hints(const RunConfig& config);

class StagePasses : public StageModel {
 public:
  // All arguments must outlive it. The losses of a pass are those that its modules record on the tape, and on the last
  // stage those of the configuration's objective.
  StagePasses(const StepParts& parts, const StepFeatures& features);

  // Another objective than the configuration's, from the next step on.
  void use_objective(std::unique_ptr<Objective> objective) { objective_ = std::move(objective); }
  const Objective& objective() const { return *objective_; }

  // Draws random numbers as this data-parallel rank does, for passes of another rank's micro-batches.
  void compute_as(int data_rank) { data_rank_ = data_rank; }

  // Sets the number of micro-batches of each data-parallel rank, from the next step on.
  void expect(int64_t micro_batches);

  // Called before the first pass of a step with its micro-batches, the report that passes add to, and the passes of the
  // reference that have run; null: there is none.
  void begin_step(const StepInputs& inputs, const StepReport& report, const ReferencePasses* reference = nullptr);

  // x, dy and the results are [B, S, D] in the compute dtype.
  Tensor forward(int64_t micro_batch, int chunk, Tensor x) override;
  Tensor backward(int64_t micro_batch, int chunk, Tensor dy) override;

  // Called after each pass with the share of the step's passes that are done; a backward counts as two forwards.
  void after_pass(std::function<void(double share)> hook) { after_pass_ = std::move(hook); }

  double forward_seconds() const { return forward_s_; }
  double backward_seconds() const { return backward_s_; }

 private:
  // A micro-batch between its forward and its backward through a chunk.
  struct InFlight {
    explicit InFlight(Stream& stream) : tape(stream) {}
    Tape tape;
    Slot x, y;  // the input from the chunk before, and the output to the next, whose value is not kept
    bool has_x = false;
  };

  void count(int forwards);
  ModelInput input_of(int64_t micro_batch) const;

  Stream& stream_;
  const RunConfig& config_;
  Transformer& model_;
  GradientBuckets& gradients_;
  const StepState& step_;
  const StepFeatures& features_;
  std::unique_ptr<Objective> objective_;
  Group& context_;
  LossGradients root_gradients_;
  int data_ranks_, data_rank_;       // a rank's micro-batches are consecutive in the global batch
  int64_t count_ = 0;                // micro-batches of each
  kernels::PositionRuns positions_;  // of this rank's tokens in their sequences
  const StepInputs* inputs_ = nullptr;
  const StepReport* report_ = nullptr;
  const ReferencePasses* reference_ = nullptr;
  std::map<std::pair<int64_t, int>, InFlight> in_flight_;  // by micro-batch and chunk
  double forward_s_ = 0, backward_s_ = 0;
  std::function<void(double share)> after_pass_;
  int64_t forwards_done_ = 0;  // work of the step so far: a backward counts as two forwards
};

}  // namespace witan
