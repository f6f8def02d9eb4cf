// One rank's model with its gradients and its optimizer: what steps train and checkpoints hold.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "witan/checkpoint/state.h"
#include "witan/data/batches/batch.h"
#include "witan/model/transformer.h"
#include "witan/optim/optimizer.h"
#include "witan/parallel/global_norm.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/parallel/sharding/unit_store.h"
#include "witan/parallel/stages.h"
#include "witan/train/config/resolve.h"
#include "witan/train/step/step_features.h"

namespace witan {

// Facts about all stages of the pipeline that a rank needs.
struct WholeModel {
  std::vector<std::vector<NormRows>> rows;  // that each stage sums for a norm; empty with one stage
  std::vector<LossSpec> losses;             // that modules record
};

struct RankModel {
  // Stream and groups must outlive it.
  RankModel(Stream& stream, const Groups& groups, const ResolvedConfig& config);

  StepParts parts() { return {stream, groups, *config, model, *units, gradients, shard_plan, *optimizer, step_state}; }

  // Collective: gathers the values that other ranks updated in the last step. The model does so anyway when it first
  // acquires their units; a plan counts the bytes that are sent for them separately.
  void gather_values();
  // Collective. This rank's tensors of a checkpoint: values, buffers, then optimizer state. They change only in the
  // update of a step. A 16-bit value is listed twice, alone and as a part of its master; the master comes later, so
  // that it decides when both are loaded.
  std::vector<StateTensor> state();

  // Collective: the L2 norm of all parameters, each counted once. 0 on the meta device.
  double params_norm();
  // The norms of the last step's gradients, which gave `result`; call it before params_norm(). Not a collective. Waits
  // for the stream. Zeros on the meta device.
  LayerNorms layer_norms(const StepResult& result);

  // Describe this rank's parameters with values, or with gradients of the last step, that are not finite; of gradients
  // only the shards that this rank updates. All are read on the host.
  std::vector<std::string> non_finite_values();
  std::vector<std::string> non_finite_gradients();

  Stream& stream;
  const Groups& groups;
  const ResolvedConfig config;
  const Stages stages;
  std::shared_ptr<ops::Fp8Rounds> fp8_rounds;  // null: weights in E4M3 are not kept
  Transformer model;
  const std::vector<Parameter*> parameters;
  const std::vector<Buffer*> buffers;
  const ParamGroups param_groups;
  const ShardingPolicy policy;
  const ShardPlan shard_plan;
  std::unique_ptr<UnitStore> units;
  GradientBuckets gradients;
  const WholeModel whole;
  GlobalNorm norm;
  StepState step_state;
  std::unique_ptr<Optimizer> optimizer;
};

// The store of the units of a model that ranks of `config` lay out.
std::unique_ptr<UnitStore> make_unit_store(Stream& stream, Transformer& model, const ShardPlan& shard_plan,
                                           const Groups& groups, const RunConfig& config, const Stages& stages);

// This rank's values and buffers for a checkpoint; of ranks that hold the same, the first one writes it.
std::vector<StateTensor> state_of_model(const std::vector<Parameter*>& parameters, const std::vector<Buffer*>& buffers,
                                        const Groups& groups);

// The shape of the residual stream that goes from stage to stage: [B, S, D].
Shape residual_shape(const RunConfig& config, const Batch& batch);

}  // namespace witan
