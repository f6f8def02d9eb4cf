#include "witan/ops/attention/sparse_attention.h"

#include <algorithm>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/pointwise/elementwise.h"

namespace witan::ops {
namespace {

using kernels::IndexInputs;
using kernels::KeyRows;
using kernels::SparseInputs;

// The tokens [first, first + count) of those that `where` describes.
KeyRows part_of_rows(const KeyRows& where, int64_t first, int64_t count) {
  KeyRows part = where;
  if (where.positions.defined()) {
    part.row_of = where.row_of.narrow(0, first, count);
    part.positions = where.positions.narrow(0, first, count);
  } else {
    part.first += first;
  }
  return part;
}

IndexInputs part_of_index(const IndexInputs& in, int64_t first, int64_t count) {
  return {in.q.narrow(0, first, count), in.w.narrow(0, first, count), in.k, in.scale,
          part_of_rows(in.where, first, count)};
}

// Calls body(first, count) for parts of the tokens whose scores fit.
template <class Body>
void for_parts(int64_t tokens, int64_t slots, const Body& body) {
  const int64_t most =
      std::clamp<int64_t>(kMostIndexScores / std::max<int64_t>(slots, 1), 1, std::max<int64_t>(tokens, 1));
  for (int64_t first = 0; first < tokens; first += most) body(first, std::min(most, tokens - first));
}

Tensor scores_for(Stream& stream, int64_t tokens, int64_t slots, DType dtype) {
  return stream.empty({std::min(tokens, std::max<int64_t>(kMostIndexScores / std::max<int64_t>(slots, 1), 1)), slots},
                      accumulator(dtype), MemoryTag::workspace);
}

void check_indexer(const IndexerHeads& in, const Tensor& ids) {
  require<ShapeError>(in.q.shape().dims() == 4, "indexer: q must be [B, S, H, d], got ", in.q.shape());
  const int64_t B = in.q.size(0), S = in.q.size(1), H = in.q.size(2), d = in.q.size(3);
  require<ShapeError>(in.w.shape() == Shape{B, S, H}, "indexer: w must be [B=", B, ", S=", S, ", H=", H, "], got ",
                      in.w.shape());
  require<ShapeError>(in.k.shape() == Shape{B, S, d}, "indexer: k must be [B=", B, ", S=", S, ", d=", d, "], got ",
                      in.k.shape());
  require<ShapeError>(!ids.defined() || (ids.shape() == Shape{B, S} && ids.dtype() == DType::i32),
                      "indexer: sequence ids must be int32 [B=", B, ", S=", S, "]");
}

SparseInputs sparse_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& chosen, double scale,
                           const Tensor& ids) {
  const int64_t B = k.size(0), S = k.size(1);
  return {q.reshape({B * S, q.size(2), q.size(3)}), k, v, chosen, {.rows = B, .slots = S, .ids = ids}, scale};
}

// Computes the indexer's loss from a micro-batch's tokens, part by part.
class Divergence {
 public:
  // `to`: the gradients of the sum of divergences; undefined: they are not wanted.
  Divergence(Stream& stream, const IndexInputs& index, const IndexerTarget& target, const kernels::IndexGradients& to)
      : stream_(stream), index_(index), target_(target), to_(to) {}

  // [T]: the divergence of each token
  Tensor run(int64_t heads) {
    const int64_t T = index_.q.size(0), C = index_.where.slots;
    const DType dtype = index_.q.dtype();
    const Tensor all = stream_.empty({T}, accumulator(dtype)), scores = scores_for(stream_, T, C, dtype),
                 p = scores_for(stream_, T, C, dtype);
    for_parts(T, C, [&](int64_t first, int64_t count) {
      part(first, count, heads, scores.narrow(0, 0, count), p.narrow(0, 0, count), all);
    });
    return all;
  }

