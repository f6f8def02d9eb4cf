#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "witan/model/config.h"
#include "witan/model/counts.h"
#include "witan/model/frozen.h"
#include "witan/moe/dispatchers/receive_buffers.h"
#include "witan/moe/dispatchers/replicas.h"
#include "witan/moe/layer/experts.h"
#include "witan/optim/optimizer.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/peers.h"
#include "witan/parallel/schedule.h"
#include "witan/planner/plan.h"
#include "witan/planner/search/search.h"
#include "witan/planner/time/step_time.h"
#include "witan/tensor/host.h"
#include "witan/train/config/trained_parameters.h"

namespace witan {
namespace {

using Phase = TraceContext::Phase;

// Sizes of the model and of one rank's part of it, in elements and tokens. Means over the pipeline's stages stand for
// every stage.
class Estimator {
 public:
  explicit Estimator(const RunConfig& config)
      : config_(config),
        model_(config.model),
        parallel_(config.parallel),
        layout_(layout_of(config)),
        counts_(count_parameters(config.model)),
        trained_(shares_of(config.model)),
        tensor_(size(Axis::tensor)),
        context_(size(Axis::context)),
        stages_(size(Axis::pipeline)),
        micro_batches_(static_cast<double>(micro_batches_of_a_rank(config))),
        tokens_(static_cast<double>(config.train.micro_batch_size * config.data.seq_length) / context_),
        value_(static_cast<double>(size_of(config.model.compute_dtype()))),
        width_(static_cast<double>(config.model.hidden_size)),
        specs_(layers_with_mtp(config.model)),
        layers_(static_cast<double>(specs_.size()) / stages_),
        heads_(1 + static_cast<double>(config.model.mtp_num_layers)) {}

  // Plans of a rank of the pipeline's first stage, and of its last stage, which has the head.
  std::vector<RankPlan> ranks() const {
    std::vector<RankPlan> plans;
    const auto stages = static_cast<int>(stages_);
    for (const int stage : {0, stages - 1}) {
      if (stage == 0 && !plans.empty()) break;
      plans.push_back(rank(stage == stages - 1));
      plans.back().rank = stage * (layout_.world_size() / stages);
    }
    return plans;
  }

  double state_bytes() const {
    const Sharding sharding = parallel_.sharding();
    const double gradient = static_cast<double>(size_of(config_.gradient_dtype()));
    double sum = 0;
    for (const bool experts : {false, true}) {
      sum += optimizer_bytes() * trained(experts) * owned(experts);
      sum += gradient * trained(experts) * (sharding >= Sharding::gradients ? owned(experts) : held(experts));
      sum += value_ * (sharding >= Sharding::parameters ? owned(experts) : held(experts));
    }
    return sum;
  }

  // The first stage has the most micro-batches in flight, the last one the logits. An FSDP unit is one block.
  double bytes() const {
    const Pipeline pipeline{static_cast<int>(stages_), chunks(), micro_batches_of_a_rank(config_)};
    const double in_flight = static_cast<double>(most_in_flight(pipeline, 0)) / chunks();
    const double logits = heads_ * tokens_ / tensor_ * 2 * value_ * static_cast<double>(model_.padded_vocab_size());
    const bool full = model_.recompute() == Recompute::full;
    const Recompute inside = full ? Recompute::none : model_.recompute();
    const auto block = [&](const LayerSpec& layer) { return block_bytes(layer, inside); };
    const double residual = static_cast<double>(model_.residual_width());
    const double kept = full ? layers_ * tokens_ / tensor_ * residual * value_ : of_stage(block);
    double largest = 0;
    for (const LayerSpec& layer : specs_) largest = std::max(largest, block(layer));
    double unit = 0;
    if (parallel_.sharding() >= Sharding::gradients)
      unit = (value_ + 4) * (held(false) + held(true)) / std::max(layers_, 1.0);
    return state_bytes() + in_flight * kept + (full ? largest : 0) + (stages_ == 1 ? logits : 0) + unit;
  }

