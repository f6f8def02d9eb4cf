#include "witan/moe/topk.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "witan/kernels/blocks.h"
#include "witan/kernels/dispatch.h"
#include "witan/moe/balance.h"
#include "witan/moe/capacity.h"
#include "witan/moe/selection.h"
#include "witan/ops/jitter.h"
#include "witan/ops/linear.h"
#include "witan/ops/redistribute.h"
#include "witan/ops/view.h"

namespace witan {
namespace {

double max_over_mean(std::span<const double> counts) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  return total > 0 ? std::ranges::max(counts) * static_cast<double>(counts.size()) / total : 0;
}

}  // namespace

std::vector<RouterStatistic> declare_topk_statistics() {
  using Derived = RouterStatistic::Derived;
  return {{.name = kRouterEntropy, .tag = "router-entropy"},
          {.name = kExpertCounts,
           .shape = RouterStatistic::Shape::expert,
           .over_micro_batches = RouterStatistic::Reduce::sum,
           .over_layers = {},
           .whole_numbers = true,
           .tag = "expert-load"},
          {.name = kLoadMaxOverMean,
           .over_layers = RouterStatistic::Reduce::max,
           .tag = "expert-load/max over mean",
           .derived = Derived{kExpertCounts, Derived::From::step, max_over_mean}}};
}

namespace ops {
namespace {

// The losses and the entropy of all tokens of a micro-batch, of which `part` was formed from some, with its B sequences
// balanced by themselves; its counts become those of all. Returns the counts that the balance is of: [E] where B is 1,
// or [B, E]. `group`: the ranks with the other parts, or null.
Tensor join_parts(Stream& s, kernels::RouterOutputs& part, int64_t B, Group* group) {
  const int64_t T = part.ids.size(0), K = part.ids.size(1), E = part.counts.size(0);
  const Tensor sums = s.empty({B * E + kernels::kTokenSums}, part.lse.dtype());
  const Tensor counts = s.empty({B > 1 ? 1 + B : 1, E}, part.counts.dtype());  // of all sequences, then of each
  const Tensor of_all = counts.narrow(0, 0, 1).reshape({E});
  Tensor of_each = B > 1 ? counts.narrow(0, 1, B) : of_all;
  kernels::router_sums(s, sums, part);
  s.copy(of_all, part.counts);
  if (B > 1) kernels::count_assignments(s, of_each, part.ids);
  if (group) {
    group->all_reduce(s, sums);
    group->all_reduce(s, counts);
  }
  kernels::router_losses(s, part, {sums, of_each, T * (group ? group->size() : 1), K});
  part.counts = of_all;
  return of_each;
}

Tensor sum_of(Stream& s, const Tensor& counts, Group& parts) {
  const Tensor all = s.empty_like(counts);
  s.copy(all, counts);
  parts.all_reduce(s, all);
  return all;
}

}  // namespace

Routing route(Tape& tape, const Var& logits, const TopkSelection& selection, Group* parts, int64_t sequences) {
  const int64_t topk = selection.topk;
  require<ShapeError>(logits.shape().dims() == 2 && topk >= 1 && topk <= logits.size(1),
                      "route: logits must be [T, E] with E >= ", topk, ", got ", logits.shape());
  require<ShapeError>(sequences >= 1 && logits.size(0) % sequences == 0, "route: the ", logits.size(0),
                      " tokens are not those of ", sequences, " sequences of one length");
  require<ShapeError>(logits.dtype() == accumulator(logits.dtype()), "route: logits must be float32 or float64, got ",
                      logits.dtype());
  Stream& s = tape.stream();
  const int64_t T = logits.size(0), E = logits.size(1);
  const DType A = logits.dtype();
  if (parts && parts->size() == 1) parts = nullptr;
  const int ranks = parts ? parts->size() : 1;
  kernels::RouterOutputs out{
      s.empty({T, topk}, DType::i32), s.empty({T, topk}, A), s.empty({T, E}, A), s.empty({T}, A),
      s.empty({E}, DType::i64),       s.empty({1}, A),       s.empty({1}, A),    s.empty({1}, A)};
  kernels::router_forward(s, out, logits.value(), selection.scoring);
  Tensor own_counts = out.counts;
  const Tensor balanced = parts || sequences > 1 ? join_parts(s, out, sequences, parts) : out.counts;
  if (selection.choice) {
    kernels::select_experts(s, out, logits.value(), selection.scoring, *selection.choice);
    own_counts = s.empty({E}, DType::i64);
    kernels::count_assignments(s, own_counts, out.ids);
    out.counts = parts ? sum_of(s, own_counts, *parts) : own_counts;
  }

  const bool from_logits = kernels::scores_each_alone(selection.scoring.scores);
  auto backward = [logits = tape.slot(logits), shape = logits.shape(), A, scoring = selection.scoring, ranks,
                   ids = tape.save(out.ids), weights = tape.save(out.weights),
                   saved_scores = tape.save(from_logits ? logits.value() : out.probs), lse = tape.save(out.lse),
                   counts = tape.save(balanced)](Backward& b, const std::vector<Tensor>& gradients) {
    const Tensor dlogits = b.stream().empty(shape, A);
    kernels::RouterOutputs saved{b.value(ids), b.value(weights), {}, b.value(lse), b.value(counts), {}, {}, {}};
    (kernels::scores_each_alone(scoring.scores) ? saved.logits : saved.probs) = b.value(saved_scores);
    kernels::router_backward(b.stream(), dlogits, {gradients[0], gradients[1], gradients[2]}, saved, scoring, ranks);
    b.add(logits, dlogits);
  };
  const auto vars = tape.record("router", std::vector{out.weights, out.balance, out.z}, {logits}, std::move(backward));
  RouterRecord record{{{kBalanceLoss, vars[1]}, {kZLoss, vars[2]}},
                      {{kRouterEntropy, out.entropy}, {kExpertCounts, out.counts}}};
  return {vars[0], out.ids, out.counts, own_counts, T, std::move(record)};
}

}  // namespace ops

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
  ExpertSelection selection_;
  std::optional<TensorAxis> axis_;  // none: the tokens are this rank's alone
  Group* context_;                  // null: sequences are whole
  Parameter& weight_;
  Parameter* logit_bias_ = nullptr;  // [E]; null: none is learned
  Buffer* bias_ = nullptr;           // [E] float32; null: experts are chosen by their scores alone
  Buffer* load_ = nullptr;           // [E] int64: assignments of a step's tokens, dropped ones included
};

