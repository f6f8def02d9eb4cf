#include "witan/moe/topk.h"

#include <algorithm>
#include <numeric>

#include "witan/kernels/dispatch.h"
#include "witan/moe/balance.h"

namespace witan {
namespace {

double max_over_mean(std::span<const double> counts) {
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  return total > 0 ? std::ranges::max(counts) * static_cast<double>(counts.size()) / total : 0;
}

}  // namespace

std::vector<RouterStatistic> declare_topk_statistics() {
  using Reduce = RouterStatistic::Reduce;
  using Derived = RouterStatistic::Derived;
  return {{.name = kRouterEntropy, .tag = "router-entropy"},
          {.name = kExpertCounts,
           .shape = RouterStatistic::Shape::expert,
           .over_micro_batches = Reduce::sum,
           .over_layers = {},
           .whole_numbers = true,
           .tag = "expert-load"},
          {.name = kLoadMaxOverMean,
           .over_layers = Reduce::max,
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
  kernels::router_forward(s, out, logits.value(), selection.scores);
  const Tensor own_counts = out.counts;
  const Tensor balanced = parts || sequences > 1 ? join_parts(s, out, sequences, parts) : out.counts;

  auto backward = [logits = tape.slot(logits), shape = logits.shape(), A, scores = selection.scores, ranks,
                   ids = tape.save(out.ids), weights = tape.save(out.weights), probs = tape.save(out.probs),
                   lse = tape.save(out.lse),
                   counts = tape.save(balanced)](Backward& b, const std::vector<Tensor>& gradients) {
    const Tensor dlogits = b.stream().empty(shape, A);
    const kernels::RouterOutputs saved{
        b.value(ids), b.value(weights), b.value(probs), b.value(lse), b.value(counts), {}, {}, {}};
    kernels::router_backward(b.stream(), dlogits, {gradients[0], gradients[1], gradients[2]}, saved, scores, ranks);
    b.add(logits, dlogits);
  };
  const auto vars = tape.record("router", std::vector{out.weights, out.balance, out.z}, {logits}, std::move(backward));
  RouterRecord record{{{kBalanceLoss, vars[1]}, {kZLoss, vars[2]}},
                      {{kRouterEntropy, out.entropy}, {kExpertCounts, out.counts}}};
  return {vars[0], out.ids, out.counts, own_counts, T, std::move(record)};
}

}  // namespace ops
}  // namespace witan