 private:
  RankPlan rank(bool has_head) const {
    RankPlan plan;
    add_products(plan.calls);
    if (has_head) add_head(plan.calls);
    const double updated = trained(false) * owned(false) + trained(true) * owned(true);
    plan.calls[{.phase = Phase::optimizer, .part = "optimizer", .name = "update"}] = {0, update_bytes() * updated, 0,
                                                                                      1};
    SentBytes sent;
    add_model_exchanges(sent);
    for (const auto& [group, operations] : sent)
      for (const auto& [operation, bytes] : operations) add_exchange(plan.calls, group, operation, bytes);
    sent.clear();
    for (const bool experts : {false, true}) add_state_exchanges(sent, experts);
    for (const auto& [group, operations] : sent)
      for (const auto& [operation, bytes] : operations) add_state_exchange(plan.calls, group, operation, bytes);
    return plan;
  }

  // Adds calls of a kind with the given forward cost; the backward has twice the FLOPs in twice as many calls.
  static void add(CallCosts& calls, CallKind kind, const Cost& forward) {
    kind.phase = Phase::forward;
    calls[kind] += forward;
    kind.phase = Phase::backward;
    calls[kind] += scaled(forward, 2);
  }

  // Assumes that all matrix products of a layer have one shape, and a fixed number of other kernels.
  void add_products(CallCosts& calls) const {
    constexpr double kProducts = 4, kOthers = 8;  // calls in a layer's forward
    const double passes = layers_ * micro_batches_, feature_columns = of_stage(features) / layers_ / tensor_;
    const CallShape shape{static_cast<int64_t>(tokens_), static_cast<int64_t>(std::max(feature_columns, 1.0)),
                          static_cast<int64_t>(width_), 1};
    add(calls, {.part = "kernels", .name = "gemm", .shape = shape}, {flops_of_blocks() / 3, 0, 0, kProducts * passes});
    const double tokens = static_cast<double>(config_.train.global_batch_size * config_.data.seq_length),
                 ranks = static_cast<double>(parallel_.ranks);
    add(calls, {.part = "kernels", .name = "elementwise"},
        {recomputed() * tokens * mixing_flops(false) / ranks, moved() / 3, 0, kOthers * passes});
    const double parts = attends_by_heads() ? 1 : context_;  // parts of a sequence, each with its own attention call
    const CallShape seen{0, static_cast<int64_t>(static_cast<double>(config_.data.seq_length) / parts), 0, 0};
    const double forward = recomputed() * tokens * mixing_flops(true) / ranks;
    for (const auto& [phase, name, times] :
         {std::tuple(Phase::forward, "attention_forward", 1.0), std::tuple(Phase::backward, "attention_backward", 2.5)})
      calls[{.phase = phase, .part = "kernels", .name = name, .shape = seen}] = {times * forward, 0, 0, parts * passes};
  }

  void add_head(CallCosts& calls) const {
    const double columns = static_cast<double>(model_.padded_vocab_size()) / tensor_;
    const CallShape shape{static_cast<int64_t>(tokens_), static_cast<int64_t>(columns), static_cast<int64_t>(width_),
                          1};
    const double uses = heads_ * micro_batches_, logits = tokens_ * columns * value_;
    add(calls, {.part = "head", .name = "gemm", .shape = shape}, {uses * 2 * tokens_ * columns * width_, 0, 0, uses});
    calls[{.phase = Phase::forward, .part = "head", .name = "loss"}] = {0, 2 * uses * logits, 0, uses};
  }

  // Splits the bytes that all passes exchange evenly over forward and backward.
  void add_exchange(CallCosts& calls, const std::string& group, const std::string& operation, double bytes) const {
    const bool ring = group == name_of(Axis::context) && operation == "send";
    const double messages = group == name_of(Axis::pipeline) ? 2.0 * chunks() : 4 * layers_ * (ring ? context_ - 1 : 1);
    const CallShape shape{0, static_cast<int64_t>(size_of_group(group))};
    for (const Phase phase : {Phase::forward, Phase::backward})
      calls[{.phase = phase, .group = group, .name = call_of(group, operation), .shape = shape}] +=
          {0, bytes / 2, 0, messages * micro_batches_ / 2};
  }

  // The call by which a layer does the exchange: another one through peers' memory where ranks reach it.
  std::string call_of(const std::string& group, const std::string& operation) const {
    if (group == name_of(Axis::tensor) && tensor_peers_of(parallel_, layout_, 0) == PeerAccess::wanted) {
      if (operation == "all_gather") return "gather_parts";
      if (operation == "reduce_scatter") return "sum_parts";
    }
    const bool heads = group == name_of(Axis::context) && operation == "all_to_all_equal";
    return heads && context_peers_of(parallel_, layout_, 0) == PeerAccess::wanted ? "exchange_pieces" : operation;
  }

