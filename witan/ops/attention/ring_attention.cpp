#include <algorithm>

#include "witan/comm/context.h"
#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/qk_clip.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/ops/attention/attention.h"

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

// Blocks on their way around, each rank giving what it has used to the next; and what the keys that are there are to
// this rank's queries.
class Ring {
 public:
  Ring(Stream& stream, Group& group, const AttentionInputs& own, Stream* side)
      : stream_(stream), side_(side ? *side : stream), group_(group), own_(own) {}

  // max_logits: AttentionArgs'.
  void forward(const Tensor& y, const Tensor& lse, const Tensor& max_logits) {
    max_logits_ = max_logits;
    Keys keys = own_keys();
    attend(y, lse, keys, 0);
    if (size() == 1) return;
    const bool narrow = y.dtype() != lse.dtype();
    const Tensor sum = converted(stream_, y, lse.dtype());
    const Tensor part = narrow ? y : stream_.empty_like(y), lse_part = stream_.empty_like(lse);
    for (int hops = 1; hops < size(); ++hops) {
      attend(part, lse_part, keys, hops);
      kernels::attention_merge(stream_, sum, lse, part, lse_part);
    }
    if (narrow) kernels::cast(stream_, y, sum);
  }

  // A block's gradients begin at the rank after its own, where the first part is formed, and end at its own, which adds
  // the last: n - 1 hops, as many as its keys make.
  AttentionGradients backward(const Tensor& dy, const Tensor& y, const Tensor& lse) {
    AttentionGradients sum;
    begin_passing();
    Keys keys = size() > 1 ? pass(own_keys()) : own_keys();
    end_passing();
    for (int hops = 1; hops <= size(); ++hops) {
      begin_passing();
      const Tensor dk = hops > 1 ? pass(sum.dk) : Tensor(), dv = hops > 1 ? pass(sum.dv) : Tensor();
      const Keys next = hops + 1 < size() ? pass(keys) : own_keys();
      const AttentionInputs in = inputs(keys, hops % size());
      const AttentionGradients part{stream_.empty_like(in.q), stream_.empty_like(in.k), stream_.empty_like(in.v)};
      kernels::attention_backward(stream_, part, dy, y, lse, in);
      end_passing();
      sum.dk = dk, sum.dv = dv, keys = next;
      add(stream_, sum.dq, part.dq);
      add(stream_, sum.dk, part.dk);
      add(stream_, sum.dv, part.dv);
    }
    const DType dtype = own_.q.dtype();
    return {converted(stream_, sum.dq, dtype), converted(stream_, sum.dk, dtype), converted(stream_, sum.dv, dtype)};
  }

 private:
  int size() const { return group_.size(); }
  int64_t length() const { return own_.q.size(1) * size(); }
  kernels::PositionRuns positions_of(int rank) const { return context_positions(length(), size(), rank); }
  Keys own_keys() const { return {own_.k, own_.v, own_.sequence_ids}; }

  // This rank's queries and the keys of the rank `hops` before it.
  AttentionInputs inputs(const Keys& keys, int hops) const {
    AttentionInputs in = own_;
    in.k = keys.k, in.v = keys.v;
    const int owner = (group_.rank() + size() - hops) % size();
    in.block = {positions_of(group_.rank()), positions_of(owner), keys.ids,
                std::max(length(), own_.block.sequence_length)};
    return in;
  }

  // y and lse of the block that is there, which makes room for the next.
  void attend(const Tensor& y, const Tensor& lse, Keys& keys, int hops) {
    begin_passing();
    const Keys next = hops + 1 < size() ? pass(keys) : Keys();
    const AttentionInputs in = inputs(keys, hops);
    kernels::attention_forward(stream_, y, lse, in);
    if (max_logits_.defined()) kernels::attention_max_logits(stream_, max_logits_, in);
    end_passing();
    keys = next;
  }

  // Between these two, what is passed is not written, and what pass() returned not read.
  void begin_passing() {
    if (&side_ != &stream_) side_.follow(stream_);
  }
  void end_passing() {
    if (&side_ != &stream_) stream_.follow(side_);
  }
  // Gives `mine` to the next rank and returns what the previous one gave. Ranks of even number send first, so that in
  // the ring somebody always receives.
  Tensor pass(const Tensor& mine) {
    const Tensor other = stream_.empty(mine.shape(), mine.dtype(), MemoryTag::communication);
    const int next = (group_.rank() + 1) % size(), previous = (group_.rank() + size() - 1) % size();
    const bool sends_first = group_.rank() % 2 == 0;
    if (sends_first) group_.send(side_, mine, next);
    group_.recv(side_, other, previous);
    if (!sends_first) group_.send(side_, mine, next);
    return other;
  }
  Keys pass(const Keys& mine) { return {pass(mine.k), pass(mine.v), mine.ids.defined() ? pass(mine.ids) : Tensor()}; }

  Stream &stream_, &side_;
  Group& group_;
  const AttentionInputs own_;
  Tensor max_logits_;
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
                   const AttentionArgs& args, Stream* side, const Var& sinks) {
  check_attention("ring_attention", q, k, v, sequence_ids, args);
  check_sinks("ring_attention", q, sinks);
  check_chunks(context, q.size(1), args.dropout);
  Stream& s = tape.stream();
  const Tensor ids = args.hints.one_sequence_per_row ? Tensor() : sequence_ids;
  const Tensor y = s.empty(q.shape().with(3, v.size(3)), q.dtype());
  const Tensor lse = s.empty({q.size(0), q.size(2), q.size(1)}, accumulator(q.dtype()));
  Ring(s, context, attention_inputs(q.value(), k.value(), v.value(), ids, args), side).forward(y, lse, args.max_logits);
  std::vector<Var> operands = {q, k, v};
  if (sinks.defined()) {
    kernels::attention_sinks_forward(s, y, lse, sinks.value());
    operands.push_back(sinks);
  }
  return tape.record(
      "ring_attention", y, operands,
      [q = tape.save(q), k = tape.save(k), v = tape.save(v), y = tape.save(y), lse = tape.save(lse),
       ids = ids.defined() ? tape.save(ids) : Saved(), sinks = sinks.defined() ? tape.save(sinks) : Saved(), &context,
       args, side](Backward& b, const Tensor& dy) {
        const auto saved = attention_inputs(b.value(q), b.value(k), b.value(v), b.value(ids), args);
        Ring ring(b.stream(), context, saved, side);
        const AttentionGradients to = ring.backward(dy, b.value(y), b.value(lse));
        b.add(q, to.dq);
        b.add(k, to.dk);
        b.add(v, to.dv);
        write_sinks_gradient(b, sinks, dy, b.value(y), b.value(lse));
      });
}

}  // namespace witan::ops
