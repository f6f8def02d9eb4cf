#include "witan/moe/routers/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "witan/base/numbers/rng.h"
#include "witan/kernels/common/blocks.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/moe/selection.h"
#include "witan/moe/routers/capacity.h"
#include "witan/moe/routers/expert_scales.h"
#include "witan/moe/routers/selection.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/redistribute.h"
#include "witan/ops/shape/shape.h"

namespace witan {

double max_over_mean(std::span<const double> counts) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  return total > 0 ? std::ranges::max(counts) * static_cast<double>(counts.size()) / total : 0;
}

namespace {

double dead_among(std::span<const double> counts) {
  return static_cast<double>(std::ranges::count(counts, 0.0));
}

// Declares the statistics of a bias by which experts are chosen.
std::vector<RouterStatistic> declare_bias_statistics() {
  using Derived = RouterStatistic::Derived;
  const auto extreme = [](const char* name, const char* tag, auto of) {
    return RouterStatistic{
        .name = name,
        .tag = tag,
        .derived = Derived{kExpertBias, Derived::From::step, [of](std::span<const double> bias) { return of(bias); }}};
  };
  return {{.name = kExpertBias, .shape = RouterStatistic::Shape::expert, .over_layers = {}, .tag = "expert-bias"},
          extreme("expert_bias_min", "expert-bias/min", std::ranges::min),
          extreme("expert_bias_max", "expert-bias/max", std::ranges::max)};
}

std::vector<RouterStatistic> declare_topk_statistics(const MoeConfig& config) {
  using Derived = RouterStatistic::Derived;
  std::vector<RouterStatistic> all = {{.name = kRouterEntropy, .tag = "router-entropy"},
                                      {.name = kExpertCounts,
                                       .shape = RouterStatistic::Shape::expert,
                                       .over_micro_batches = RouterStatistic::Reduce::sum,
                                       .over_layers = {},
                                       .whole_numbers = true,
                                       .tag = "expert-load"},
                                      {.name = kLoadMaxOverMean,
                                       .over_layers = RouterStatistic::Reduce::max,
                                       .tag = "expert-load/max over mean",
                                       .derived = Derived{kExpertCounts, Derived::From::step, max_over_mean}},
                                      {.name = kDeadExperts,
                                       .over_layers = RouterStatistic::Reduce::sum,
                                       .whole_numbers = true,
                                       .tag = "expert-load/dead",
                                       .derived = Derived{kExpertCounts, Derived::From::step, dead_among}}};
  if (config.chooses_by_bias())
    for (RouterStatistic& of_bias : declare_bias_statistics()) all.push_back(std::move(of_bias));
  return all;
}

// Gives every token K different experts, by its id and the router's path alone (Floyd's sampling).
void draw_table(const Builder& builder, const MoeConfig& config, const Buffer& table) {
  if (builder.stream.is_meta()) return;
  const int64_t K = config.moe_router_topk, E = config.num_experts;
  const Philox words(builder.seed, Philox::stream_of(table.name()));
  std::vector<float> chosen(static_cast<size_t>(config.table_tokens * K));
  for (int64_t token = 0; token < config.table_tokens; ++token) {
    float* const of = chosen.data() + token * K;
    for (int64_t k = 0; k < K; ++k) {
      const int64_t most = E - K + k;
      const auto drawn =
          static_cast<float>(words.below(static_cast<uint64_t>(most + 1), static_cast<uint64_t>(token * K + k)));
      of[k] = std::find(of, of + k, drawn) == of + k ? drawn : static_cast<float>(most);
    }
  }
  builder.stream.write(table.value(), chosen.data());
}

// The norm of a router's input: RMSNorm with a weight, whatever norms the model has.
NormConfig of_input(NormConfig norm) {
  norm.normalization = "RMSNorm";
  norm.norm_weight = true;
  norm.norm_bias = norm.apply_layernorm_1p = false;
  return norm;
}

class TopkRouter : public Router {
 public:
  TopkRouter(const Builder& builder, const MoeConfig& config, int64_t width, Group* context, const NormConfig& norm);