  // Forward FLOPs per token of the mixers that run attention kernels, or of the others.
  double mixing_flops(bool attends) const {
    double sum = 0;
    for (const LayerSpec& layer : specs_)
      if (const MixerKind& kind = mixer_kind(layer.mixer); kind.attends() == attends)
        sum += kind.mixing_flops(config_.data.seq_length);
    return sum;
  }

  bool attends_by_heads() const {
    return of_stage([&](const LayerSpec& layer) { return exchanged_bytes(layer); }) > 0;
  }

  // Adds the exchange of gradients or values, one bucket per layer.
  void add_state_exchange(CallCosts& calls, const std::string& group, const std::string& operation,
                          double bytes) const {
    const bool gathers = operation.starts_with("all_gather");
    const bool sharded = parallel_.sharding() >= (gathers ? Sharding::parameters : Sharding::gradients);
    const bool beside = gathers ? parallel_.overlap_param_gather : parallel_.overlap_grad_reduce;
    calls[{.phase = gathers ? Phase::forward : Phase::backward, .beside = beside, .group = group, .name = operation}] +=
        {0, bytes, 0, std::max(layers_, 1.0) * (sharded ? micro_batches_ : 1)};
  }

  double size_of_group(const std::string& group) const {
    for (int axis = 0; axis < kAxes; ++axis)
      if (name_of(static_cast<Axis>(axis)) == group) return size(static_cast<Axis>(axis));
    if (group == kExpertsOfHost) return host_ranks();
    if (group == kExpertsBetweenHosts) return size(Axis::expert) / host_ranks();
    return 2;
  }

  double size(Axis axis) const { return layout_.mesh().size(axis); }
  int chunks() const { return static_cast<int>(std::max<int64_t>(parallel_.num_virtual_stages_per_pipeline_rank, 1)); }

  // Sums over the layers of a stage, averaged over the stages.
  template <class OfLayer>
  double of_stage(OfLayer&& of_layer) const {
    double sum = 0;
    for (const LayerSpec& layer : specs_) sum += of_layer(layer);
    return sum / stages_;
  }

  double chosen(const LayerSpec& layer) const {
    return layer.moe ? static_cast<double>(model_.moe.moe_router_topk) : 1;
  }
  static double features(const LayerSpec& layer) { return static_cast<double>(layer.mlp.ffn_hidden_size); }
  double shared_features(const LayerSpec& layer) const {
    const int64_t beside = layer.parallel_mlp ? layer.parallel_mlp->ffn_hidden_size : 0;
    return layer.moe ? static_cast<double>(shared_experts_mlp(model_.moe, layer.mlp).ffn_hidden_size + beside) : 0;
  }
  // The width of dispatched tokens.
  double row_width() const { return static_cast<double>(expert_width(model_.moe, model_.hidden_size)); }
  // Bytes that the optimizer keeps for an element beside its value: its state, and the remainder of a 16-bit value's
  // master. A lower bound: the lightest parameter group, and only state that is kept for every element.
  double optimizer_bytes() const {
    size_t least = SIZE_MAX;
    const ParamGroups groups(config_.optimizer);
    for (const ParamGroup& group : groups.all()) {
      size_t bytes = 0;
      for (const OptimizerStateSpec& state : optimizer_traits(group.settings.optimizer).state(group.settings))
        if (state.shape == OptimizerStateSpec::Shape::elements)
          bytes += size_of(state.dtype.value_or(accumulator(config_.model.compute_dtype())));
      least = std::min(least, bytes);
    }
    return static_cast<double>(least) + remainder_bytes();
  }
  double remainder_bytes() const {
    const DType value = config_.model.compute_dtype();
    return is_split(value) ? static_cast<double>(size_of(remainder_dtype(value))) : 0;
  }
  // Bytes that the update of an element reads and writes.
  double update_bytes() const {
    return static_cast<double>(size_of(config_.gradient_dtype())) + 2 * (value_ + optimizer_bytes());
  }

  // Parameters that a rank holds, and those of its own shard, averaged over the stages.
  double held(bool experts) const {
    return experts ? static_cast<double>(counts_.experts) / (stages_ * size(Axis::expert) * size(Axis::expert_tensor))
                   : static_cast<double>(counts_.exact - counts_.experts) / (stages_ * tensor_);
  }
  double owned(bool experts) const { return held(experts) / layout_.sharding_ranks(experts); }

