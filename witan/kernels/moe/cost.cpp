#include <cassert>

#include "witan/kernels/gemm/gemm.h"
#include "witan/kernels/moe/capacity.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/kernels/moe/expert_replicas.h"
#include "witan/kernels/moe/receive_buffer.h"
#include "witan/kernels/moe/router.h"
#include "witan/kernels/moe/selection.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::kernels {
namespace {

// Whether one kernel computes a product of `narrow` [T, D] and [E, D]. The decision depends only on shapes and the
// planned device, because the other path takes workspaces, which the meta device must take too.
bool is_fused(Stream& stream, const Tensor& narrow, int64_t E) {
  const int64_t D = narrow.size(1);
  return stream.plans_for_cuda() && narrow.dtype() == DType::bf16 && D % 8 == 0 && E % 8 == 0 && D * E > 0;
}

// Charges a fused kernel, which a CUDA stream runs, and a meta stream that plans for CUDA only counts.
template <class Work>
void charge_fused(Stream& stream, const char* name, const Tensor& x, int64_t E, double bytes, const Work& work) {
  charge(stream, name, {2.0 * static_cast<double>(x.elements()) * static_cast<double>(E), bytes}, work);
}

// x converted to `dtype`.
Tensor in_dtype(Stream& stream, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const Tensor out = stream.empty(x.shape(), dtype, MemoryTag::workspace);
  cast(stream, out, x);
  return out;
}

}  // namespace

void wide_linear(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w) {
  assert(x.contiguous() && w.contiguous() && y.contiguous() && w.dtype() == accumulator(x.dtype()));
  assert(y.dtype() == w.dtype() && y.size(0) == x.size(0) && y.size(1) == w.size(0) && x.size(1) == w.size(1));
  const int64_t E = w.size(0);
  if (is_fused(stream, x, E))
    return charge_fused(stream, "wide_linear", x, E, bytes_of(y, x, w),
                        [&] { WITAN_CALL_CUDA(wide_linear, stream, y, x, w); });
  gemm(stream, y, Write::overwrite, in_dtype(stream, x, w.dtype()), Transpose::no, w, Transpose::yes);
}

void wide_linear_backward_input(Stream& stream, const Tensor& dx, Write write, const Tensor& dy, const Tensor& w) {
  assert(dx.contiguous() && dy.contiguous() && w.contiguous() && w.dtype() == accumulator(dx.dtype()));
  assert(dy.dtype() == w.dtype() && dy.size(0) == dx.size(0) && dy.size(1) == w.size(0) && dx.size(1) == w.size(1));
  const int64_t E = w.size(0);
  if (is_fused(stream, dx, E))
    return charge_fused(stream, "wide_linear_backward_input", dx, E,
                        bytes_of(dx, dy, w) + (write == Write::accumulate ? bytes_of(dx) : 0.0),
                        [&] { WITAN_CALL_CUDA(wide_linear_backward_input, stream, dx, write, dy, w); });
  if (dx.dtype() == w.dtype()) return gemm(stream, dx, write, dy, Transpose::no, w, Transpose::no);
  const Tensor wide = stream.empty(dx.shape(), w.dtype(), MemoryTag::workspace);
  gemm(stream, wide, Write::overwrite, dy, Transpose::no, w, Transpose::no);
  if (write == Write::accumulate) return accumulate(stream, dx, write, wide);
  cast(stream, dx, wide);
}

void wide_linear_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x) {
  assert(dw.contiguous() && dy.contiguous() && x.contiguous() && dy.dtype() == accumulator(x.dtype()));
  assert(dy.size(0) == x.size(0) && dw.size(0) == dy.size(1) && dw.size(1) == x.size(1));
  const int64_t E = dw.size(0), sums_bytes = dw.elements() * size_of(DType::f32);
  if (is_fused(stream, x, E) && sums_bytes <= Stream::kScratchBytes)
    return charge_fused(stream, "wide_linear_backward_weight", x, E,
                        bytes_of(dw, dy, x) + (write == Write::accumulate ? bytes_of(dw) : 0.0),
                        [&] { WITAN_CALL_CUDA(wide_linear_backward_weight, stream, dw, write, dy, x); });
  const Tensor wide = in_dtype(stream, x, dy.dtype());
  if (dw.dtype() == dy.dtype()) return gemm(stream, dw, write, dy, Transpose::yes, wide, Transpose::no);
  const Tensor sum = stream.empty(dw.shape(), dy.dtype(), MemoryTag::workspace);
  gemm(stream, sum, Write::overwrite, dy, Transpose::yes, wide, Transpose::no);
  accumulate(stream, dw, write, sum);
}

