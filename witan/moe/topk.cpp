#include "witan/moe/topk.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "witan/kernels/common/blocks.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/moe/selection.h"
#include "witan/moe/capacity.h"
#include "witan/moe/selection.h"
#include "witan/ops/linear/linear.h"
#include "witan/ops/pointwise/dropout.h"
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

// Of the bias by which experts are chosen, where they have one.
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

}  // namespace

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

namespace {

class TopkRouter : public Router {
 public:
  TopkRouter(const Builder& builder, const MoeConfig& config, int64_t width, Group* context);

  Routing forward(Tape& tape, const Var& x, Dropping dropping, const TokenSource& source) override;
  void after_update(Stream& stream, const Tensor& step) override;

 private:
  // What the tokens of x are routed as: they come with their source.
  struct How {
    Dropping dropping;
    const TokenSource& source;
  };
  Var logits_of(Tape& tape, const Var& x, const TokenSource& source) const;
  Routing route(Tape& tape, const Var& logits, int64_t sequences, const How& how) const;
  Routing route_gathered(Tape& tape, const Var& logits, const Shape& x, const How& how) const;
  void count_chosen(Stream& stream, Routing& routing, Group* parts) const;

  MoeConfig config_;
  std::vector<RouterStatistic> losses_;  // that are learnt from; others are statistics alone
  ExpertSelection selection_;
  std::optional<TensorAxis> axis_;  // none: the tokens are this rank's alone
  Group* context_;                  // null: sequences are whole
  Parameter& weight_;
  Parameter* logit_bias_ = nullptr;  // [E]; null: none is learned
  Buffer* bias_ = nullptr;           // [E] float32; null: experts are chosen by their scores alone
  Buffer* load_ = nullptr;           // [E] int64: assignments of a step's tokens, dropped ones included
  Buffer* global_counts_ = nullptr;  // [E] int64: the last step's assignments by scores; null: no loss balances them
  Buffer* quantile_sums_ = nullptr;  // [E + 1] int64: what a step's micro-batches tell of a bias from quantiles
};

TopkRouter::TopkRouter(const Builder& builder, const MoeConfig& config, int64_t width, Group* context)
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
  const Shape experts = {config.num_experts};
  if (config.balances_by_quantiles()) {
    bias_ = &add_buffer(builder, "quantile_bias", experts, DType::f32, 0, BufferSpec::Rule::replicated);
    quantile_sums_ =
        &add_buffer(builder, "quantile_sums", {config.num_experts + 1}, DType::i64, 0, BufferSpec::Rule::summed);
  }
  // Before the first step the load counts as even.
  if (config.balances_last_load())
    global_counts_ = &add_buffer(builder, "global_tokens_per_expert", experts, DType::i64, 1, BufferSpec::Rule::summed);
  if (!config.moe_router_enable_expert_bias) return;
  bias_ = &add_buffer(builder, "expert_bias", experts, DType::f32, 0, BufferSpec::Rule::replicated);
  // Ranks of the tensor axis route the same tokens: all of theirs.
  load_ = &add_buffer(builder, "tokens_per_expert", experts, DType::i64, 0, BufferSpec::Rule::summed);
}

Routing TopkRouter::forward(Tape& tape, const Var& x, Dropping dropping, const TokenSource& source) {
  const ModuleScope scope(tape, *this);
  const Var logits = logits_of(tape, x, source);
  Routing routing = axis_ ? route_gathered(tape, logits, x.shape(), {dropping, source})
                          : route(tape, logits, x.shape().dims() == 3 ? x.size(0) : 1, {dropping, source});
  for (const RouterStatistic& loss : losses_)
    tape.add_loss({loss.name, *loss.loss_coefficient, LossSpec::Over::micro_batches}, routing.record.loss(loss.name));
  return routing;
}

// [T, E]. It reads x as it is, without a view of its own, so that its gradient is added to what is there already.
Var TopkRouter::logits_of(Tape& tape, const Var& x, const TokenSource& source) const {
  const kernels::Dropout noise = selection_.jitter(source, x.shape(), axis_ ? &*axis_ : nullptr);
  const Var in = noise.step.defined() ? ops::jitter(tape, x, noise, config_.moe_input_jitter_eps) : x;
  Var logits = ops::wide_linear(tape, in, tape.parameter(weight_));
  if (logit_bias_) logits = ops::add_bias(tape, logits, tape.parameter(*logit_bias_));
  const auto [T, E] = logits.shape().as_rows();
  return ops::reshape(tape, logits, {T, E});
}

// logits [T, E], of so many sequences
Routing TopkRouter::route(Tape& tape, const Var& logits, int64_t sequences, const How& how) const {
  const bool never = how.dropping != Dropping::by_capacity, alone = how.dropping == Dropping::never;
  Group* const parts = alone ? nullptr : context_;  // what it decides without capacities needs no others
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
  if (bias_) routing.record.others.push_back({kExpertBias, bias_->value()});
  if (selection.quantile.sums.defined()) quantile_sums_->add(tape, selection.quantile.sums);
  if (load_) load_->add(tape, routing.kept);  // nothing is dropped yet
  if (never) return routing;
  const int64_t rows = logits.size(0) * (parts ? parts->size() : 1);
  const kernels::Capacity capacity = capacity_of(config_, rows, routing.tokens);
  routing = ops::limit_to_capacity(stream, std::move(routing), capacity, parts, sequences);
  if (config_.experts_choose()) count_chosen(stream, routing, parts);
  return routing;
}

// What experts did not choose was never assigned to them.
void TopkRouter::count_chosen(Stream& stream, Routing& routing, Group* parts) const {
  routing.counts = ops::sum_over(stream, routing.kept, parts);
  std::ranges::find(routing.record.others, kExpertCounts, &RouterRecord::Other::name)->value = routing.counts;
}

// A router that is not trained chooses as it did, so that what is made of the model is its base and its adapters alone.
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

std::unique_ptr<Router> make_topk_router(const Builder& builder, const MoeConfig& config, int64_t width,
                                         Group* context) {
  return std::make_unique<TopkRouter>(builder, config, width, context);
}

}  // namespace witan