  // The trainable share of dense parameters and of experts.
  struct Shares {
    double dense = 1, experts = 1;
  };
  static Shares shares_of(const ModelConfig& model) {
    if (!Freeze(model).any()) return {};
    const TrainedParameters counts = count_trained(model);
    const auto share = [](int64_t some, int64_t all) {
      return all > 0 ? static_cast<double>(some) / static_cast<double>(all) : 1.0;
    };
    return {share(counts.all - counts.experts, counts.held - counts.held_experts),
            share(counts.experts, counts.held_experts)};
  }
  double trained(bool experts) const { return experts ? trained_.experts : trained_.dense; }

  // Experts of a layer on a rank, and slots for replicas of other ranks' experts.
  double own_experts() const { return static_cast<double>(model_.moe.num_experts) / size(Axis::expert); }
  double replicas() const { return static_cast<double>(replica_slots(model_.moe, layout_.mesh().size(Axis::expert))); }

  // Expert-parallel ranks that share a host if tokens travel by hosts; else all of them.
  double host_ranks() const { return static_cast<double>(layout_.expert_ranks_of_host(0).size()); }

  // Rows of a rank's receive buffer for a micro-batch: the bound, not what balanced routing fills.
  double pool_rows() const {
    const double here = tokens_ / tensor_, each = own_experts() + replicas();
    const auto chosen = static_cast<double>(model_.moe.moe_router_topk);
    const double rows = std::min(chosen, each) * here * size(Axis::expert);
    const bool by_experts = model_.moe.moe_expert_capacity_factor == 0 && model_.moe.experts_choose();
    const double factor = by_experts ? 1 : model_.moe.moe_expert_capacity_factor, pool = model_.moe.moe_pool_factor;
    const double sent = factor > 0 ? std::min(rows, factor * chosen * here * size(Axis::expert)) : rows;
    return pool > 0 ? std::min(sent, std::max(pool * chosen, size(Axis::expert)) * here) : sent;
  }

  // The send capacity per rank pair relative to a balanced load (moe/dispatchers/receive_buffers.h); 0: exact counts.
  double part_factor() const {
    if (peers_of(parallel_, layout_, 0) != PeerAccess::none) return 0;
    const auto chosen = static_cast<double>(model_.moe.moe_router_topk);
    return std::min(model_.moe.moe_exchange_factor, std::min(chosen, own_experts()) * size(Axis::expert) / chosen);
  }

  // FLOPs of the blocks' matrix products without attention, averaged over the stages: per weight and token two forward
  // and four backward, or two if it is frozen, plus the recomputed forward.
  double flops_of_blocks() const {
    const double tokens = static_cast<double>(config_.train.global_batch_size * config_.data.seq_length);
    const double table = static_cast<double>(model_.padded_vocab_size()) * width_;
    const double weights = static_cast<double>(counts_.active - counts_.looked_up) -
                           table * (model_.untie_embeddings_and_output_weights ? 2 : 1);
    const double share = std::min(
        1.0, (held(false) * trained(false) + held(true) * trained(true)) / std::max(held(false) + held(true), 1.0));
    return recomputed() * tokens * (4 + 2 * share) * weights / static_cast<double>(parallel_.ranks);
  }
  double recomputed() const { return model_.recompute() == Recompute::full ? 4.0 / 3 : 1; }
  // Bytes moved by kernels other than matrix products: norms, activations, rotary, sums, dispatch.
  double moved() const {
    const auto moved = [&](const LayerSpec& layer) {
      return 20 * width_ + kStreamPasses * streams() + 6 * (chosen(layer) * features(layer) + shared_features(layer));
    };
    return micro_batches_ * tokens_ / tensor_ * value_ * of_stage(moved);
  }

  // Channels of parallel residual streams; 0: the stream is a single one.
  double streams() const { return model_.streams.any() ? static_cast<double>(model_.residual_width()) : 0; }
  // How often the halves of a block read or write them, forward and backward.
  static constexpr double kStreamPasses = 28;