void router_forward(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring) {
  const auto elements = static_cast<double>(logits.elements());
  const Cost cost{elements * static_cast<double>(7 + out.ids.size(1)),
                  bytes_of(logits, out.ids, out.weights, out.probs, out.lse, out.counts, out.sequence_ids)};
  WITAN_LAUNCH(stream, router_forward, cost, out, logits, scoring);
}

void count_tokens(Stream& stream, const Tensor& tokens, const Tensor& counts, int64_t topk) {
  const Cost cost{static_cast<double>(counts.elements()), bytes_of(tokens, counts)};
  WITAN_LAUNCH(stream, count_tokens, cost, tokens, counts, topk);
}

void update_expert_bias(Stream& stream, const Tensor& bias, const Tensor& load, const Tensor& step, double rate) {
  const Cost cost{4.0 * static_cast<double>(bias.elements()), 2 * bytes_of(bias) + bytes_of(load)};
  WITAN_LAUNCH(stream, update_expert_bias, cost, bias, load, step, rate);
}

void router_sums(Stream& stream, const Tensor& sums, const RouterOutputs& part) {
  const Cost cost{static_cast<double>(part.probs.elements() + 2 * part.lse.elements()),
                  bytes_of(sums, part.probs, part.lse)};
  WITAN_LAUNCH(stream, router_sums, cost, sums, part);
}

void router_losses(Stream& stream, const RouterOutputs& out, const RouterTotals& totals) {
  const Cost cost{2.0 * static_cast<double>(totals.counts.elements()),
                  bytes_of(out.balance, out.z, out.entropy, totals.sums, totals.counts)};
  WITAN_LAUNCH(stream, router_losses, cost, out, totals);
}

void router_backward(Stream& stream, const Tensor& dlogits, const RouterGradients& gradients, const RouterOutputs& out,
                     const Scoring& scoring, int parts) {
  const Cost cost{
      6.0 * static_cast<double>(dlogits.elements()),
      bytes_of(dlogits, gradients.weights, out.ids, out.weights, out.probs, out.logits, out.lse, out.counts)};
  WITAN_LAUNCH(stream, router_backward, cost, dlogits, gradients, out, scoring, parts);
}

void select_experts(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring,
                    const Selection& selection) {
  const double passes = static_cast<double>(out.ids.size(1) + selection.groups * selection.group_score_topk);
  const Cost cost{static_cast<double>(logits.elements()) * (5 + passes),
                  bytes_of(out.ids, out.weights, logits, selection.bias, selection.random.ids)};
  WITAN_LAUNCH(stream, select_experts, cost, out, logits, scoring, selection);
}

void look_up_experts(Stream& stream, const Tensor& out, const Tensor& table, const Tensor& tokens) {
  WITAN_LAUNCH(stream, look_up_experts, (Cost{0, 2 * bytes_of(out) + bytes_of(tokens)}), out, table, tokens);
}

void weigh_chosen(Stream& stream, const RouterOutputs& out, const Tensor& logits, const Scoring& scoring) {
  const Cost cost{5.0 * static_cast<double>(out.ids.elements()), 2 * bytes_of(out.ids, out.weights)};
  WITAN_LAUNCH(stream, weigh_chosen, cost, out, logits, scoring);
}

// The cost is that of one iteration, since the number of iterations is not known here.
void sinkhorn_bias(Stream& stream, const Tensor& bias, const Tensor& logits, int64_t iterations, double tolerance,
                   const Tensor& sequence_ids) {
  const Cost cost{6.0 * static_cast<double>(logits.elements()), bytes_of(bias, logits, sequence_ids)};
  WITAN_LAUNCH(stream, sinkhorn_bias, cost, bias, logits, iterations, tolerance, sequence_ids);
}

void choose_by_quantiles(Stream& stream, const Tensor& ids, const Tensor& margins, const Tensor& logits,
                         const Tensor& bias, const Tensor& sequence_ids) {
  const Cost cost{static_cast<double>(logits.elements()) * static_cast<double>(3 + ids.size(1)),
                  bytes_of(ids, margins, logits, bias, sequence_ids)};
  WITAN_LAUNCH(stream, choose_by_quantiles, cost, ids, margins, logits, bias, sequence_ids);
}

