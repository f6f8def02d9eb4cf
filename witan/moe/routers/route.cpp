#include "witan/moe/routers/route.h"

#include <span>
#include <utility>
#include <vector>

#include "witan/kernels/common/blocks.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/moe/router.h"
#include "witan/kernels/moe/selection.h"

namespace witan::ops {
namespace {

// A balance loss beside out.balance.
struct FurtherLoss {
  size_t of = 0;  // its index in Balance::over
  Tensor counts;  // [E] int64
  Tensor value;   // [1]
};

// The counts from which balance losses are formed.
struct Balanced {
  Tensor counts;               // for out.balance: [E], or [B, E] for B sequences
  kernels::TokenCount tokens;  // of all parts
  std::vector<FurtherLoss> further = {};
};

// Whether the router's kernels form the loss over[i] as out.balance: the loss over sequences if there is one, else the
// loss over the micro-batch.
bool is_first(const Balance& balance, size_t i) {
  using Over = BalanceLoss::Over;
  return balance.over[i] == (balance.is(Over::sequence) ? Over::sequence : Over::micro_batch);
}

bool needs_further(const Balance& balance) {
  return balance.over.size() > 1 || balance.is(BalanceLoss::Over::global_batch);
}

// Forms the losses and the entropy of all of a micro-batch's tokens, of which `part` covers some, and replaces its
// counts by those of all tokens. `group`: the ranks with the other parts, or null.
Balanced join_parts(Stream& s, kernels::RouterOutputs& part, const Balance& balance, Group* group) {
  const int64_t B = balance.by_sequence() ? balance.sequences : 1;
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
  Balanced balanced{of_each, {T * (group ? group->size() : 1)}};
  if (part.sequence_ids.defined()) {
    part.tokens = balanced.tokens.counted = s.empty({1}, DType::i64);
    kernels::count_tokens(s, part.tokens, of_all, K);
  }
  kernels::router_losses(s, part, {sums, of_each, balanced.tokens.rows, K});
  const Tensor of_part = std::exchange(part.counts, of_all);
  for (size_t i = 0; i < balance.over.size(); ++i) {
    if (is_first(balance, i)) continue;
    FurtherLoss& loss = balanced.further.emplace_back();
    loss.of = i;
    const bool global = balance.over[i] == BalanceLoss::Over::global_batch && balance.global_load;
    loss.counts = global ? balance.global_load(of_all, of_part) : of_all;
    loss.value = s.empty({1}, sums.dtype());
    kernels::balance_loss(s, loss.value, sums, loss.counts, balanced.tokens);
  }
  return balanced;
}

// Sets a token's experts to those that were recorded, with the weights that its scores give them.
void choose_recorded(Stream& s, const kernels::RouterOutputs& out, const Tensor& logits,
                     const TopkSelection& selection) {
  require<ShapeError>(selection.recorded.shape() == out.ids.shape(), "route: recorded ids are ",
                      selection.recorded.shape(), ", the router chooses ", out.ids.shape());
  s.copy(out.ids, selection.recorded);
  kernels::weigh_chosen(s, out, logits, selection.scoring);
}

// Writes the choice by logits + bias, and its weights. The sums for the bias cover all parts and are equal on all
// ranks.
void choose_by_quantiles(Stream& s, const kernels::RouterOutputs& out, const Tensor& logits,
                         const TopkSelection& selection, Group* parts) {
  const auto& [bias, sums] = selection.quantile;
  const int64_t T = logits.size(0), E = logits.size(1), K = out.ids.size(1);
  const int64_t ranks = parts ? parts->size() : 1;
  const Tensor margins = sums.defined() ? s.empty({1, E, T}, logits.dtype()) : Tensor();
  kernels::choose_by_quantiles(s, out.ids, margins, logits, bias, out.sequence_ids);
  kernels::weigh_chosen(s, out, logits, selection.scoring);
  if (!sums.defined()) return;
  const Tensor all = parts ? s.empty({ranks, E, T}, logits.dtype()) : margins;
  if (parts) parts->all_gather(s, all, margins);
  kernels::quantile_sums(s, sums, all, K, out.tokens);
}

bool chooses_otherwise(const TopkSelection& selection) {
  return selection.choice || selection.quantile.bias.defined();
}

// Writes a choice that is not by the highest scores.
void choose(Stream& s, const kernels::RouterOutputs& out, const Tensor& logits, const TopkSelection& selection,
            Group* parts) {
  const bool replays = selection.recorded.defined();
  if (selection.quantile.bias.defined())
    choose_by_quantiles(s, out, logits, selection, parts);
  else if (!replays)
    kernels::select_experts(s, out, logits, selection.scoring, *selection.choice);
  if (replays) choose_recorded(s, out, logits, selection);
}

void check(const Var& logits, int64_t topk, int64_t sequences) {
  require<ShapeError>(logits.shape().dims() == 2 && topk >= 1 && topk <= logits.size(1),
                      "route: logits must be [T, E] with E >= ", topk, ", got ", logits.shape());
  require<ShapeError>(sequences >= 1 && logits.size(0) % sequences == 0, "route: the ", logits.size(0),
                      " tokens are not those of ", sequences, " sequences of one length");
  require<ShapeError>(logits.dtype() == accumulator(logits.dtype()), "route: logits must be float32 or float64, got ",
                      logits.dtype());
}

// The gradient [E] of the further losses with respect to every token's probabilities; undefined without such losses.
Tensor further_gradient(Backward& b, std::span<const Tensor> gradients, const std::vector<Saved>& counts,
                        const kernels::TokenCount& tokens) {
  Tensor dprobs;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const Tensor of = b.value(counts[i]);
    const Write how = dprobs.defined() ? Write::accumulate : Write::overwrite;
    if (!dprobs.defined()) dprobs = b.stream().empty(of.shape(), gradients[i].dtype());
    kernels::balance_backward(b.stream(), dprobs, gradients[i], of, tokens, how);
  }
  return dprobs;
}

// Records the weights, balance loss and z-loss of `out`, and the further balance losses.
std::vector<Var> record(Tape& tape, const Var& logits, const kernels::RouterOutputs& out, const Balanced& balanced,
                        const kernels::Scoring& scoring, int ranks) {
  const bool from_logits = kernels::scores_each_alone(scoring.scores);
  std::vector outputs = {out.weights, out.balance, out.z};
  std::vector<Saved> of_further;
  for (const FurtherLoss& loss : balanced.further) {
    outputs.push_back(loss.value);
    of_further.push_back(tape.save(loss.counts));
  }
  auto backward = [logits = tape.slot(logits), shape = logits.shape(), A = logits.dtype(), scoring, ranks, from_logits,
                   ids = tape.save(out.ids), weights = tape.save(out.weights),
                   saved_scores = tape.save(from_logits ? logits.value() : out.probs), lse = tape.save(out.lse),
                   counts = tape.save(balanced.counts), of_further = std::move(of_further), rows = balanced.tokens.rows,
                   counted = out.tokens.defined() ? tape.save(out.tokens) : Saved()](
                      Backward& b, const std::vector<Tensor>& gradients) {
    const Tensor dlogits = b.stream().empty(shape, A);
    const kernels::TokenCount tokens{rows, b.value(counted)};
    const Tensor dprobs = further_gradient(b, std::span(gradients).subspan(3), of_further, tokens);
    kernels::RouterOutputs saved{b.value(ids), b.value(weights), {}, b.value(lse), b.value(counts), {}, {}, {}};
    saved.tokens = tokens.counted;
    (from_logits ? saved.logits : saved.probs) = b.value(saved_scores);
    kernels::router_backward(b.stream(), dlogits, {gradients[0], gradients[1], gradients[2], dprobs}, saved, scoring,
                             ranks);
    b.add(logits, dlogits);
  };
  return tape.record("router", outputs, {logits}, std::move(backward));
}

}  // namespace

