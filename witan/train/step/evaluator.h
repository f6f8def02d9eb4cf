// Evaluates batches with the model that a rank trains, in every layout.
#pragma once

#include <span>
#include <vector>

#include "witan/data/batches/batch.h"
#include "witan/moe/routers/router_sums.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/sharding/unit_store.h"
#include "witan/train/config/resolve.h"
#include "witan/train/step/evaluate.h"

namespace witan {

class Evaluator {
 public:
  // What it is given must outlive it. `stages`: of the pipeline.
  Evaluator(Stream& stream, const Groups& groups, const RunConfig& config, const Stages& stages, Transformer& model,
            UnitStore& units);

  // Micro-batches that are on their way at once: a pipeline is filled as in a step.
  int64_t together() const;
  // Collective, as Engine::evaluate(). `repetition`: what leaves batches out on the meta device, or null.
  Evaluation evaluate(const std::vector<Batch>& whole, Repetition* repetition);

 private:
  StageEvaluation evaluate_run(std::span<const Batch> run, const ReportSizes& sizes, Repetition* repetition);
  std::vector<double> gather(const std::vector<double>& values);
  void add_routers(RouterSums& sums, const ReportSizes& sizes, std::span<const double> found) const;
  StepStatistics gather(RouterSums& sums);

  Stream& stream_;
  const Groups& groups_;
  const RunConfig& config_;
  const Stages& stages_;
  Transformer& model_;
  UnitStore& units_;
};

}  // namespace witan
