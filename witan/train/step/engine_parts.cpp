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

WholeModel whole_model(const RunConfig& config, const Stages& stages, const Groups& groups,
                       const ShardingPolicy& policy, Transformer& model) {
  WholeModel whole;
  if (stages.stages() == 1) {
    add_losses(whole.losses, model);
    return whole;
  }
  ThreadPool pool(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), pool);
  for (int stage = 0; stage < stages.stages(); ++stage) {
    Transformer other(meta, config.model, 0, groups.model_axes(config.parallel), stages.held_by(stage));
    add_losses(whole.losses, other);
    const ShardPlan shards(other.parameters(), groups.layout(), groups.rank(), BucketPlan::kElements, policy);
    whole.rows.push_back(norm_rows(shards, groups.layout()));
  }
  return whole;
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
  ThreadPool pool(1);  // the whole model on the meta device tells which values are drawn before this stage's
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
