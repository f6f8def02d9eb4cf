#include "witan/train/step/engine_parts.h"

#include <utility>

#include "witan/base/threads/threads.h"
#include "witan/parallel/sharding/shard_plan.h"

namespace witan {

ModelAxes training_axes(const Groups& groups, const RunConfig& config,
                        std::shared_ptr<const ops::Fp8Rounds> fp8_rounds) {
  ModelAxes axes = groups.model_axes(config.parallel);
  axes.tensor_overlap = config.overlaps_tensor_exchanges();
  axes.fp8_rounds = std::move(fp8_rounds);
  return axes;
}

std::vector<std::vector<NormRows>> rows_of_stages(const RunConfig& config, const Stages& stages, const Groups& groups,
                                                  const ShardingPolicy& policy) {
  if (stages.stages() == 1) return {};
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  std::vector<std::vector<NormRows>> rows;
  for (int stage = 0; stage < stages.stages(); ++stage) {
    const Transformer model(stream, config.model, 0, groups.model_axes(config.parallel), stages.held_by(stage));
    rows.push_back(norm_rows(
        ShardPlan(model.parameters(), groups.layout(), groups.rank(), BucketPlan::kElements, policy), groups.layout()));
  }
  return rows;
}

std::unique_ptr<UnitStore> make_unit_store(Stream& stream, Transformer& model, const ShardPlan& shard_plan,
                                           const Groups& groups, const RunConfig& config, const Stages& stages) {
  UnitStore::Options options{config.parallel.reshard_after_forward,
                             static_cast<uint64_t>(config.train.seed),
                             config.model.init_method == "torch",
                             {},
                             ShardingPolicy(config.optimizer)};
  const auto make = [&] { return std::make_unique<UnitStore>(stream, model.units(), shard_plan, groups, options); };
  if (!groups.layout().shards_values() || !options.torch || stages.stages() == 1) return make();
  ThreadPool pool(1);  // the whole model, on the meta device, says what is drawn before this stage's values
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  Transformer whole(meta, config.model, 0, groups.model_axes(config.parallel));
  for (const Parameter* parameter : whole.parameters()) options.drawn.push_back(parameter);
  return make();
}

Shape residual_shape(const RunConfig& config, const Batch& batch) {
  const int64_t ranks = config.parallel.sequence_parallel ? config.parallel.tensor_model_parallel_size : 1;
  return {batch.sequences, batch.sequence_length / ranks, config.model.hidden_size};
}

}  // namespace witan