 private:
  void part(int64_t first, int64_t count, int64_t heads, const Tensor& scores, const Tensor& p, const Tensor& all) {
    const auto of = [&](const Tensor& x) { return x.defined() ? x.narrow(0, first, count) : Tensor(); };
    const IndexInputs index = part_of_index(index_, first, count);
    const Tensor chosen = of(target_.chosen);
    kernels::index_scores(stream_, scores, index);
    if (chosen.defined()) kernels::keep_chosen(stream_, scores, chosen);
    const int64_t tokens = index_.q.size(0);
    const SparseInputs attention{of(target_.q.reshape({tokens, target_.q.size(2), target_.q.size(3)})),
                                 target_.k,
                                 {},
                                 chosen,
                                 index.where,
                                 target_.scale};
    kernels::attention_distribution(stream_, p, target_.lse, attention, heads);
    if (target_.tensor != nullptr) target_.tensor->all_reduce(stream_, p);
    const Tensor ids = index_.where.ids;
    kernels::index_divergence(stream_, of(all), scores, p, ids.defined() ? of(ids.reshape({tokens})) : Tensor());
    if (to_.dq.defined()) kernels::index_scores_backward(stream_, {of(to_.dq), of(to_.dw), to_.dk}, scores, index);
  }

  Stream& stream_;
  const IndexInputs& index_;
  const IndexerTarget& target_;
  const kernels::IndexGradients& to_;
};

}  // namespace

Tensor choose_keys(Stream& stream, const IndexInputs& in, int64_t topk) {
  const int64_t T = in.q.size(0), C = in.where.slots;
  require<ShapeError>(topk > 0, "indexer: the number of chosen keys must be positive, got ", topk);
  const Tensor chosen = stream.empty({T, std::min(topk, C)}, DType::i32),
               scores = scores_for(stream, T, C, in.q.dtype());
  for_parts(T, C, [&](int64_t first, int64_t count) {
    const Tensor some = scores.narrow(0, 0, count);
    kernels::index_scores(stream, some, part_of_index(in, first, count));
    kernels::choose_keys(stream, chosen.narrow(0, first, count), some);
  });
  return chosen;
}

SparseAttention sparse_attention(Tape& tape, const Var& q, const Var& k, const Var& v, const Tensor& chosen,
                                 double scale, const Tensor& ids) {
  require<ShapeError>(
      q.shape().dims() == 4 && k.shape() == q.shape() && v.shape() == q.shape().with(3, v.shape().last()),
      "sparse attention: q, k and v must be [B, S, N, hd], [B, S, N, hd] and [B, S, N, hd_v], got ", q.shape(), ", ",
      k.shape(), " and ", v.shape());
  const int64_t T = q.size(0) * q.size(1);
  require<ShapeError>(chosen.shape().dims() == 2 && chosen.size(0) == T && chosen.dtype() == DType::i32,
                      "sparse attention: chosen keys must be int32 [", T, ", K], got ", chosen.shape());
  Stream& s = tape.stream();
  const Tensor y = s.empty(v.shape(), q.dtype()),
               lse = s.empty({q.size(0), q.size(2), q.size(1)}, accumulator(q.dtype()));
  const SparseInputs of = sparse_inputs(q.value(), k.value(), v.value(), chosen, scale, ids);
  kernels::sparse_attention_forward(s, y, lse, of, kernels::sparse_memory(s, of));
  const Var out = tape.record(
      "sparse_attention", y, {q, k, v},
      [q = tape.save(q), k = tape.save(k), v = tape.save(v), y = tape.save(y), lse = tape.save(lse),
       chosen = tape.save(chosen), ids = ids.defined() ? tape.save(ids) : Saved(),
       scale](Backward& b, const Tensor& dy) {
        Stream& stream = b.stream();
        const SparseInputs in = sparse_inputs(b.value(q), b.value(k), b.value(v), b.value(chosen), scale, b.value(ids));
        const Tensor of_lse = b.value(lse);
        const kernels::SparseGradients to{
            stream.empty_like(b.value(q)), stream.empty_like(in.k), stream.empty_like(in.v),
            stream.empty({in.q.size(0), in.q.size(1)}, of_lse.dtype()), kernels::sparse_memory(stream, in)};
        kernels::ChoosersOfKeys choosers;
        if (!to.memory.mask.defined()) {
          choosers = {stream.empty({in.where.rows * in.where.slots + 1}, DType::i64, MemoryTag::workspace),
                      stream.empty({in.chosen.elements()}, DType::i32, MemoryTag::workspace)};
          kernels::choosers_of_keys(stream, choosers, in.chosen, in.where);
        }
        kernels::sparse_attention_backward(stream, to, dy, b.value(y), of_lse, in, choosers);
        b.add(q, to.dq);
        b.add(k, to.dk);
        b.add(v, to.dv);
      });
  return {out, lse};
}

