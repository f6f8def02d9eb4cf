#include "witan/moe/router.h"

#include "witan/comm/context.h"
#include "witan/kernels/blocks.h"
#include "witan/kernels/dispatch.h"
#include "witan/kernels/router.h"
#include "witan/ops/linear.h"
#include "witan/ops/redistribute.h"
#include "witan/ops/view.h"

namespace witan {
namespace ops {

namespace {

// The losses of all tokens of a micro-batch, of which `part` was formed from some, with its B sequences balanced by
// themselves; its counts become those of all. Returns the counts that the balance is of: [E] where B is 1, or [B, E].
// `group`: the ranks with the other parts, or null.
Tensor join_parts(Stream& s, kernels::RouterOutputs& part, int64_t B, Group* group) {
  const int64_t T = part.ids.size(0), K = part.ids.size(1), E = part.counts.size(0);
  const Tensor sums = s.empty({B * E + 1}, part.lse.dtype());
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
  kernels::router_losses(s, part.balance, part.z, {sums, of_each, T * (group ? group->size() : 1), K});
  part.counts = of_all;
  return of_each;
}

}  // namespace

Routing route(Tape& tape, const Var& logits, int64_t topk, bool pre_softmax, Group* parts, int64_t sequences) {
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
  kernels::RouterOutputs out{s.empty({T, topk}, DType::i32), s.empty({T, topk}, A), s.empty({T, E}, A), s.empty({T}, A),
                             s.empty({E}, DType::i64),       s.empty({1}, A),       s.empty({1}, A)};
  kernels::router_forward(s, out, logits.value(), pre_softmax);
  const Tensor own_counts = out.counts;
  const Tensor balanced = parts || sequences > 1 ? join_parts(s, out, sequences, parts) : out.counts;

  auto backward = [logits = tape.slot(logits), shape = logits.shape(), A, pre_softmax, ranks, ids = tape.save(out.ids),
                   weights = tape.save(out.weights), probs = tape.save(out.probs), lse = tape.save(out.lse),
                   counts = tape.save(balanced)](Backward& b, const std::vector<Tensor>& gradients) {
    const Tensor dlogits = b.stream().empty(shape, A);
    const kernels::RouterOutputs saved{
        b.value(ids), b.value(weights), b.value(probs), b.value(lse), b.value(counts), {}, {}};
    kernels::router_backward(b.stream(), dlogits, {gradients[0], gradients[1], gradients[2]}, saved, pre_softmax,
                             ranks);
    b.add(logits, dlogits);
  };
  const auto vars = tape.record("router", std::vector{out.weights, out.balance, out.z}, {logits}, std::move(backward));
  return {vars[0], out.ids, out.counts, own_counts, T, vars[1], vars[2]};
}

namespace {

// x [A N, K], seen as [A, N, K] -> [N A, K]
Tensor swapped(Stream& stream, const Tensor& x, int64_t A) {
  const int64_t N = x.size(0) / A, K = x.size(1);
  const Tensor y = stream.empty({N, A, K}, x.dtype(), MemoryTag::workspace);
  kernels::swap_blocks(stream, y, x.reshape({A, N, K}));
  return y.reshape({N * A, K});
}

// weights [T, K]
kernels::Assignments limited(Stream& stream, const kernels::Assignments& all, const Tensor& weights,
                             const kernels::Capacity& capacity) {
  kernels::Assignments kept{stream.empty_like(all.ids), stream.empty_like(all.counts)};
  const Tensor order = stream.empty({all.ids.elements()}, DType::i64, MemoryTag::workspace);
  kernels::limit_to_capacity(stream, kept, order, all, weights, capacity);
  return kept;
}

// The same of B sequences [B S, K], numbered as in Megatron-LM's stream [S, B, D]: the first token of each sequence,
// then the second of each.
kernels::Assignments limited_by_position(Stream& stream, const kernels::Assignments& all, const Tensor& weights,
                                         const kernels::Capacity& capacity, int64_t B) {
  const int64_t T = all.ids.size(0);
  if (B == 1 || T == B) return limited(stream, all, weights, capacity);
  const auto [ids, counts] =
      limited(stream, {swapped(stream, all.ids, B), all.counts}, swapped(stream, weights, B), capacity);
  kernels::Assignments kept{stream.empty_like(all.ids), counts};
  kernels::swap_blocks(stream, kept.ids.reshape({B, T / B, all.ids.size(1)}), ids.reshape({T / B, B, all.ids.size(1)}));
  return kept;
}

}  // namespace

Routing limit_to_capacity(Stream& stream, Routing routing, const kernels::Capacity& capacity, Group* parts,
                          int64_t sequences) {
  const int64_t T = routing.ids.size(0), K = routing.ids.size(1), ranks = parts ? parts->size() : 1;
  if (capacity.per_expert >= T * ranks) return routing;  // a token visits an expert at most once
  const Tensor& weights = routing.weights.value();
  routing.capacity = capacity.per_expert;
  if (ranks == 1) {
    const auto [ids, counts] = limited_by_position(stream, {routing.ids, routing.kept}, weights, capacity, sequences);
    routing.ids = ids;
    routing.kept = counts;
    return routing;
  }
  const auto whole = [&](const Tensor& part) {
    return gather_positions(stream, part.reshape({sequences, T / sequences, K}), *parts).reshape({T * ranks, K});
  };
  const kernels::Assignments all{whole(routing.ids), routing.counts};
  const Tensor kept = limited_by_position(stream, all, whole(weights), capacity, sequences).ids;
  routing.ids = own_positions(stream, kept.reshape({sequences, T * ranks / sequences, K}), *parts).reshape({T, K});
  routing.kept = stream.empty_like(routing.counts);
  kernels::count_assignments(stream, routing.kept, routing.ids);
  return routing;
}

}  // namespace ops

Router::Router(const Builder& builder, const MoeConfig& config, int64_t width, Group* context)
    : Module(builder.path), config_(config), context_(context), weight_([&]() -> Parameter& {
        Builder wide = builder.of_kind(ParameterKind::routers);
        wide.dtype = accumulator(builder.dtype);
        return add_parameter(wide, "weight", {config.num_experts, width}, builder.linear_init(builder.init_std, width));
      }()) {
  if (builder.tensor && builder.tensor->residual.kind == Placement::Kind::shard) axis_.emplace(*builder.tensor);
}

Routing Router::forward(Tape& tape, const Var& x, Dropping dropping) {
  const ModuleScope scope(tape, *this);
  const auto [T, D] = x.shape().as_rows();
  const Var logits = ops::wide_linear(tape, ops::reshape(tape, x, {T, D}), tape.parameter(weight_));
  if (axis_) return route_divided(tape, logits, x.shape(), dropping);
  return route(tape, logits, x.shape().dims() == 3 ? x.size(0) : 1, dropping);
}

// logits [T, E], of so many sequences
Routing Router::route(Tape& tape, const Var& logits, int64_t sequences, Dropping dropping) const {
  Group* const parts = dropping == Dropping::never ? nullptr : context_;  // what it decides needs no others
  const int64_t balanced = config_.balances_sequences() && dropping != Dropping::never ? sequences : 1;
  Routing routing = ops::route(tape, logits, config_.moe_router_topk, config_.moe_router_pre_softmax, parts, balanced);
  if (dropping == Dropping::never) return routing;
  const auto policy = config_.moe_token_drop_policy == "probs" ? DropPolicy::probs : DropPolicy::position;
  const int64_t tokens = logits.size(0) * (parts ? parts->size() : 1);
  return ops::limit_to_capacity(tape.stream(), std::move(routing), {config_.expert_capacity(tokens), policy}, parts,
                                sequences);
}

// logits [B S/n, E] of x [B, S/n, D]
Routing Router::route_divided(Tape& tape, const Var& logits, const Shape& x, Dropping dropping) const {
  const int64_t B = x[0], n = axis_->group.size(), own = x[1], E = logits.size(1), K = config_.moe_router_topk;
  const auto shared = [&](const Var& part, const Placement& from, const Placement& to) {
    return ops::redistribute(tape, part, axis_->group, from, to);
  };
  const Var all = shared(ops::reshape(tape, logits, {B, own, E}), Placement::shard(1), Placement::replicate());
  Routing routing = route(tape, ops::reshape(tape, all, {B * n * own, E}), B, dropping);
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

}  // namespace witan
