// Parts of an engine that depend on the whole model, of which a rank holds one pipeline stage.
#pragma once

#include <memory>
#include <vector>

#include "witan/data/batches/batch.h"
#include "witan/model/transformer.h"
#include "witan/parallel/global_norm.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/sharding/unit_store.h"
#include "witan/parallel/stages.h"
#include "witan/train/run/config.h"
#include "witan/train/step/step_report.h"

namespace witan {

// The axes of a model that is trained. `fp8_rounds`: the rounds during which 8-bit weights are kept, or null.
ModelAxes training_axes(const Groups& groups, const RunConfig& config,
                        std::shared_ptr<const ops::Fp8Rounds> fp8_rounds);

// Facts about all stages of the pipeline that a rank needs.
struct WholeModel {
  std::vector<std::vector<NormRows>> rows;  // that each stage sums for a norm; empty with one stage
  std::vector<LossSpec> losses;             // that modules record
};
// `model`: this rank's stage; the others are built on the meta device.
WholeModel whole_model(const RunConfig& config, const Stages& stages, const Groups& groups,
                       const ShardingPolicy& policy, Transformer& model);

// The store of the units of `model`, which is a stage of the whole model. The arguments must outlive it.
std::unique_ptr<UnitStore> make_unit_store(Stream& stream, Transformer& model, const ShardPlan& shard_plan,
                                           const Groups& groups, const RunConfig& config, const Stages& stages);

// The shape of the residual stream that goes from stage to stage: [B, S, D].
Shape residual_shape(const RunConfig& config, const Batch& batch);

}  // namespace witan
