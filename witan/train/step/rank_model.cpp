#include "witan/train/step/rank_model.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "witan/base/threads/threads.h"
#include "witan/model/frozen.h"
#include "witan/ops/fp8/fp8_kept.h"
#include "witan/parallel/sharding/shard_plan.h"
#include "witan/tensor/trace_context.h"
#include "witan/train/step/non_finite.h"

namespace witan {
namespace {

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

// The shard of a value, or of what it is kept as, region by region.
void add_value(std::vector<StateTensor>& tensors, const Parameter& parameter, const Layout& layout, int rank) {
  const ParameterSpec& spec = parameter.spec();
  const Axes owners = layout.shards_values(spec.expert) ? layout.sharding_axes(spec.expert) : Axes{};
  const bool writes = !spec.copy && layout.holds_first(spec, rank, owners);
  const auto add = [&](const std::string& name, const Tensor& shard, int64_t elements_each) {
    const int64_t first = parameter.shard_first() / elements_each;
    const Shape global = parameter.global_shape().with(parameter.global_shape().dims() - 1,
                                                       parameter.global_shape().last() / elements_each);
    int64_t done = 0;
    for (const Region& region : divided_by(parameter.region(), elements_each).slice(first, first + shard.elements())) {
      tensors.push_back({name, shard.narrow(0, done, region.elements()), global, region, writes});
      done += region.elements();
    }
  };
  if (!parameter.in_codes()) return add(parameter.name(), parameter.value_shard(), 1);
  const kernels::WeightFormatTraits& format = kernels::traits_of(spec.format);
  const CodedNames names(parameter.name(), spec.format);
  add(names.words, parameter.codes().words, format.codes_per_word());
  add(names.scales, parameter.codes().scales, format.group / format.scales);
}

}  // namespace

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

RankModel::RankModel(Stream& on, const Groups& of, const ResolvedConfig& given)
    : stream(on),
      groups(of),
      config(given),
      stages(config->parallel.stage_split(config->model.num_layers)),
      fp8_rounds(config->model.fp8() && config->model.fp8_keep_weights ? std::make_shared<ops::Fp8Rounds>() : nullptr),
      model(stream, config->model, static_cast<uint64_t>(config->train.seed),
            training_axes(groups, *config, fp8_rounds), stages.held_by(groups.of(Axis::pipeline).rank())),
      parameters(model.parameters()),
      buffers(model.buffers()),
      param_groups(config->optimizer),
      policy(config->optimizer),
      shard_plan(parameters, groups.layout(), groups.rank(), BucketPlan::kElements, policy),
      units(make_unit_store(stream, model, shard_plan, groups, *config, stages)),
      gradients(stream, parameters, groups,
                {.dtype = config->gradient_dtype(),
                 .summation = config->parallel.sums_in_tree(config->model.moe.num_experts) ? Summation::tree
                                                                                           : Summation::in_place,
                 .micro_batches = config->micro_batches() / groups.layout().data_ranks(),
                 .overlap = config->parallel.overlap_grad_reduce,
                 .norm_fusion = config->parallel.fuses_gradient_norm(),
                 .policy = policy}),
      whole(whole_model(*config, stages, groups, policy, model)),
      norm(stream, shard_plan, groups, whole.rows),
      step_state(stream, param_groups.size()),
      optimizer(make_optimizer(config->optimizer, stream, shard_plan.local_shards(&groups))) {
  units->gather_on(gradients.side(), config->parallel.overlap_param_gather);
}

double RankModel::params_norm() {
  const TraceContextScope trace_context(stream, TraceContext::Phase::logging);
  const std::string before = stream.set_part("logging");
  const double of_values = read_norm(stream, norm.compute(stream, GlobalNorm::Of::values)).norm;
  stream.set_part(before);
  return of_values;
}

// The gradients of float16 models are summed as they are, scaled, and the scale has changed since.
LayerNorms RankModel::layer_norms(const StepResult& result) {
  const TraceContextScope trace_context(stream, TraceContext::Phase::logging);
  const std::string before = stream.set_part("logging");
  std::vector<double> sums = norm.square_sums_of_units(stream);
  stream.set_part(before);
  double unscale = 1;
  if (result.scalars.get(kLossScale))
    unscale = result.gradient_norm / std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
  sums.resize(static_cast<size_t>(config->model.num_layers + config->model.mtp_num_layers + 2));
  for (double& sum : sums) sum = std::sqrt(sum) * unscale;
  const auto head = sums.begin() + 1 + config->model.num_layers;  // as Transformer numbers its units
  LayerNorms norms{.embedding = sums.front(), .layers = {sums.begin() + 1, head}, .head = *head};
  norms.layers.insert(norms.layers.end(), head + 1, sums.end());
  return norms;
}

void RankModel::gather_values() {
  if (units->gathered()) return;
  units->gather();
  stream.wait();  // the values may be read by other means than this stream
}

std::vector<std::string> RankModel::non_finite_values() {
  stream.wait();
  std::vector<std::string> found;
  for (const Parameter* parameter : parameters)
    if (const auto text = describe_non_finite(*parameter, parameter->kept().back(), parameter->shard_first()))
      found.push_back(*text);
  return found;
}

std::vector<std::string> RankModel::non_finite_gradients() {
  stream.wait();
  std::vector<std::string> found;
  for (const auto& [parameter, first, elements, pieces] : shard_plan.local_shards())
    if (const auto text = describe_non_finite(*parameter, parameter->gradient_shard(first, elements), first))
      found.push_back(*text);
  return found;
}

std::vector<StateTensor> state_of_model(const std::vector<Parameter*>& parameters, const std::vector<Buffer*>& buffers,
                                        const Groups& groups) {
  const Layout& layout = groups.layout();
  std::vector<StateTensor> tensors;
  for (const Parameter* parameter : parameters) add_value(tensors, *parameter, layout, groups.rank());
  for (const Buffer* buffer : buffers) {
    const BufferSpec& spec = buffer->spec();
    tensors.push_back({.name = buffer->name(),
                       .local = buffer->value(),
                       .global_shape = spec.shape,
                       .region = {0, spec.shape.elements()},
                       .writes = !spec.copy && layout.holds_first(spec, groups.rank()),
                       .kind = StateTensor::Kind::buffer});
  }
  return tensors;
}

std::vector<StateTensor> RankModel::state() {
  gather_values();
  const Layout& layout = groups.layout();
  std::vector<StateTensor> tensors = state_of_model(parameters, buffers, groups);
  optimizer->visit([&](const OptimizerTensor& piece) {
    const Axes owners = layout.sharding_axes(piece.parameter.expert);
    const bool writes = !piece.parameter.copy && layout.holds_first(piece.parameter, groups.rank(), owners);
    tensors.push_back({piece.name, piece.tensor, piece.parameter.shape, piece.region, writes, piece.remainder,
                       piece.remainder.defined() ? StateTensor::Kind::master : StateTensor::Kind::optimizer});
  });
  return tensors;
}

Shape residual_shape(const RunConfig& config, const Batch& batch) {
  const int64_t ranks = config.parallel.sequence_parallel ? config.parallel.tensor_model_parallel_size : 1;
  return {batch.sequences, batch.sequence_length / ranks, config.model.residual_width()};
}

}  // namespace witan
