// The step that trains a rank's model (rank_model.h). The planner runs the very same code on the meta device.
//
// On a GPU a step does not involve the host: its inputs are uploaded before it, its results are read after it, and in
// between it is one captured CUDA graph unless a part of it needs the host (why_eager() in recorded_step.h). Optional
// parts of a step (loss scale, QK-clip, bounded experts ...) are features (step_feature.h), which the engine calls in
// order.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "witan/data/batches/batch.h"
#include "witan/parallel/buffer_sums.h"
#include "witan/train/step/evaluate.h"
#include "witan/train/step/non_finite.h"
#include "witan/train/step/rank_model.h"
#include "witan/train/step/recorded_step.h"
#include "witan/train/step/reference.h"
#include "witan/train/step/stage_passes.h"
#include "witan/train/step/step_inputs.h"

namespace witan {

class Engine {
 public:
  // Stream and groups must outlive the engine.
  Engine(Stream& stream, const Groups& groups, const ResolvedConfig& config);
  ~Engine();

  // Before the first step: another objective than the configuration's.
  void use_objective(std::unique_ptr<Objective> objective);

  // Sets the number of samples of all earlier updates, for schedules that count samples
  // (OptimizerConfig::counts_samples()).
  void schedule_from(int64_t samples) { scheduled_samples_ = samples; }

  // Collective over all ranks. `micro_batches` are this rank's: consecutive ones of the global batch, in the order of
  // data-parallel ranks, equally many for each, and no more than those of a whole global_batch_size. Context-parallel
  // ranks all take the whole sequences. `iteration` counts from 1; `updates` is the number of earlier updates (skipped
  // steps make none). On the meta device batches need only their sizes. Ids must be within the vocabulary: on a GPU the
  // host does not wait to find out.
  StepResult step(const std::vector<Batch>& micro_batches, int64_t iteration, int64_t updates,
                  const std::function<RunEnd()>& asks_to_end = {});
  // Whether steps from now on leave weights and optimizer as they are, since no token of their batches counts: moments
  // and weight decay would change them even so. The same on all ranks.
  void hold(bool held) { held_ = held; }
  // Collective. Computes the last step again in all ways that features may ask for (StepFeature::repeats). For plans:
  // on the meta device no feature asks.
  void step_again(const std::vector<Batch>& micro_batches, int64_t iteration, int64_t updates);

  // The features of its steps. More may be added before the first step, the same on all ranks.
  StepFeatures& features() { return features_; }
  // The feature of this type; null: the run has none.
  template <class F>
  F* feature() const {
    return features_.find<F>();
  }

  // Called in every step just before the tensors of state() change, so that a save in progress can finish first. An
  // exception from it ends the step with everything as it was.
  void before_update(std::function<void()> hook) { before_update_ = std::move(hook); }

  // Called within a step with the share of its passes that are done. Not on a GPU, where the host queues a whole step
  // long before it is computed.
  void after_pass(std::function<void(double share)> hook) {
    if (!stream_.is_cuda()) passes_.after_pass(std::move(hook));
  }

  // Collective: the loss over all ranks' batches, summed in the order of ranks. Every rank passes equally many batches
  // of a step's shape, with whole sequences as in step(). The memory that it takes does not depend on their number.
  // Router statistics are summed over all batches, the same in every layout up to rounding.
  Evaluation evaluate(const std::vector<Batch>& whole) { return evaluator_.evaluate(whole, repetition_); }
  // Micro-batches that an evaluation has in flight: a pipeline is filled as in a step.
  int64_t evaluated_together() const { return evaluator_.together(); }
  // On the meta device, before the first step: leaves micro-batches out of steps and of a pipeline's evaluations.
  void leave_out(Repetition& repetition) { repetition_ = &repetition; }

  // See RankModel.
  void gather_values() { rank_.gather_values(); }
  // After other uses of the model than steps and evaluations, such as generation: gives back what they have gathered,
  // so that the next step finds the memory that it was planned with.
  void end_reading() { rank_.units->give_back(); }
  std::vector<StateTensor> state() { return rank_.state(); }
  const std::vector<Parameter*>& parameters() const { return rank_.parameters; }
  double params_norm() { return rank_.params_norm(); }
  LayerNorms layer_norms(const StepResult& result) { return rank_.layer_norms(result); }
  std::vector<std::string> non_finite_values() { return rank_.non_finite_values(); }
  std::vector<std::string> non_finite_gradients() { return rank_.non_finite_gradients(); }
  // Collective: computes the passes of the last step again, from the arguments and the result of step(), and watches
  // them; nothing is updated. Returns the first value of this rank that is not finite, if there is one this time.
  std::optional<NonFiniteSearch::Found> find_non_finite(const std::vector<Batch>& micro_batches, int64_t iteration,
                                                        int64_t updates, const StepResult& result);
  // Collective: computes the passes that a step makes as this data-parallel rank, of these micro-batches; nothing is
  // updated. All ranks must compute as others, each as another one.
  void replay_passes(const std::vector<Batch>& micro_batches, int data_rank, int64_t iteration, int64_t updates);

  // See RecordedStep.
  void note_launches(LaunchTrace* launches) { recorded_.note_launches(launches); }
  void show_ranges(PlaceRanges* ranges) { recorded_.show_ranges(ranges); }

  // Why a step on a GPU is not one recorded graph; empty if it is.
  std::string why_eager() const;

  Transformer& model() { return rank_.model; }
  // The frozen model that the objective compares with; null: there is none.
  Reference* reference() { return reference_.get(); }
  const GradientBuckets& gradients() const { return rank_.gradients; }
  // The report's sizes for steps of this many micro-batches on each rank.
  ReportSizes report_sizes(int64_t micro_batches) const;
  Stream& stream() { return stream_; }

 private:
  // The host's part of a step (hooks, the answer to `asks_to_end`) lies outside of a recorded step, and is not repeated
  // when a step is computed again.
  enum class Mode : uint8_t { eager, recorded, again };
  // The arguments of step().
  struct Count {
    int64_t iteration, updates;
  };

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

  RankModel rank_;
  std::unique_ptr<Reference> reference_;
  Stream& stream_;
  const Groups& groups_;
  const ResolvedConfig& config_;
  StepFeatures features_;
  BufferSums buffer_sums_;
  std::vector<ModuleObserver> part_observers_;
  StagePasses passes_;
  Evaluator evaluator_;
  std::vector<Batch> parts_;               // this rank's part of the last batches, with context parallelism
  std::vector<std::vector<Batch>> ahead_;  // likewise, shifted for each MTP module
  std::unique_ptr<StepInputs> inputs_;
  std::unique_ptr<StepReport> report_;
  std::unique_ptr<ReferencePasses> reference_passes_;  // null without a reference
  Repetition* repetition_ = nullptr;                   // null: all micro-batches are run
  std::unique_ptr<PipelineChannel> channel_;
  StepTimes times_;
  int64_t scheduled_samples_ = 0;
  bool held_ = false;
  RecordedStep recorded_;
  std::function<void()> before_update_;
};

}  // namespace witan
