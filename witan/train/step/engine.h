// One rank's model, gradients and optimizer, and the step that trains them. The planner runs the very same code on the
// meta device.
//
// On a GPU a step does not involve the host: its inputs are uploaded before it, its results are read after it, and in
// between it is one captured CUDA graph unless a part of it needs the host (Engine::recordable).
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "witan/checkpoint/state.h"
#include "witan/data/batches/batch.h"
#include "witan/model/transformer.h"
#include "witan/moe/router_sums.h"
#include "witan/optim/loss_scaler.h"
#include "witan/optim/optimizer.h"
#include "witan/optim/spike_skip.h"
#include "witan/parallel/buffer_sums.h"
#include "witan/parallel/global_norm.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/parallel/sharding/unit_store.h"
#include "witan/parallel/stages.h"
#include "witan/parallel/state_check.h"
#include "witan/train/record/times.h"
#include "witan/train/run/resolve.h"
#include "witan/train/step/evaluate.h"
#include "witan/train/step/exchange_backoff.h"
#include "witan/train/step/loss_gather.h"
#include "witan/train/step/non_finite.h"
#include "witan/train/step/pass_digest.h"
#include "witan/train/step/qk_clip.h"
#include "witan/train/step/stage_passes.h"
#include "witan/train/step/step_activations.h"
#include "witan/train/step/step_inputs.h"
#include "witan/train/step/step_report.h"
#include "witan/train/step/step_routes.h"
#include "witan/train/trace/launch_trace.h"
#include "witan/train/trace/place_ranges.h"

namespace witan {

// The norms of gradients of the parts of a model, before clipping.
struct LayerNorms {
  double embedding = 0;        // with learned positions and value embeddings; a tied one, which is the head too
  std::vector<double> layers;  // those of MTP modules last
  double head = 0;             // with the last norm
};

struct StepResult {
  int64_t samples = 0;                        // of the global batch; 0: global_batch_size
  double loss = 0;                            // cross entropy per target of the whole global batch, nats
  std::vector<double> mtp_losses;             // likewise of each MTP module, of its own targets
  double learning_rate = 0;                   // [optimizer]'s after the step; where iterations are counted: during it
  double gradient_norm = 0;                   // before clipping
  double zero_gradients = 0;                  // elements that are exactly 0, each parameter counted once
  std::optional<double> params_norm;          // after the update, where it was asked for
  std::optional<LayerNorms> layer_norms;      // of the gradients, likewise
  bool skipped = false;                       // nothing was updated: gradients were not finite, or the step was a spike
  bool spike = false;                         // of a skipped step: all was finite
  std::optional<double> loss_scale;           // of the next step; float16 models only
  std::optional<double> max_attention_logit;  // before the update; with qk_clip only
  // Statistics of activations by name, of each layer, those of MTP modules last; NaN where a layer has none. Empty
  // where the step did not measure them (log_activations).
  std::map<std::string, std::vector<double>> activations;
  int64_t waves = 1;  // in which it ran again; 1: all rows had room in pools (moe/expert_pools.h)
  // Of a step that ran again with rows exchanged as they come: what a rank had for another, over what parts have room
  // for. 0: it did not.
  double exchange_fill = 0;
  StepStatistics router;      // of all micro-batches; empty in a dense model
  RunEnd end = RunEnd::none;  // why ranks ask for the run to end after this step, all told alike
  StepTimes times;            // of this rank
};

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