// Witan's own kernel computes it on a GPU too: cuDNN's statistics need not have these bits.
Tensor attention_sums(Stream& stream, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& ids,
                      double scale) {
  const Tensor lse = stream.empty({q.size(0), q.size(2), q.size(1)}, accumulator(q.dtype())),
               y = stream.empty(q.shape().with(3, v.size(3)), q.dtype(), MemoryTag::workspace);
  const kernels::AttentionHints hints{.one_sequence_per_row = !ids.defined(), .batch_invariant = true};
  kernels::attention_forward(stream, y, lse, {q, k, v, ids, scale, {}, hints});
  return lse;
}

Var indexer_loss(Tape& tape, const IndexerHeads& indexer, double index_scale, const IndexerTarget& target,
                 const Tensor& ids) {
  check_indexer(indexer, ids);
  const Var &q = indexer.q, &w = indexer.w, &k = indexer.k;
  const int64_t B = q.size(0), S = q.size(1), T = B * S, H = q.size(2), d = q.size(3);
  Stream& s = tape.stream();
  const IndexInputs index{q.value().reshape({T, H, d}),
                          w.value().reshape({T, H}),
                          k.value(),
                          index_scale,
                          {.rows = B, .slots = S, .ids = ids}};
  const DType wide = accumulator(q.dtype());
  kernels::IndexGradients to;
  const bool gradients = q.needs_gradient() || w.needs_gradient() || k.needs_gradient();
  if (gradients) to = {s.empty_like(index.q), s.empty_like(index.w), s.zeros(k.shape(), wide)};
  const int64_t heads = target.q.size(2) * (target.tensor != nullptr ? target.tensor->size() : 1);
  const Tensor all = Divergence(s, index, target, to).run(heads), loss = s.empty({1}, wide), share = s.empty({1}, wide);
  kernels::mean_over_tokens(s, loss, share, all, ids.defined() ? ids.reshape({T}) : Tensor());
  if (!gradients) return tape.constant(loss);
  Tensor dk = to.dk;
  if (wide != k.dtype()) {
    dk = s.empty_like(k.value());
    kernels::cast(s, dk, to.dk);
  }
  struct Input {
    Slot to;
    Saved gradient;  // of the sum over tokens
  };
  const auto input = [&](const Var& of, const Tensor& gradient) {
    return Input{tape.slot(of), tape.save(gradient.reshape(of.shape()))};
  };
  return tape.record("indexer_loss", loss, {q, w, k},
                     [inputs = std::vector{input(q, to.dq), input(w, to.dw), input(k, dk)}, share = tape.save(share)](
                         Backward& b, const Tensor& dloss) {
                       for (const Input& of : inputs) {
                         if (!b.wants(of.to)) continue;
                         const Tensor sum = b.value(of.gradient), gradient = b.stream().empty_like(sum);
                         kernels::scale_by(b.stream(), gradient, sum, dloss, b.value(share));
                         b.add(of.to, gradient);
                       }
                     });
}

}  // namespace witan::ops