  // Bytes of activations that a block stores for a micro-batch.
  double block_bytes(const LayerSpec& layer, Recompute recompute) const {
    const bool none = recompute == Recompute::none;
    const double halves = layer.has_mlp() ? 2 : 1;
    const double stream = halves * ((none ? 2 : 1) * width_ + streams()),
                 mixer = mixer_kind(layer.mixer).kept_channels();
    const double inner = (none ? 3 : 2) * features(layer), shared = (none ? 3 : 2) * shared_features(layer);
    const double here = tokens_ / tensor_;
    const double whole = config_.overlaps_tensor_exchanges() ? tokens_ * width_ * (layer.moe ? 1 : 2) : 0;
    if (!layer.moe) return value_ * (here * (stream + mixer + inner) + whole);
    const double gathered = size(Axis::expert_tensor);
    return value_ * (here * (stream + mixer + shared) + whole + pool_rows() * ((1 + gathered) * row_width() + inner));
  }

  ContextUse context_use(const LayerSpec& layer) const {
    return mixer_kind(layer.mixer)
        .context_use(parallel_.context_exchange(), parallel_.tensor_model_parallel_size,
                     parallel_.context_parallel_size);
  }
  // Bytes per token that a layer's mixer sends to one context-parallel rank, forward and backward: channels that travel
  // around a ring, such as keys and values, with their gradients; or exchanged channels, such as heads.
  double ring_bytes(const LayerSpec& layer) const { return context_use(layer).ring_channels * (2 * value_ + 4); }
  double exchanged_bytes(const LayerSpec& layer) const { return 2 * value_ * context_use(layer).exchanged_channels; }

  void add_model_exchanges(SentBytes& sent) const {
    const double passes = layers_ * micro_batches_, stream = tokens_ * width_ * value_;
    const auto add = [&](Axis axis, const char* operation, double bytes) {
      if (size(axis) > 1) sent[std::string(name_of(axis))][operation] += bytes;
    };
    const double others = (tensor_ - 1) / tensor_;
    const double gathers =
        config_.overlaps_tensor_exchanges() ? 4 : 6;  // otherwise the backward repeats the gathers of inputs
    add(Axis::tensor, "all_gather", gathers * passes * stream * others);
    add(Axis::tensor, "reduce_scatter", 4 * passes * stream * others);
    constexpr double kSums = 4 * 4;  // one sum per token for queries and one for keys, forward and backward
    const auto summed = [](const LayerSpec& layer) {
      return mixer_kind(layer.mixer).sums_over_tensor_ranks() ? 1.0 : 0.0;
    };
    if (const double norms = of_stage(summed); norms > 0)
      add(Axis::tensor, "all_reduce", 2 * others * micro_batches_ * norms * tokens_ * kSums);
    const double hops = micro_batches_ * (context_ - 1) * tokens_;
    if (const double ring = of_stage([&](const LayerSpec& layer) { return ring_bytes(layer); }); ring > 0)
      add(Axis::context, "send", hops * ring);
    if (const double heads = of_stage([&](const LayerSpec& layer) { return exchanged_bytes(layer); }); heads > 0)
      add(Axis::context, "all_to_all_equal", hops * heads);
    add(Axis::pipeline, "send", 2 * micro_batches_ * chunks() * stream / tensor_);
    const double moe_passes = micro_batches_ * of_stage([](const LayerSpec& layer) { return layer.moe ? 1.0 : 0.0; });
    if (moe_passes == 0) return;
    const double experts = size(Axis::expert), cut = size(Axis::expert_tensor);
    const double rows = tokens_ / tensor_ * row_width() * value_;
    if (model_.moe.moe_token_dispatcher_type == "allgather") {
      add(Axis::expert, "all_gather", 2 * moe_passes * rows * (experts - 1));
      add(Axis::expert, "reduce_scatter", 2 * moe_passes * rows * (experts - 1));
    } else {
      add_rows(sent, 4 * moe_passes * rows);
      const double gradient = static_cast<double>(size_of(config_.gradient_dtype())) * trained(true);
      const double of_expert = held(true) / own_experts() * (2 * value_ + gradient);  // summed over all layers
      if (replicas() > 0)
        add(Axis::expert, "all_to_all", micro_batches_ * replicas() * of_expert * (experts - 1) / experts);
    }
    add(Axis::expert_tensor, "all_gather", 2 * moe_passes * pool_rows() * row_width() * value_ * (cut - 1));
    add(Axis::expert_tensor, "reduce_scatter", 2 * moe_passes * pool_rows() * row_width() * value_ * (cut - 1));
  }