void quantile_sums(Stream& stream, const Tensor& sums, const Tensor& margins, int64_t topk, const Tensor& tokens) {
  const Cost cost{static_cast<double>(margins.elements()), bytes_of(sums, margins)};
  WITAN_LAUNCH(stream, quantile_sums, cost, sums, margins, topk, tokens);
}

void update_quantile_bias(Stream& stream, const Tensor& bias, const Tensor& sums, const Tensor& step) {
  const Cost cost{3.0 * static_cast<double>(bias.elements()), bytes_of(bias, sums)};
  WITAN_LAUNCH(stream, update_quantile_bias, cost, bias, sums, step);
}

void balance_loss(Stream& stream, const Tensor& loss, const Tensor& sums, const Tensor& counts,
                  const TokenCount& tokens) {
  const Cost cost{2.0 * static_cast<double>(sums.elements()), bytes_of(loss, sums, counts)};
  WITAN_LAUNCH(stream, balance_loss, cost, loss, sums, counts, tokens);
}

void balance_backward(Stream& stream, const Tensor& dprobs, const Tensor& dloss, const Tensor& counts,
                      const TokenCount& tokens, Write write) {
  const Cost cost{2.0 * static_cast<double>(counts.elements()), bytes_of(dprobs, dloss, counts)};
  WITAN_LAUNCH(stream, balance_backward, cost, dprobs, dloss, counts, tokens, write);
}

void limit_to_capacity(Stream& stream, const Assignments& kept, const Tensor& order, const Assignments& all,
                       const Tensor& weights, const Capacity& capacity) {
  const Cost cost{0, bytes_of(kept.ids, kept.counts, all.ids, all.counts, weights) + 2 * bytes_of(order)};
  WITAN_LAUNCH(stream, limit_to_capacity, cost, kept, order, all, weights, capacity);
}

void send_order(Stream& stream, const Tensor& slot, const Tensor& source, const Tensor& ids, const Tensor& counts) {
  WITAN_LAUNCH(stream, send_order, (Cost{0, bytes_of(slot, source, ids, counts)}), slot, source, ids, counts);
}

void local_order(Stream& stream, const LocalOrder& order, const Tensor& ids, const Tensor& counts,
                 const Tensor& weights) {
  const Cost cost{0, bytes_of(order.slot, order.source, order.row_weights, ids, weights) + 3 * bytes_of(counts)};
  WITAN_LAUNCH(stream, local_order, cost, order, ids, counts, weights);
}

void rank_counts(Stream& stream, const Tensor& send_counts, const Tensor& counts) {
  WITAN_LAUNCH(stream, rank_counts, (Cost{0, bytes_of(send_counts, counts)}), send_counts, counts);
}

void receive_order(Stream& stream, const RowGroups& groups, const Tensor& recv_counts, const Tensor& place,
                   const Tensor& received) {
  WITAN_LAUNCH(stream, receive_order, (Cost{0, bytes_of(recv_counts, place) + 3 * bytes_of(received)}), groups,
               recv_counts, place, received);
}

void gathered_groups(Stream& stream, const RowGroups& groups, const Tensor& received) {
  WITAN_LAUNCH(stream, gathered_groups, (Cost{0, 3 * bytes_of(received)}), groups, received);
}

void local_choices(Stream& stream, const Tensor& local, const Tensor& ids, int64_t first, int64_t experts) {
  WITAN_LAUNCH(stream, local_choices, (Cost{0, bytes_of(local, ids)}), local, ids, first, experts);
}

void count_assignments(Stream& stream, const Tensor& counts, const Tensor& ids) {
  WITAN_LAUNCH(stream, count_assignments, (Cost{0, bytes_of(counts, ids)}), counts, ids);
}

void merge_order(Stream& stream, const RowGroups& groups, const Tensor& place, const Tensor& buffers,
                 int64_t capacity) {
  WITAN_LAUNCH(stream, merge_order, (Cost{0, bytes_of(place, buffers)}), groups, place, buffers, capacity);
}

void gather_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, int64_t divisor) {
  WITAN_LAUNCH(stream, gather_rows, (Cost{0, 2 * bytes_of(y) + bytes_of(index)}), y, x, index, divisor);
}

void gather_first_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, const Tensor& counts) {
  WITAN_LAUNCH(stream, gather_first_rows, (Cost{0, 2 * bytes_of(y) + bytes_of(index)}), y, x, index, counts);
}

void scatter_first_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, const Tensor& counts) {
  WITAN_LAUNCH(stream, scatter_first_rows, (Cost{0, 2 * bytes_of(x) + bytes_of(index)}), y, x, index, counts);
}

