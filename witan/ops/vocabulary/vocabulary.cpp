#include "witan/ops/vocabulary/vocabulary.h"

#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::ops {
namespace {

void check(const Var& logits, const Tensor& targets, const Tensor& weights) {
  require<ShapeError>(logits.shape().dims() == 2 && is_floating(logits.dtype()) && logits.value().contiguous(),
                      "cross_entropy: logits must be [T, V], floating and contiguous, got ", logits.dtype(), " ",
                      logits.shape());
  const int64_t T = logits.size(0);
  require<ShapeError>(targets.shape() == Shape{T} && targets.dtype() == DType::i32,
                      "cross_entropy: targets must be [T=", T, "] int32, got ", targets.dtype(), " ", targets.shape());
  require<ShapeError>(weights.shape() == Shape{T} && weights.dtype() == accumulator(logits.dtype()),
                      "cross_entropy: weights must be [T=", T, "] ", accumulator(logits.dtype()), ", got ",
                      weights.dtype(), " ", weights.shape());
}

void check_targets(const Tensor& targets, const Tensor& weights, int64_t V) {
  dispatch_floating(weights.dtype(), [&]<class A>() {
    for (int64_t t = 0; t < targets.elements(); ++t) {
      const int32_t target = targets.data<int32_t>()[t];
      require<DataError>((target >= 0 && target < V) || weights.data<A>()[t] == A(0.0f), "cross_entropy: target ",
                         target, " at index ", t, " is not one of the ", V, " logits, and its weight is not 0");
    }
  });
}

// The columns of the logits.
struct Columns {
  VocabularyPart part;
  kernels::WordColumns ids;
  Group* group;  // its ranks hold the other columns; null: there are none
};

void forward(Stream& s, const kernels::CrossEntropyOutputs& out, const Tensor& logits, const Tensor& targets,
             const Tensor& weights, const Columns& columns) {
  const kernels::WordColumns& ids = columns.ids;
  if (!columns.group)
    return kernels::cross_entropy_forward(s, out.loss, out.losses, out.lse, logits, targets, weights, ids.words);
  const int64_t T = logits.size(0), n = columns.group->size();
  const Tensor part = s.empty({2, T}, weights.dtype()), parts = s.empty({n, 2, T}, weights.dtype());
  kernels::cross_entropy_part(s, part, logits, targets, weights, ids);
  columns.group->all_gather(s, parts.reshape({n * 2, T}), part);
  kernels::cross_entropy_combine(s, out.loss, out.losses, out.lse, parts, weights);
}

void forward_and_backward(Stream& s, const kernels::CrossEntropyOutputs& out, const Tensor& logits,
                          const Tensor& targets, const Tensor& weights, const Columns& columns) {
  if (!columns.group) return kernels::cross_entropy_fused(s, out, logits, targets, weights, columns.ids.words);
  forward(s, out, logits, targets, weights, columns);
  kernels::cross_entropy_backward(s, out.dlogits, {}, logits, out.lse, targets, weights, columns.ids);
}

// The backward only returns the gradient that the forward computed.
Var with_gradient(Tape& tape, const kernels::CrossEntropyOutputs& out, const Var& logits, const Tensor& targets,
                  const Tensor& weights, const Columns& columns) {
  forward_and_backward(tape.stream(), out, logits.value(), targets, weights, columns);
  return tape.record("cross_entropy", out.loss, {logits},
                     [slot = tape.slot(logits), dlogits = tape.save(out.dlogits)](Backward& b, const Tensor&) mutable {
                       Tensor gradient = b.value(dlogits);
                       dlogits = Saved();
                       b.add(slot, std::move(gradient));
                     });
}

// Logits to be overwritten must not be held by anyone but the caller.
CrossEntropy of_columns(Tape& tape, Var&& logits, const Tensor& targets, const Tensor& weights, const Columns& columns,
                        LossGradient gradient) {
  Stream& s = tape.stream();
  // A GPU is not waited for.
  if (s.device().kind == Device::Kind::cpu) check_targets(targets, weights, columns.part.size);
  const Tensor loss = s.empty({1}, weights.dtype()), losses = s.empty_like(weights), lse = s.empty_like(weights);
  if (gradient == LossGradient::one && tape.recording() && logits.needs_gradient()) {
    const Tensor dlogits = logits.unique() ? logits.value() : s.empty_like(logits.value());
    return {with_gradient(tape, {loss, losses, lse, dlogits}, logits, targets, weights, columns), losses};
  }
  forward(s, {loss, losses, lse, {}}, logits.value(), targets, weights, columns);
  Var var = tape.record("cross_entropy", loss, {logits},
                        [logits = tape.save(logits), lse = tape.save(lse), targets = tape.save(targets),
                         weights = tape.save(weights), ids = columns.ids](Backward& b, const Tensor& dloss) mutable {
                          const Tensor in = b.value(logits);
                          const Slot slot = logits;
                          logits = Saved();  // from here on `in` alone stands for this closure
                          const Tensor dlogits = in.unique() ? in : b.stream().empty_like(in);
                          kernels::cross_entropy_backward(b.stream(), dlogits, dloss, in, b.value(lse),
                                                          b.value(targets), b.value(weights), ids);
                          b.add(slot, dlogits);
                        });
  return {std::move(var), losses};
}

}  // namespace

