// One rank's model, gradients and optimizer, and the step that trains them. The planner runs the very same code on the
// meta device.
//
// On a GPU a step does not involve the host: its inputs are uploaded before it, its results are read after it, and in
// between it is one captured CUDA graph unless a part of it needs the host (why_eager() in recorded_step.h). What a run
// may do in its steps besides (loss scale, QK-clip, bounded experts ...) are features (step_feature.h), which the
// engine calls in order.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/checkpoint/state.h"
#include "witan/data/batches/batch.h"
#include "witan/model/transformer.h"
#include "witan/optim/optimizer.h"
#include "witan/parallel/buffer_sums.h"
#include "witan/parallel/global_norm.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/parallel/sharding/unit_store.h"
#include "witan/parallel/stages.h"
#include "witan/train/run/resolve.h"
#include "witan/train/step/engine_parts.h"
#include "witan/train/step/evaluate.h"
#include "witan/train/step/non_finite.h"
#include "witan/train/step/recorded_step.h"
#include "witan/train/step/stage_passes.h"
#include "witan/train/step/step_features.h"
#include "witan/train/step/step_inputs.h"
#include "witan/train/step/step_report.h"
#include "witan/train/step/step_result.h"

namespace witan {

class Engine {
 public:
  // Stream and groups must outlive the engine.
  Engine(Stream& stream, const Groups& groups, const ResolvedConfig& config);
  ~Engine();

  // Before the first step: another objective than the configuration's.
  void use_objective(std::unique_ptr<Objective> objective) { passes_.use_objective(std::move(objective)); }

  // Of schedules that count samples (OptimizerConfig::counts_samples()): those of the updates made before the next
  // step.
  void schedule_from(int64_t samples) { scheduled_samples_ = samples; }

  // Collective over all ranks. `micro_batches` are this rank's: consecutive ones of the global batch, in the order of
  // ranks that have samples of their own, as many as of each of them, and no more than of a whole global_batch_size.
  // Ranks that divide sequences are all given the whole ones. `iteration` counts from 1; `updates` are the updates made
  // before (skipped steps make none). On the meta device batches need only their sizes. Ids must be the model's: a GPU
  // is not waited for to say so.
  StepResult step(const std::vector<Batch>& micro_batches, int64_t iteration, int64_t updates,
                  const std::function<RunEnd()>& asks_to_end = {});
  // Collective. Computes the last step again, as a feature may ask for (StepFeature::repeats): for plans, which
  // otherwise do not come to it.
  void step_again(const std::vector<Batch>& micro_batches, int64_t iteration, int64_t updates);

  // The features of its steps. One that is added must be added before the first step, on all ranks.
  StepFeatures& features() { return features_; }
  // The feature of this type; null: the run has none.
  template <class F>
  F* feature() const {
    return features_.find<F>();
  }

  // Called in every step just before what state() lists changes: whoever still reads it there makes the step wait. What
  // it throws ends the step with everything as it was.
  void before_update(std::function<void()> hook) { before_update_ = std::move(hook); }

  // Called within a step with the share of its passes that are done, where the host runs them one after another: not on
  // a GPU, which is told of a whole step long before it has computed it.
  void after_pass(std::function<void(double share)> hook) {
    if (!stream_.is_cuda()) passes_.after_pass(std::move(hook));
  }

  // Collective: the loss over all ranks' batches, summed in the order of ranks; every rank brings equally many, whole
  // ones as to a step and of a step's shape. What it takes of memory does not depend on how many. What routers record
  // is summed over all batches, the same in every layout up to rounding.
  Evaluation evaluate(const std::vector<Batch>& whole) { return evaluator_.evaluate(whole, repetition_); }
  // Micro-batches that an evaluation has on their way at once: a pipeline is filled as in a step.
  int64_t evaluated_together() const { return evaluator_.together(); }
  // On the meta device, before the first step: leaves micro-batches out of steps and of a pipeline's evaluations.
  void leave_out(Repetition& repetition) { repetition_ = &repetition; }

  // Collective: the values that other ranks updated in the last step are here. They come when the model first acquires
  // their units anyhow; a plan counts what is sent for them apart.
  void gather_values();

  // Collective. What a checkpoint holds of this rank: values, buffers, then optimizer state. It changes in the update
  // of a step alone. A value of 16 bits stands there twice, alone and as a part of its master, which comes later and so
  // has the last word when both are loaded.
  std::vector<StateTensor> state();