  // The numbers of waves in which a step may run again, each at least twice the one before; none where experts have
  // room for whatever comes. The first is 1 where exchanges are bounded: all rows at once, as they come.
  std::vector<int64_t> wave_counts() const;
  // Collective. The step that was made last, again in so many waves: for plans, which otherwise do not come to it.
  void step_again(const std::vector<Batch>& micro_batches, int64_t iteration, int64_t updates, int64_t waves);
  // Of a run that replays routes: those of the next step's tokens, as StepRoutes::upload() takes them.
  void replay_routes(std::vector<int32_t> ids) { replayed_routes_ = std::move(ids); }
  // Of a run that records routes: those of the last step, which it waits for.
  StepRoutes::Found recorded_routes() { return routes_->read(stream_); }

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
  Evaluation evaluate(const std::vector<Batch>& whole);
  // Micro-batches that an evaluation has on their way at once: a pipeline is filled as in a step.
  int64_t evaluated_together() const;
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
  // Collective: computes the passes of the last step again, given what step() was, in so many waves, and watches them;
  // nothing is updated. Returns the first value of this rank that is not finite, if there is one this time.
  std::optional<NonFiniteSearch::Found> find_non_finite(const std::vector<Batch>& micro_batches, int64_t iteration,
                                                        int64_t updates, int64_t waves);

  // From now on the passes of each step are noted there as well, before anything is updated by them; null: no longer.
  void note_passes(PassDigest* digest);
  // Collective: computes the passes that a step makes as this data-parallel rank, of these micro-batches, and notes
  // them; nothing is updated. All ranks must compute as others, each as another one.
  void replay_passes(const std::vector<Batch>& micro_batches, int data_rank, int64_t iteration, int64_t updates,
                     PassDigest& digest);

  // What spikes are found by (skip_step_sigma); empty where none are skipped. Waits for the stream.
  SpikeSkip::History spike_history() const { return spikes_ ? spikes_->skip.read() : SpikeSkip::History(); }
  void restore_spike_history(const SpikeSkip::History& history) {
    if (spikes_) spikes_->skip.restore(history);
  }

  // The loss scale and what decides how it changes; without a scale in models that are not float16. Waits for the
  // stream.
  LossScaler::State loss_scaler() const { return loss_scaler_ ? loss_scaler_->read() : LossScaler::State(); }
  void restore_loss_scaler(const LossScaler::State& state) {
    if (loss_scaler_) loss_scaler_->restore(state);
  }

  // From now on each step's launches are noted there as they are queued, without waiting for any; null: no longer. A
  // step that is one graph is recorded once more for that.
  void note_launches(LaunchTrace* launches);

  // From now on ranges are opened and closed around what steps queue, or capture, but for traced steps; null: no
  // longer.
  void show_ranges(PlaceRanges* ranges) { ranges_ = ranges; }

  // Collective: throws CommError where ranks that hold the same values, buffers or optimizer state differ
  // (check_states_interval). Not within a step: it waits for the stream and reads all of them.
  void check_states();

  // Collective: the L2 norm of all parameters, each counted once. 0 on the meta device.
  double params_norm();

  // Of the gradients of the step made last, which gave `result`; before params_norm(). Any rank may ask by itself; it
  // waits for the stream. Zeros on the meta device.
  LayerNorms layer_norms(const StepResult& result);

  // Of a GPU's step: why it is not one recorded graph; empty where it is one. A meta device answers for the one that it
  // stands for.
  std::string why_eager() const;

  Transformer& model() { return model_; }
  const GradientBuckets& gradients() const { return gradients_; }
  Stream& stream() { return stream_; }

 private:
  // Recorded: what the host does in the step (hooks, the answer to `asks_to_end`) is done outside of it. Again: it was
  // done when the step was first made.
  enum class Mode : uint8_t { eager, recorded, again };
  // What counts the step, in words of step().
  struct Count {
    int64_t iteration, updates;
  };

