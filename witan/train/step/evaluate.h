// Evaluates a model without gradients: on one batch, or, in every layout, the model that ranks train. Nothing is
// dropped, neither by dropout nor beyond a capacity of experts: the loss of a sequence depends on no other sequence.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "witan/data/batches/batch.h"
#include "witan/model/transformer.h"
#include "witan/moe/routers/router_sums.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/pipeline_channel.h"
#include "witan/parallel/sharding/unit_store.h"
#include "witan/train/config/resolve.h"
#include "witan/train/step/step_report.h"

namespace witan {

struct RankModel;  // step/rank_model.h
class Objective;   // step/objective.h
class Reference;   // step/reference.h

struct Evaluation {
  double nats = 0;  // summed over the targets that count; of preferences the loss, over pairs
  double targets = 0;
  double seconds = 0;  // duration, where it was measured
  // Router statistics over the tokens that are not padding: losses are means over micro-batches, loads are of all
  // tokens. dropped_share is the share that the capacity would drop; nothing is dropped. Empty in a dense model, and
  // where it was not measured.
  StepStatistics router = {};
  // With preferences: means over pairs (Objective::evaluated()). While they are gathered, sums.
  std::vector<std::pair<std::string, double>> figures = {};
  std::optional<double> reward = {};  // mean, of sampled answers to held-out prompts (rollout_eval_prompts)
  double loss() const { return targets > 0 ? nats / targets : 0; }
};

// The nats of the batch's targets that count; experts do not compute padding. With expert parallelism all ranks call
// it, each with a batch of its own. `padded`: rows may be padded, which takes some memory even if none is.
Evaluation evaluate(Stream& stream, Transformer& model, const Batch& batch, bool padded);

// Likewise the loss and figures of an objective of preferences, as sums over the batch's pairs. `reference`: what
// target_logprobs() found of the batch under the frozen reference; empty: there is none.
Evaluation evaluate(Stream& stream, Transformer& model, const Batch& batch, bool padded, const Objective& objective,
                    const std::vector<double>& reference);
// The log probabilities of the batch's targets that count, 0 for others. Zeros on the meta device.
std::vector<double> target_logprobs(Stream& stream, Transformer& model, const Batch& batch, bool padded);

// A pipeline stage's sums over several batches.
struct StageEvaluation {
  std::vector<Evaluation> losses;            // of each batch; only on the last stage
  std::vector<std::vector<double>> routers;  // of each batch: packed statistics of the blocks that the stage holds
};
// Called by all stages. `sizes`: those of a model whose MTP modules do not run. No statistics on the meta device.
StageEvaluation evaluate(Stream& stream, Transformer& model, PipelineChannel& channel, std::span<const Batch> batches,
                         const ReportSizes& sizes, int stage);

// Evaluates batches with the model that a rank trains: the cross entropy of targets or, with an objective of
// preferences, its loss and figures.
class Evaluator {
 public:
  // The arguments must outlive it. `reference`: the objective's; null: it has none.
  Evaluator(RankModel& rank, const Objective& objective, Reference* reference);
  void use_objective(const Objective& objective) { objective_ = &objective; }

  // Micro-batches in flight: a pipeline is filled as in a step.
  int64_t together() const;
  // Collective, see Engine::evaluate(). `repetition` leaves batches out on the meta device; may be null.
  Evaluation evaluate(const std::vector<Batch>& whole, Repetition* repetition);

 private:
  StageEvaluation evaluate_run(std::span<const Batch> run, const ReportSizes& sizes, Repetition* repetition);
  StageEvaluation compare_run(std::span<const Batch> run, PipelineChannel& channel, const ReportSizes& sizes,
                              Repetition* repetition);
  std::vector<double> gather(const std::vector<double>& values);
  void add_routers(RouterSums& sums, const ReportSizes& sizes, std::span<const double> found) const;
  StepStatistics gather(RouterSums& sums);

  Stream& stream_;
  const Groups& groups_;
  const RunConfig& config_;
  const Stages& stages_;
  Transformer& model_;
  UnitStore& units_;
  const Objective* objective_;
  Reference* reference_;
};

}  // namespace witan