  // Of this rank: the parameters whose values, and the gradients of the last step that this rank updates by, are not
  // all finite, in words; all are read on the host.
  std::vector<std::string> non_finite_values();
  std::vector<std::string> non_finite_gradients();
  // Collective: computes the passes of the last step again, from the arguments and the result of step(), and watches
  // them; nothing is updated. Returns the first value of this rank that is not finite, if there is one this time.
  std::optional<NonFiniteSearch::Found> find_non_finite(const std::vector<Batch>& micro_batches, int64_t iteration,
                                                        int64_t updates, const StepResult& result);
  // Collective: computes the passes that a step makes as this data-parallel rank, of these micro-batches; nothing is
  // updated. All ranks must compute as others, each as another one.
  void replay_passes(const std::vector<Batch>& micro_batches, int data_rank, int64_t iteration, int64_t updates);

  // As RecordedStep has them.
  void note_launches(LaunchTrace* launches) { recorded_.note_launches(launches); }
  void show_ranges(PlaceRanges* ranges) { recorded_.show_ranges(ranges); }

  // Collective: the L2 norm of all parameters, each counted once. 0 on the meta device.
  double params_norm();
  // Of the gradients of the step made last, which gave `result`; before params_norm(). Any rank may ask by itself; it
  // waits for the stream. Zeros on the meta device.
  LayerNorms layer_norms(const StepResult& result);

  // Of a GPU's step: why it is not one recorded graph; empty where it is one.
  std::string why_eager() const;

  Transformer& model() { return model_; }
  const GradientBuckets& gradients() const { return gradients_; }
  // Of steps of so many micro-batches of each rank.
  ReportSizes report_sizes(int64_t micro_batches) const;
  Stream& stream() { return stream_; }

 private:
  // Recorded: what the host does in the step (hooks, the answer to `asks_to_end`) is done outside of it. Again: it was
  // done when the step was first made.
  enum class Mode : uint8_t { eager, recorded, again };
  // What counts the step, in words of step().
  struct Count {
    int64_t iteration, updates;
  };

  StepParts parts();
  StepFeatures make_features();
  void look_ahead_of(const std::vector<Batch>& batches);
  const std::vector<Batch>& own_part(const std::vector<Batch>& batches);
  void prepare(const std::vector<Batch>& batches);
  void begin(const std::vector<Batch>& own, Count count);
  bool recordable() const;
  void replay();
  void compute(Mode mode, const std::function<RunEnd()>& asks_to_end = {});
  void compute_passes(Mode mode);
  Tensor update();
  StepReport::Result compute_again(const std::vector<Batch>& own, Count count);
  int64_t samples_of_step() const;
  int64_t position(Count count, int64_t samples) const;
  StepResult result_of(const StepReport::Result& report) const;

  Stream& stream_;
  const Groups& groups_;
  const ResolvedConfig config_;
  Stages stages_;
  std::shared_ptr<ops::Fp8Rounds> fp8_rounds_;  // null: weights in e4m3 are not kept
  Transformer model_;
  std::vector<Parameter*> parameters_;
  std::vector<Buffer*> buffers_;
  ParamGroups param_groups_;
  ShardingPolicy policy_;
  ShardPlan shard_plan_;
  std::unique_ptr<UnitStore> units_;
  GradientBuckets gradients_;
  const WholeModel whole_;
  GlobalNorm norm_;
  StepState step_state_;
  std::unique_ptr<Optimizer> optimizer_;
  StepFeatures features_;
  BufferSums buffer_sums_;
  std::vector<ModuleObserver> part_observers_;
  StagePasses passes_;
  Evaluator evaluator_;
  std::vector<Batch> parts_;               // of the last batches, where ranks divide sequences
  std::vector<std::vector<Batch>> ahead_;  // of the last batches, for each MTP module: this rank's part
  std::unique_ptr<StepInputs> inputs_;
  std::unique_ptr<StepReport> report_;
  Repetition* repetition_ = nullptr;  // null: all micro-batches are run
  std::unique_ptr<PipelineChannel> channel_;
  StepTimes times_;
  int64_t scheduled_samples_ = 0;
  RecordedStep recorded_;
  std::function<void()> before_update_;
};

}  // namespace witan