  std::unique_ptr<UnitStore> make_unit_store();
  bool rows_go_by_peers() const;
  std::unique_ptr<ExpertPools> make_pools() const;
  bool bounds_exchanges() const { return pools_ && pools_->bounds_exchanges(); }
  std::unique_ptr<Stream> make_tensor_side();
  std::unique_ptr<Stream> make_expert_side();
  std::unique_ptr<GlobalLoad> make_global_load();
  ModelServices services();
  std::optional<LossScaler> make_loss_scaler() const;
  void look_ahead_of(const std::vector<Batch>& batches);
  const std::vector<Batch>& own_part(const std::vector<Batch>& batches);
  void prepare(const std::vector<Batch>& batches);
  bool recordable() const;
  bool measures() const { return activations_ && activations_->wanted(); }  // activations, in this step
  void replay();
  void replay_noted();
  void compute_noted(Mode mode, const std::function<RunEnd()>& asks_to_end);
  void begin(const std::vector<Batch>& own, Count count);
  int64_t samples_of_step() const;
  int64_t position(Count count, int64_t samples) const;
  StepReport::Result compute_again(const std::vector<Batch>& own, Count count, int64_t waves);
  StepResult within_pools(const std::vector<Batch>& own, Count count, StepReport::Result read);
  void compute_passes(Mode mode);
  void compute(Mode mode, const std::function<RunEnd()>& asks_to_end);
  void finish_gradients();
  void note_losses();
  Tensor update();
  Pipeline pipeline(int64_t micro_batches, Pipeline::Passes passes) const;
  StepResult result_of(const StepReport::Result& report) const;
  std::map<std::string, std::vector<double>> activations_of(const StepReport::Result& report) const;
  std::vector<double> gather(const std::vector<double>& values);
  void add_routers(RouterSums& sums, const ReportSizes& sizes, std::span<const double> found) const;
  StepStatistics gather(RouterSums& sums);
  Group& tokens() const { return groups_.over(groups_.layout().token_axes()); }

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
  std::unique_ptr<ExpertPools> pools_;  // null: experts have room for whatever comes
  ExchangeBackoff exchange_backoff_;
  std::unique_ptr<Stream> tensor_side_;      // null: nothing computes while tokens travel over the tensor axis
  std::unique_ptr<Stream> expert_side_;      // null: nothing computes while tokens travel to experts
  std::unique_ptr<GlobalLoad> global_load_;  // null: no loss balances that of the batch so far
  GradientBuckets gradients_;
  BufferSums buffer_sums_;
  GlobalNorm norm_;
  StepState step_state_;
  struct Spikes {
    SpikeSkip skip;
    std::optional<LossGather> losses;  // of as many micro-batches as steps have
  };
  std::optional<Spikes> spikes_;
  std::unique_ptr<Optimizer> optimizer_;
  StateCheck state_check_;
  std::vector<ModuleObserver> part_observers_;
  std::optional<LossScaler> loss_scaler_;  // of float16 models
  std::optional<QkClip> qk_clip_;
  std::optional<StepActivations> activations_;  // none: no step measures them
  StagePasses passes_;
  std::vector<Batch> parts_;               // of the last batches, where ranks divide sequences
  std::vector<std::vector<Batch>> ahead_;  // of the last batches, for each MTP module: this rank's part
  std::unique_ptr<StepInputs> inputs_;
  std::unique_ptr<StepReport> report_;
  std::optional<StepRoutes> routes_;  // none: routes are neither recorded nor replayed
  std::vector<int32_t> replayed_routes_;
  Repetition* repetition_ = nullptr;  // null: all micro-batches are run
  std::unique_ptr<PipelineChannel> channel_;
  StepTimes times_;
  int64_t scheduled_samples_ = 0;
  bool warm_ = false;  // a step has run on these inputs
  // The step, recorded: as it is, and as one that measures activations; null until such a step comes.
  std::array<std::unique_ptr<Graph>, 2> graphs_;
  PlaceRanges* ranges_ = nullptr;       // null: none are shown
  LaunchTrace* launches_ = nullptr;     // null: launches are not noted
  std::unique_ptr<Graph> noted_graph_;  // the step, recorded with their moments; null until such a step comes
  bool noted_measures_ = false;         // and measuring activations
  std::function<void()> before_update_;
  PassDigest* digest_ = nullptr;  // null: passes are not noted
};

}  // namespace witan