  // Adds the dispatch and combine of tokens in forward and backward; `tokens` is the bytes of the tokens, each counted
  // once. Between hosts a token goes to each host that it visits, within a host to each rank that it visits.
  void add_rows(SentBytes& sent, double tokens) const {
    const MoeConfig& moe = model_.moe;
    const auto chosen = static_cast<double>(moe.moe_router_topk);
    const double ranks = host_ranks(), hosts = size(Axis::expert) / ranks, parts = part_factor();
    const auto add = [&](const std::string& group, double factor, double bytes) {
      if (bytes > 0) sent[group][factor > 0 ? "all_to_all_equal" : "all_to_all"] += (factor > 0 ? factor : 1) * bytes;
    };
    add(layout_.has_expert_hosts() ? kExpertsOfHost : std::string(name_of(Axis::expert)), parts,
        chosen * tokens * (ranks - 1) / ranks);
    if (!layout_.has_expert_hosts()) return;
    const double visited =
        share_of_host(moe.moe_router_topk, static_cast<int64_t>(hosts), moe.num_experts / static_cast<int64_t>(hosts));
    const double factor = moe.moe_exchange_factor > 0 ? std::min(moe.moe_exchange_factor, 1 / visited) : 0;
    add(kExpertsBetweenHosts, factor, visited * tokens * (hosts - 1));
  }

  void add_state_exchanges(SentBytes& sent, bool experts) const {
    const double gradient = static_cast<double>(size_of(config_.gradient_dtype())) * trained(experts) * held(experts);
    const Sharding sharding = parallel_.sharding();
    const double owners = layout_.sharding_ranks(experts);
    if (owners == 1) {
      const Axes all =
          experts ? layout_.mesh().effective({Axis::expert_replicate, Axis::expert_shard}) : layout_.token_axes();
      double ranks = 1;
      for (const Axis axis : all) ranks *= size(axis);
      if (ranks > 1) sent[describe(all)]["all_reduce"] += 2 * gradient * (ranks - 1) / ranks;
      return;
    }
    const double others = (owners - 1) / owners;
    auto& operations = sent[describe(layout_.mesh().effective(layout_.sharding_axes(experts)))];
    operations["reduce_scatter_uneven"] += gradient * others * (sharding >= Sharding::gradients ? micro_batches_ : 1);
    const double gathers = sharding < Sharding::parameters || !parallel_.reshard_after_forward ? 1 : 2 * micro_batches_;
    const double gathered = held(experts) * (sharding < Sharding::parameters ? trained(experts) : 1);
    operations["all_gather_uneven"] += value_ * gathered * others * gathers;
  }

  const RunConfig& config_;
  const ModelConfig& model_;
  const ParallelConfig& parallel_;
  const Layout layout_;
  const ParameterCounts counts_;
  const Shares trained_;
  double tensor_, context_, stages_;
  double micro_batches_;  // per rank and step
  double tokens_;         // per micro-batch, in this rank's part of the sequences
  double value_;          // bytes of one value
  double width_;
  std::vector<LayerSpec> specs_;
  double layers_;  // per stage, averaged
  double heads_;   // uses of the head: by the model and by each MTP module
};

}  // namespace

// A search estimates thousands of layouts. So pipelines are not simulated: they wait as long as if all stages were like
// the first.
//
// This second model of a step stays beside the meta device because a search would otherwise have to plan every layout
// that can run: for Mixtral 8x7B on 64 GPUs it considers 15,600 and, thanks to the estimates, plans 64, in 13 s of
// processor time altogether (docs/performance-log.md).
LayoutEstimate estimate_layout(const ResolvedConfig& config, const Cluster& cluster, const Ceilings& ceilings) {
  const Estimator estimator(config);
  Plan plan = plan_outline(config);
  plan.stages.resize(1);
  double first = 0, slowest = 0;
  for (const RankPlan& rank : estimator.ranks()) {
    plan.ranks = {rank};
    const double seconds = predict_step(plan, config, ceilings, &cluster).seconds;
    if (first == 0) first = seconds;
    slowest = std::max(slowest, seconds);
  }
  return {slowest + plan.bubble * first, static_cast<int64_t>(estimator.state_bytes()),
          static_cast<int64_t>(estimator.bytes())};
}

}  // namespace witan