Tensor sum_over(Stream& stream, const Tensor& counts, Group* parts) {
  if (!parts || parts->size() == 1) return counts;
  const Tensor all = stream.empty_like(counts);
  stream.copy(all, counts);
  parts->all_reduce(stream, all);
  return all;
}

Routing route(Tape& tape, const Var& logits, const TopkSelection& selection, Group* parts, const Balance& balance) {
  check(logits, selection.topk, balance.sequences);
  Stream& s = tape.stream();
  const int64_t T = logits.size(0), E = logits.size(1), K = selection.topk;
  const DType A = logits.dtype();
  if (parts && parts->size() == 1) parts = nullptr;
  kernels::RouterOutputs out{s.empty({T, K}, DType::i32), s.empty({T, K}, A), s.empty({T, E}, A), s.empty({T}, A),
                             s.empty({E}, DType::i64),    s.empty({1}, A),    s.empty({1}, A),    s.empty({1}, A)};
  out.sequence_ids = selection.sequence_ids;
  kernels::router_forward(s, out, logits.value(), selection.scoring);
  const bool otherwise = chooses_otherwise(selection), replays = selection.recorded.defined() && !otherwise;
  if (replays) {
    choose_recorded(s, out, logits.value(), selection);
    kernels::count_assignments(s, out.counts, out.ids);
  }
  Tensor own_counts = out.counts;
  const bool joined = parts || balance.by_sequence() || needs_further(balance) || replays || out.sequence_ids.defined();
  const Balanced balanced = joined ? join_parts(s, out, balance, parts) : Balanced{out.counts, {T}};
  if (otherwise) {
    choose(s, out, logits.value(), selection, parts);
    own_counts = s.empty({E}, DType::i64);
    kernels::count_assignments(s, own_counts, out.ids);
    out.counts = sum_over(s, own_counts, parts);
  }
  const auto vars = record(tape, logits, out, balanced, selection.scoring, parts ? parts->size() : 1);
  RouterRecord named{{{kZLoss, vars[2]}}, {{kRouterEntropy, out.entropy}, {kExpertCounts, out.counts}}};
  for (size_t i = 0; i < balance.over.size(); ++i)
    if (is_first(balance, i)) named.losses.push_back({balance.name_of(i), vars[1]});
  for (size_t i = 0; i < balanced.further.size(); ++i)
    named.losses.push_back({balance.name_of(balanced.further[i].of), vars[3 + i]});
  return {vars[0], out.ids, out.counts, own_counts, T, out.tokens, std::move(named)};
}

Routing route(Tape& tape, const Var& logits, const TopkSelection& selection, Group* parts, int64_t sequences) {
  return route(tape, logits, selection, parts, Balance{{BalanceLoss::Over::sequence}, sequences});
}

}  // namespace witan::ops