TopkRouter::TopkRouter(const Builder& builder, const MoeConfig& config, int64_t width, Group* context)
    : Router(builder.path),
      config_(config),
      selection_(config, builder.path),
      context_(context),
      weight_([&]() -> Parameter& {
        Builder wide = builder.of_kind(ParameterKind::routers);
        wide.dtype = accumulator(builder.dtype);
        return add_parameter(wide, "weight", {config.num_experts, width}, builder.linear_init(builder.init_std, width));
      }()) {
  if (builder.tensor && builder.tensor->residual.kind == Placement::Kind::shard) axis_.emplace(*builder.tensor);
  if (config.moe_router_add_bias) {
    Builder wide = builder.of_kind(ParameterKind::biases);
    wide.dtype = accumulator(builder.dtype);
    logit_bias_ = &add_parameter(wide, "bias", {config.num_experts}, builder.bias_init(width), false);
  }
  if (!config.moe_router_enable_expert_bias) return;
  const Shape experts = {config.num_experts};
  bias_ = &add_buffer(builder, "expert_bias", experts, DType::f32, 0, BufferSpec::Rule::replicated);
  // Ranks of the tensor axis route the same tokens: all of theirs.
  load_ = &add_buffer(builder, "tokens_per_expert", experts, DType::i64, 0, BufferSpec::Rule::summed);
}

Routing TopkRouter::forward(Tape& tape, const Var& x, Dropping dropping, const TokenSource& source) {
  const ModuleScope scope(tape, *this);
  const Var logits = logits_of(tape, x, source);
  if (axis_) return route_gathered(tape, logits, x.shape(), {dropping, source});
  return route(tape, logits, x.shape().dims() == 3 ? x.size(0) : 1, {dropping, source});
}

// [T, E]
Var TopkRouter::logits_of(Tape& tape, const Var& x, const TokenSource& source) const {
  const auto [T, D] = x.shape().as_rows();
  Var rows = ops::reshape(tape, x, {T, D});
  const kernels::Dropout noise = selection_.jitter(source, x.shape(), axis_ ? &*axis_ : nullptr);
  if (noise.step.defined()) rows = ops::jitter(tape, rows, noise, config_.moe_input_jitter_eps);
  const Var logits = ops::wide_linear(tape, rows, tape.parameter(weight_));
  return logit_bias_ ? ops::add_bias(tape, logits, tape.parameter(*logit_bias_)) : logits;
}

// logits [T, E], of so many sequences
Routing TopkRouter::route(Tape& tape, const Var& logits, int64_t sequences, const How& how) const {
  const bool never = how.dropping == Dropping::never;
  Group* const parts = never ? nullptr : context_;  // what it decides needs no others
  const int64_t runs = never ? 1 : balanced_runs(config_, sequences);
  Stream& stream = tape.stream();
  const auto choice = selection_.choice(stream, {logits.value(), sequences, how.source, how.dropping, parts},
                                        bias_ ? bias_->value() : Tensor());
  Routing routing =
      ops::route(tape, logits, {selection_.per_token(how.dropping), config_.scoring(), choice}, parts, runs);
  if (load_) load_->add(tape, routing.kept);  // nothing is dropped yet
  if (never) return routing;
  const int64_t tokens = logits.size(0) * (parts ? parts->size() : 1);
  routing = ops::limit_to_capacity(stream, std::move(routing), capacity_of(config_, tokens), parts, sequences);
  if (config_.experts_choose()) count_chosen(stream, routing, parts);
  return routing;
}

// What experts did not choose was never assigned to them.
void TopkRouter::count_chosen(Stream& stream, Routing& routing, Group* parts) const {
  routing.counts = parts && parts->size() > 1 ? ops::sum_of(stream, routing.kept, *parts) : routing.kept;
  std::ranges::find(routing.record.others, kExpertCounts, &RouterRecord::Other::name)->value = routing.counts;
}

void TopkRouter::after_update(Stream& stream, const Tensor& step) {
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