void sum_assignments(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& slot) {
  const auto added = static_cast<double>(slot.elements() * y.shape().last());
  const Cost cost{added, bytes_of(y, slot) + added * static_cast<double>(size_of(x.dtype()))};
  WITAN_LAUNCH(stream, sum_assignments, cost, y, x, slot);
}

void spread_to_parts(Stream& stream, const Tensor& slot, const Tensor& parts, const Tensor& source,
                     const Tensor& counts) {
  WITAN_LAUNCH(stream, spread_to_parts, (Cost{0, bytes_of(slot, parts, source, counts)}), slot, parts, source, counts);
}

void find_in_parts(Stream& stream, const Tensor& arrival, const RowGroups& groups, int64_t part_rows) {
  WITAN_LAUNCH(stream, find_in_parts, (Cost{0, bytes_of(arrival, groups.source_begin, groups.source_count)}), arrival,
               groups, part_rows);
}

void choose_hosts(Stream& stream, const Tensor& hosts, const Tensor& ids, int64_t experts) {
  WITAN_LAUNCH(stream, choose_hosts, (Cost{0, bytes_of(hosts, ids)}), hosts, ids, experts);
}

void number_on_hosts(Stream& stream, const Tensor& numbers, const Tensor& ids, const Tensor& hosts,
                     const Tensor& source, int64_t experts) {
  WITAN_LAUNCH(stream, number_on_hosts, (Cost{0, bytes_of(numbers, ids, hosts, source)}), numbers, ids, hosts, source,
               experts);
}

void limit_to_buffer(Stream& stream, const SentAssignments& sent, const Tensor& fill, const Tensor& ids,
                     const Tensor& counts, const PassBounds& bounds) {
  WITAN_LAUNCH(stream, limit_to_buffer, (Cost{0, bytes_of(sent.ids, sent.counts, ids, counts)}), sent, fill, ids,
               counts, bounds);
}

void number_rows(Stream& stream, const Tensor& index) {
  WITAN_LAUNCH(stream, number_rows, (Cost{0, bytes_of(index)}), index);
}

void skip_overflow(Stream& stream, const Tensor& step, const Tensor& fill) {
  WITAN_LAUNCH(stream, skip_overflow, (Cost{0, bytes_of(fill)}), step, fill);
}

void choose_replicas(Stream& stream, const ReplicaChoice& choice, const Tensor& counts) {
  WITAN_LAUNCH(stream, choose_replicas, (Cost{0, bytes_of(choice.hosted, choice.place, counts)}), choice, counts);
}

void place_assignments(Stream& stream, const PlacedAssignments& placed, const Tensor& ids, const Tensor& counts,
                       const Tensor& place) {
  WITAN_LAUNCH(stream, place_assignments, (Cost{0, bytes_of(placed.ids, placed.counts, ids, counts, place)}), placed,
               ids, counts, place);
}

void replica_sources(Stream& stream, const Tensor& sources, const ReplicaChoice& choice, int64_t rank,
                     int64_t rank_stride) {
  WITAN_LAUNCH(stream, replica_sources, (Cost{0, bytes_of(sources, choice.hosted)}), sources, choice, rank,
               rank_stride);
}

void replica_homes(Stream& stream, const Tensor& homes, const ReplicaChoice& choice, const ReplicaRound& round,
                   int64_t rank_stride) {
  WITAN_LAUNCH(stream, replica_homes, (Cost{0, bytes_of(homes, choice.hosted)}), homes, choice, round, rank_stride);
}

void replica_counts(Stream& stream, const ReplicaCounts& counts, const ReplicaChoice& choice,
                    const ReplicaRound& round) {
  WITAN_LAUNCH(stream, replica_counts, (Cost{0, bytes_of(counts.own, counts.hosted, counts.rows, choice.hosted)}),
               counts, choice, round);
}

void replica_experts(Stream& stream, const Tensor& experts, const ReplicaChoice& choice, const ReplicaRound& round) {
  WITAN_LAUNCH(stream, replica_experts, (Cost{0, bytes_of(experts, choice.hosted)}), experts, choice, round);
}

// With a balanced load nothing is added; the bytes assume one replica per rank.
void add_to_experts(Stream& stream, const Tensor& w, const Tensor& found, const Tensor& experts) {
  const double matrix = bytes_of(found) / static_cast<double>(found.size(0));
  const Cost cost{matrix / static_cast<double>(size_of(w.dtype())), 3 * matrix};
  WITAN_LAUNCH(stream, add_to_experts, cost, w, found, experts);
}

}  // namespace witan::kernels