CrossEntropy cross_entropy(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                           LossGradient gradient) {
  check(logits, targets, weights);
  const int64_t V = logits.size(1);
  return cross_entropy(tape, std::move(logits), targets, weights, {0, V}, nullptr, gradient);
}

namespace {

// The columns of logits that this rank holds of the vocabulary.
Columns columns_of(const char* op, const Var& logits, const VocabularyPart& part, Group* group) {
  if (group && group->size() == 1) group = nullptr;
  const int64_t columns = logits.size(1), end = part.begin + columns;
  require<ShapeError>(part.begin >= 0 && end <= part.entries(), op, ": columns [", part.begin, ", ", end,
                      ") are not within the vocabulary of ", part.entries(), " entries");
  require<ShapeError>(group || columns == part.entries(), op, ": the only rank holds ", columns, " of ", part.entries(),
                      " columns");
  return {part, {part.begin, part.words(columns)}, group};
}

}  // namespace

CrossEntropy cross_entropy(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                           const VocabularyPart& part, Group* group, LossGradient gradient) {
  check(logits, targets, weights);
  const Columns columns = columns_of("cross_entropy", logits, part, group);
  return of_columns(tape, std::move(logits), targets, weights, columns, gradient);
}

TokenLosses token_losses(Tape& tape, Var logits, const Tensor& targets, const Tensor& weights,
                         const VocabularyPart& part, Group* group) {
  check(logits, targets, weights);
  const Columns columns = columns_of("token_losses", logits, part, group);
  Stream& s = tape.stream();
  if (s.device().kind == Device::Kind::cpu) check_targets(targets, weights, part.size);
  const Tensor losses = s.empty_like(weights), lse = s.empty_like(weights), entropies = s.empty_like(weights);
  forward(s, {s.empty({1}, weights.dtype()), losses, lse, {}}, logits.value(), targets, weights, columns);
  kernels::token_entropies(s, entropies, logits.value(), lse, weights, columns.ids.words);
  if (columns.group) columns.group->all_reduce(s, entropies);
  Var var = tape.record("token_losses", losses, {logits},
                        [logits = tape.save(logits), lse = tape.save(lse), targets = tape.save(targets),
                         ids = columns.ids](Backward& b, const Tensor& dlosses) mutable {
                          const Tensor in = b.value(logits);
                          const Slot slot = logits;
                          logits = Saved();  // from here on `in` alone stands for this closure
                          const Tensor dlogits = in.unique() ? in : b.stream().empty_like(in);
                          kernels::cross_entropy_backward(b.stream(), dlogits, {}, in, b.value(lse), b.value(targets),
                                                          dlosses, ids);
                          b.add(slot, dlogits);
                        });
  return {std::move(var), entropies};
}

namespace {

void check_ids(const Tensor& ids, int64_t V) {
  int64_t t = 0;
  for (const int32_t id : ids.span<int32_t>()) {
    require<DataError>(id >= 0 && id < V, "embedding: id ", id, " at index ", t, " is not in the vocabulary of ", V,
                       " entries: was the text encoded with another tokenizer?");
    ++t;
  }
}

}  // namespace

Var embedding(Tape& tape, const Tensor& ids, const Var& w) {
  return embedding(tape, ids, w, {0, w.shape().dims() == 2 ? w.size(0) : 0});
}

Var embedding(Tape& tape, const Tensor& ids, const Var& w, const VocabularyPart& part) {
  require<ShapeError>(w.shape().dims() == 2 && is_floating(w.dtype()), "embedding: w must be [V, D] and floating, got ",
                      w.dtype(), " ", w.shape());
  require<ShapeError>(ids.dtype() == DType::i32 && ids.contiguous() && ids.shape().dims() < Shape::kMostDims,
                      "embedding: ids must be contiguous int32 of at most ", Shape::kMostDims - 1, " dims, got ",
                      ids.dtype(), " ", ids.shape());
  const int64_t begin = part.begin, rows = w.size(0);
  require<ShapeError>(begin >= 0 && begin + rows <= part.entries(), "embedding: rows [", begin, ", ", begin + rows,
                      ") are not within the vocabulary of ", part.entries(), " entries");
  Stream& s = tape.stream();
  if (s.device().kind == Device::Kind::cpu) check_ids(ids, part.size);  // a GPU is not waited for
  Shape shape = ids.shape();
  shape.append(w.size(1));
  const Tensor y = s.empty(shape, w.dtype());
  kernels::embedding_forward(s, y, ids, w.value(), begin);
  return tape.record(
      "embedding", y, {w}, [w = tape.slot(w), ids = tape.save(ids), begin](Backward& b, const Tensor& dy) {
        b.write(w, [&](const Tensor& dw, Write how) {
          const Tensor tokens = b.value(ids);
          const Tensor order = b.stream().empty({dw.size(0) + 1 + tokens.elements()}, DType::i32, MemoryTag::workspace);
          kernels::embedding_backward(b.stream(), dw, how, order, dy, tokens, begin);
        });
      });
}

}  // namespace witan::ops
