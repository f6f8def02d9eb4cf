// The frozen model that an objective compares the trained one with, and the log probabilities of targets under it: the
// divergence of policy gradients, and preferences, are relative to them.
//
// A reference of the starting weights, or of another model, has weights of its own on every rank, laid out and sharded
// like the trained ones, without gradients and optimizer state. If adapters are trained, the base model is a reference
// that takes no memory: its forward runs on the trained weights while adapters add nothing.
//
// Its forwards come before a step's first pass, are part of a recorded step, and wait for nothing. They are those of
// the trained model apart from dropout: the same kernels, layouts, capacities and receive buffers, so that both give
// the same bits as long as the weights are equal.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "witan/parallel/pipeline_channel.h"
#include "witan/train/step/rank_model.h"
#include "witan/train/step/step_inputs.h"

namespace witan {

class Reference {
 public:
  // The reference that the configuration asks for (RunConfig::reference()); null: none that computes. The rank's model
  // must outlive it.
  static std::unique_ptr<Reference> make(RankModel& rank);

  // The configuration of the model whose weights it is: the run's, without adapters if it is another model.
  static RunConfig config_of(const RunConfig& run);

  // Adds what this reference lends the trained model, and lends its own model the services of steps.
  void attach(ModelServices& services);

  // Whether it has weights of its own, rather than those below adapters.
  bool has_weights() const { return own_.has_value(); }
  int64_t bytes() const;             // of this rank's weights
  std::vector<StateTensor> state();  // of them: values, then buffers
  // Collective: takes the present weights of the trained model.
  void copy_trained();

  const std::vector<Parameter*>& parameters() const { return own_ ? own_->parameters : rank_.parameters; }

 private:
  friend class ReferencePasses;
  struct Own {
    Own(RankModel& rank, const RunConfig& given);

    const RunConfig config;
    Transformer model;
    const std::vector<Parameter*> parameters;
    const std::vector<Buffer*> buffers;
    const ShardPlan shards;
    std::unique_ptr<UnitStore> units;
  };

  Reference(RankModel& rank, std::optional<RunConfig> own);
  Transformer& model() { return own_ ? own_->model : rank_.model; }
  UnitStore& units() { return own_ ? *own_->units : *rank_.units; }

  RankModel& rank_;
  std::optional<Own> own_;
  bool adapters_off_ = false;
};

// The reference's forwards of a number of micro-batches, and their results at fixed addresses.
class ReferencePasses : private StageModel {
 public:
  // All must outlive it. `repetition` leaves micro-batches out on the meta device; may be null.
  ReferencePasses(Reference& reference, const std::vector<Batch>& batches, Dropping dropping, Repetition* repetition);

  // Collective: queues the forwards of these inputs.
  void run(const StepInputs& inputs);
  // [T] in the accumulator dtype: the log probabilities of a micro-batch's targets that count; undefined on all but the
  // pipeline's last stage.
  const Tensor& logprobs(int64_t micro_batch) const { return logprobs_[static_cast<size_t>(micro_batch)]; }

 private:
  Tensor forward(int64_t micro_batch, int chunk, Tensor x) override;
  Tensor backward(int64_t micro_batch, int chunk, Tensor dy) override;

  Reference& reference_;
  const Dropping dropping_;
  std::vector<Tensor> logprobs_;
  PipelineChannel channel_;
  const StepInputs* inputs_ = nullptr;
};

}  // namespace witan
