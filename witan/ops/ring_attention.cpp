#include "witan/ops/ring_attention.h"

#include "witan/comm/context.h"
#include "witan/kernels/elementwise.h"
#include "witan/ops/attention.h"

namespace witan::ops {
namespace {

using kernels::AttentionGradients;
using kernels::AttentionInputs;

// x itself where it has the dtype already.
Tensor converted(Stream& stream, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const Tensor y = stream.empty(x.shape(), dtype);
  kernels::cast(stream, y, x);
  return y;
}

// sum += part, the first of which begins it.
void add(Stream& stream, Tensor& sum, const Tensor& part) {
  if (sum.defined())
    kernels::accumulate(stream, sum, Write::accumulate, part);
  else
    sum = converted(stream, part, accumulator(part.dtype()));
}

struct Keys {
  Tensor k, v, ids;
};

// Passes tensors from every rank to the one after it, and says what the keys that arrive are to this rank's queries.
class Ring {
 public:
  Ring(Stream& stream, Group& group, const AttentionInputs& own) : stream_(stream), group_(group), own_(own) {}

  int size() const { return group_.size(); }
  Keys own_keys() const { return {own_.k, own_.v, own_.sequence_ids}; }

  // This rank's queries and the keys of the rank `hops` before it.
  AttentionInputs inputs(const Keys& keys, int hops) const {
    AttentionInputs in = own_;
    in.k = keys.k, in.v = keys.v;
    in.block = {positions_of(group_.rank()), positions_of((group_.rank() + size() - hops) % size()), keys.ids,
                length()};
    return in;
  }

  // Gives `mine` to the next rank and returns what the previous one gave. Ranks of even number send first, so that in
  // the ring somebody always receives.
  Tensor pass(const Tensor& mine) {
    const Tensor other = stream_.empty(mine.shape(), mine.dtype(), MemoryTag::communication);
    const int next = (group_.rank() + 1) % size(), previous = (group_.rank() + size() - 1) % size();
    const bool sends_first = group_.rank() % 2 == 0;
    if (sends_first) group_.send(stream_, mine, next);
    group_.recv(stream_, other, previous);
    if (!sends_first) group_.send(stream_, mine, next);
    return other;
  }
  Keys pass(const Keys& mine) { return {pass(mine.k), pass(mine.v), mine.ids.defined() ? pass(mine.ids) : Tensor()}; }

  void forward(const Tensor& y, const Tensor& lse) {
    kernels::attention_forward(stream_, y, lse, inputs(own_keys(), 0));
    if (size() == 1) return;
    const Tensor sum = converted(stream_, y, lse.dtype());
    const bool narrow = y.dtype() != sum.dtype();
    const Tensor part = narrow ? y : stream_.empty_like(y), lse_part = stream_.empty_like(lse);
    Keys keys = own_keys();
    for (int hops = 1; hops < size(); ++hops) {
      keys = pass(keys);
      kernels::attention_forward(stream_, part, lse_part, inputs(keys, hops));
      kernels::attention_merge(stream_, sum, lse, part, lse_part);
    }
    if (narrow) kernels::cast(stream_, y, sum);
  }

  // A block's gradients begin at the rank after its own, where the first part is formed, and end at its own, which adds
  // the last: n - 1 hops, as many as its keys make.
  AttentionGradients backward(const Tensor& dy, const Tensor& y, const Tensor& lse) {
    AttentionGradients sum;
    Keys keys = own_keys();
    for (int hops = 1; hops < size(); ++hops) {
      keys = pass(keys);
      if (hops > 1) pass_gradients(sum);
      add_part(sum, dy, y, lse, inputs(keys, hops));
    }
    keys = own_keys();
    if (size() > 1) pass_gradients(sum);
    add_part(sum, dy, y, lse, inputs(keys, 0));
    const DType dtype = own_.q.dtype();
    return {converted(stream_, sum.dq, dtype), converted(stream_, sum.dk, dtype), converted(stream_, sum.dv, dtype)};
  }

 private:
  int64_t length() const { return own_.q.size(1) * size(); }
  kernels::Positions positions_of(int rank) const { return context_positions(length(), size(), rank); }

  void pass_gradients(AttentionGradients& sum) {
    sum.dk = pass(sum.dk);
    sum.dv = pass(sum.dv);
  }
  void add_part(AttentionGradients& sum, const Tensor& dy, const Tensor& y, const Tensor& lse,
                const AttentionInputs& in) {
    const AttentionGradients part{stream_.empty_like(in.q), stream_.empty_like(in.k), stream_.empty_like(in.v)};
    kernels::attention_backward(stream_, part, dy, y, lse, in);
    add(stream_, sum.dq, part.dq);
    add(stream_, sum.dk, part.dk);
    add(stream_, sum.dv, part.dv);
  }

  Stream& stream_;
  Group& group_;
  const AttentionInputs own_;
};

void check_chunks(const Group& context, int64_t S, const kernels::Dropout& dropout) {
  if (context.size() == 1) return;
  require<ShapeError>(S % 2 == 0, "ring_attention over axis ", context.name(), ": each of its ", context.size(),
                      " ranks holds two equal chunks of the sequence, but there are S=", S, " tokens here");
  require<ShapeError>(!dropout.on() || S / 2 % 4 == 0, "ring_attention over axis ", context.name(),
                      ": dropout needs chunks of a multiple of 4 tokens, got ", S / 2);
}

}  // namespace

Var ring_attention(Tape& tape, const Var& q, const Var& k, const Var& v, const Tensor& sequence_ids, Group& context,
                   double scale, const kernels::Dropout& dropout, const kernels::AttentionHints& hints) {
  check_attention("ring_attention", q, k, v, sequence_ids, dropout);
  check_chunks(context, q.size(1), dropout);
  Stream& s = tape.stream();
  const Tensor no_ids, &ids = hints.one_sequence_per_row ? no_ids : sequence_ids;
  const Tensor y = s.empty_like(q.value());
  const Tensor lse = s.empty({q.size(0), q.size(2), q.size(1)}, accumulator(q.dtype()));
  Ring(s, context, {q.value(), k.value(), v.value(), ids, scale, dropout, hints}).forward(y, lse);
  return tape.record(
      "ring_attention", y, {q, k, v},
      [q = tape.save(q), k = tape.save(k), v = tape.save(v), y = tape.save(y), lse = tape.save(lse),
       ids = ids.defined() ? tape.save(ids) : Saved(), &context, scale, dropout, hints](Backward& b, const Tensor& dy) {
        const AttentionInputs in{b.value(q), b.value(k), b.value(v), b.value(ids), scale, dropout, hints};
        const AttentionGradients to = Ring(b.stream(), context, in).backward(dy, b.value(y), b.value(lse));
        b.add(q, to.dq);
        b.add(k, to.dk);
        b.add(v, to.dv);
      });
}

}  // namespace witan::ops