  Routing forward(Tape& tape, const Var& x, Dropping dropping, const TokenSource& source) override;
  void after_update(Stream& stream, const Tensor& step) override;

 private:
  // How the tokens of x are routed.
  struct How {
    Dropping dropping;
    const TokenSource& source;
  };
  Var logits_of(Tape& tape, const Var& x, const TokenSource& source);
  Routing route(Tape& tape, const Var& logits, int64_t sequences, const How& how) const;
  Routing route_gathered(Tape& tape, const Var& logits, const Shape& x, const How& how) const;
  Tensor looked_up(Stream& stream, const TokenSource& source, int64_t tokens) const;  // [T, K]
  void count_chosen(Stream& stream, Routing& routing, Group* parts) const;

  MoeConfig config_;
  std::vector<RouterStatistic> losses_;  // with a coefficient; others are statistics only
  ExpertSelection selection_;
  std::optional<TensorAxis> axis_;  // none: tensor-parallel ranks do not divide the tokens
  Group* context_;                  // null: sequences are whole
  Parameter& weight_;
  std::optional<Norm> input_norm_;
  Parameter* expert_scale_ = nullptr;  // [E]; null: none is learned
  Parameter* logit_bias_ = nullptr;    // [E]; null: none is learned
  Buffer* bias_ = nullptr;             // [E] float32; null: experts are chosen by their scores alone
  Buffer* load_ = nullptr;             // [E] int64: assignments of a step's tokens, dropped ones included
  Buffer* global_counts_ = nullptr;    // [E] int64: the last step's assignments by scores; null: no loss balances them
  Buffer* quantile_sums_ = nullptr;    // [E + 1] int64: a step's sums for the update of a bias from quantiles
  Buffer* table_ = nullptr;            // [V, K] float32: the experts of each token; null: scores choose
};

TopkRouter::TopkRouter(const Builder& builder, const MoeConfig& config, int64_t width, Group* context,
                       const NormConfig& norm)
    : Router(builder.path),
      config_(config),
      losses_(declare_losses(config)),
      selection_(config, builder.path),
      context_(context),
      weight_([&]() -> Parameter& {
        Builder wide = builder.of_kind(ParameterKind::routers);
        wide.dtype = accumulator(builder.dtype);
        return add_parameter(wide, "weight", {config.num_experts, width}, builder.linear_init(builder.init_std, width));
      }()) {
  std::erase_if(losses_, [](const RouterStatistic& loss) { return *loss.loss_coefficient == 0; });
  if (builder.tensor && builder.tensor->residual.kind == Placement::Kind::shard) axis_.emplace(*builder.tensor);
  if (config.moe_router_add_bias) {
    Builder wide = builder.of_kind(ParameterKind::biases);
    wide.dtype = accumulator(builder.dtype);
    logit_bias_ = &add_parameter(wide, "bias", {config.num_experts}, builder.bias_init(width), false);
  }
  if (config.table_tokens > 0) {
    table_ = &add_buffer(builder, "token_experts", {config.table_tokens, config.moe_router_topk}, DType::f32, 0,
                         BufferSpec::Rule::replicated);
    draw_table(builder, config, *table_);
  }
  const Shape experts = {config.num_experts};
  if (config.moe_router_input_norm) add_child(input_norm_.emplace(builder / "input_norm", of_input(norm), width));
  if (config.moe_router_expert_scale) {
    Builder wide = builder.of_kind(ParameterKind::norms);
    wide.dtype = accumulator(builder.dtype);
    expert_scale_ = &add_parameter(wide, "expert_scale", experts, Initialization::constant(1), false);
  }
  if (config.balances_by_quantiles()) {
    bias_ = &add_buffer(builder, "quantile_bias", experts, DType::f32, 0, BufferSpec::Rule::replicated);
    quantile_sums_ =
        &add_buffer(builder, "quantile_sums", {config.num_experts + 1}, DType::i64, 0, BufferSpec::Rule::summed);
  }
  // Before the first step the load counts as even.
  if (config.balances_last_load())
    global_counts_ = &add_buffer(builder, "global_tokens_per_expert", experts, DType::i64, 1, BufferSpec::Rule::summed);
  if (!config.moe_router_enable_expert_bias || table_) return;
  bias_ = &add_buffer(builder, "expert_bias", experts, DType::f32, 0, BufferSpec::Rule::replicated);
  // Tensor-parallel ranks all count the same tokens, since each routes all of theirs.
  load_ = &add_buffer(builder, "tokens_per_expert", experts, DType::i64, 0, BufferSpec::Rule::summed);
}

Routing TopkRouter::forward(Tape& tape, const Var& x, Dropping dropping, const TokenSource& source) {
  const ModuleScope scope(tape, *this);
  const Var logits = logits_of(tape, x, source);
  Routing routing = axis_ ? route_gathered(tape, logits, x.shape(), {dropping, source})
                          : route(tape, logits, x.shape().dims() == 3 ? x.size(0) : 1, {dropping, source});
  for (const RouterStatistic& loss : losses_)
    tape.add_loss({loss.name, *loss.loss_coefficient, LossSpec::Over::micro_batches}, routing.record.loss(loss.name));
  if (expert_scale_)
    routing.weights = ops::scale_by_expert(tape, routing.weights, routing.ids, tape.parameter(*expert_scale_));
  return routing;
}

// Returns [T, E]. x is read without a view of its own, so that its gradient accumulates in place.
Var TopkRouter::logits_of(Tape& tape, const Var& x, const TokenSource& source) {
  const kernels::Dropout noise = selection_.jitter(source, x.shape(), axis_ ? &*axis_ : nullptr);
  Var in = input_norm_ ? input_norm_->forward(tape, x, false) : x;
  if (noise.step.defined()) in = ops::jitter(tape, in, noise, {config_.moe_input_jitter_eps});
  Var logits = ops::wide_linear(tape, in, tape.parameter(weight_));
  if (input_norm_) logits = ops::scale(tape, logits, 1 / std::sqrt(static_cast<double>(x.shape().last())));
  if (logit_bias_) logits = ops::add_bias(tape, logits, tape.parameter(*logit_bias_));
  const auto [T, E] = logits.shape().as_rows();
  return ops::reshape(tape, logits, {T, E});
}

// logits [T, E]
Routing TopkRouter::route(Tape& tape, const Var& logits, int64_t sequences, const How& how) const {
  const bool never = how.dropping != Dropping::by_capacity, alone = how.dropping == Dropping::never;
  Group* const parts = alone ? nullptr : context_;  // without capacities no other rank's tokens matter
  Stream& stream = tape.stream();
  TopkSelection selection{selection_.per_token(how.dropping), config_.scoring()};
  if (config_.balances_by_quantiles()) {
    selection.quantile.bias = bias_->value();
    if (!never && tape.training_forward())
      selection.quantile.sums = stream.empty(quantile_sums_->spec().shape, DType::i64);
  } else {
    selection.choice = selection_.choice(stream, {logits.value(), sequences, how.source, how.dropping, parts},
                                         bias_ ? bias_->value() : Tensor());
  }
  selection.recorded = recorded_routes();
  if (table_ && !selection.recorded.defined()) selection.recorded = looked_up(stream, how.source, logits.size(0));
  if (how.source.sequence_ids.defined()) selection.sequence_ids = how.source.sequence_ids.reshape({logits.size(0)});
  Balance balance = balance_of(config_, alone ? 1 : sequences);
  if (!never && balance.is(BalanceLoss::Over::global_batch))
    balance.global_load = [&, micro_batch = how.source.randomness.micro_batch](const Tensor& all, const Tensor& part) {
      if (!global_counts_) return global_load(tape, micro_batch, all);
      global_counts_->add(tape, part);
      return global_counts_->value();  // the last step's, until the sums of this one take their place
    };
  Routing routing = ops::route(tape, logits, selection, parts, balance);
  record_routes(tape, routing.ids, routing.weights.value());
  if (bias_)
    routing.record.others.push_back({kExpertBias, bias_->value()});
  else if (config_.chooses_by_bias())  // a table chooses in this layer
    routing.record.others.push_back({kExpertBias, stream.zeros({config_.num_experts}, DType::f32)});
  if (selection.quantile.sums.defined()) quantile_sums_->add(tape, selection.quantile.sums);
  if (load_) load_->add(tape, routing.kept);  // nothing is dropped yet
  if (never) return routing;
  const int64_t rows = logits.size(0) * (parts ? parts->size() : 1);
  const kernels::Capacity capacity = capacity_of(config_, rows, routing.tokens);
  routing = ops::limit_to_capacity(stream, std::move(routing), capacity, parts, sequences);
  if (config_.experts_choose()) count_chosen(stream, routing, parts);
  return routing;
}

Tensor TopkRouter::looked_up(Stream& stream, const TokenSource& source, int64_t tokens) const {
  require<ShapeError>(source.ids.defined() && source.ids.elements() == tokens, path(),
                      ": a table of experts needs the id of each of ", tokens, " tokens");
  const Tensor ids = stream.empty({tokens, config_.moe_router_topk}, DType::i32);
  kernels::look_up_experts(stream, ids, table_->value(), source.ids.reshape({tokens}));
  return ids;
}

// Tokens that an expert did not choose were never assigned to it.
void TopkRouter::count_chosen(Stream& stream, Routing& routing, Group* parts) const {
  routing.counts = ops::sum_over(stream, routing.kept, parts);
  std::ranges::find(routing.record.others, kExpertCounts, &RouterRecord::Other::name)->value = routing.counts;
}

// A frozen router keeps its biases, so that adapters are the only difference from the base model.
void TopkRouter::after_update(Stream& stream, const Tensor& step) {
  if (weight_.frozen) return;
  if (quantile_sums_) return kernels::update_quantile_bias(stream, bias_->value(), quantile_sums_->value(), step);
  if (bias_)
    kernels::update_expert_bias(stream, bias_->value(), load_->value(), step, config_.moe_router_bias_update_rate);
}

// logits [B S/n, E] of x [B, S/n, D]
Routing TopkRouter::route_gathered(Tape& tape, const Var& logits, const Shape& x, const How& how) const {
  const int64_t B = x[0], n = axis_->group.size(), own = x[1], E = logits.size(1);
  const int64_t K = selection_.per_token(how.dropping);
  const auto shared = [&](const Var& part, const Placement& from, const Placement& to) {
    return ops::redistribute(tape, part, axis_->group, from, to);
  };
  const Var all = shared(ops::reshape(tape, logits, {B, own, E}), Placement::shard(1), Placement::replicate());
  Routing routing = route(tape, ops::reshape(tape, all, {B * n * own, E}), B, how);
  const Var weights =
      shared(ops::reshape(tape, routing.weights, {B, n * own, K}), Placement::replicate(), Placement::shard(1));
  routing.weights = ops::reshape(tape, weights, {B * own, K});
  Stream& stream = tape.stream();
  const Tensor ids = stream.empty({B * own, K}, DType::i32);
  kernels::take_part(stream, ids.reshape({B, own * K}), routing.ids.reshape({B, n, own * K}), axis_->group.rank());
  routing.ids = ids;
  routing.kept = stream.empty({E}, DType::i64);
  kernels::count_assignments(stream, routing.kept, ids);
  return routing;
}

}  // namespace

void Router::attach(const ModelServices& services) {
  if (services.routes) routes_ = services.routes;
  if (services.global_load) global_load_ = services.global_load;
  number_ = services.router;
  Module::attach(services);
}

std::unique_ptr<Router> make_router(const Builder& builder, const MoeConfig& config, int64_t width, Group* context,
                                    const NormConfig& norm) {
  return std::make_unique<TopkRouter>(builder, config, width, context, norm);
}

std::vector<RouterStatistic> router_statistics(const MoeConfig& config) {
  std::vector<RouterStatistic> all = declare_losses(config);
  for (const auto& more : {declare_topk_statistics(config), declare_capacity_statistics(config)})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace witan
