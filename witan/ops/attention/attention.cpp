#include "witan/ops/attention/attention.h"

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/qk_clip.h"
#include "witan/ops/pointwise/elementwise.h"

namespace witan::ops {

void check_attention(const char* op, const Var& q, const Var& k, const Var& v, const Tensor& sequence_ids,
                     const AttentionArgs& args) {
  require<ShapeError>(q.shape().dims() == 4, op, ": q must be [B, S, H, hd], got ", q.shape());
  require<ShapeError>(k.shape().dims() == 4, op, ": k must be [B, S, G, hd], got ", k.shape());
  const int64_t B = q.size(0), S = q.size(1), H = q.size(2), hd = q.size(3), G = k.size(2);
  require<ShapeError>(k.shape() == Shape{B, S, G, hd}, op, ": k must be [B=", B, ", S=", S, ", G, hd=", hd,
                      "] as q is, got ", k.shape());
  require<ShapeError>(v.shape().dims() == 4 && v.shape() == k.shape().with(3, v.size(3)), op, ": v must be [B=", B,
                      ", S=", S, ", G=", G, ", hd_v] as k is, got ", v.shape());
  require<ShapeError>(G > 0 && H > 0 && H % G == 0, op, ": the ", H, " query heads must be a multiple of the ", G,
                      " key heads");
  for (const auto& [name, other] : {std::pair{"k", &k}, std::pair{"v", &v}})
    require<ShapeError>(other->dtype() == q.dtype(), op, ": ", name, " is ", other->dtype(), " but q is ", q.dtype());
  check_dropout(op, args.dropout);
  require<ShapeError>(args.window >= 0, op, ": a window of ", args.window,
                      " positions; give how many a query sees, or 0 for all up to its own");
  if (!sequence_ids.defined()) return;
  require<ShapeError>(sequence_ids.shape() == Shape{B, S}, op, ": sequence_ids must be [B=", B, ", S=", S, "], got ",
                      sequence_ids.shape());
  require<ShapeError>(sequence_ids.dtype() == DType::i32, op, ": sequence_ids must be int32, got ",
                      sequence_ids.dtype());
}

void check_sinks(const char* op, const Var& q, const Var& sinks) {
  if (!sinks.defined()) return;
  const int64_t H = q.size(2);
  require<ShapeError>(sinks.shape() == Shape{H}, op, ": sinks must be [H=", H, "], got ", sinks.shape());
  require<ShapeError>(sinks.dtype() == q.dtype(), op, ": sinks are ", sinks.dtype(), " but q is ", q.dtype());
}

void write_sinks_gradient(Backward& b, const Saved& sinks, const Tensor& dy, const Tensor& y, const Tensor& lse) {
  b.write(sinks, [&](const Tensor& to, Write how) {
    kernels::attention_sinks_backward(b.stream(), to, how, dy, y, lse, b.value(sinks));
  });
}

kernels::AttentionInputs attention_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& sequence_ids,
                                          const AttentionArgs& args) {
  kernels::AttentionBlock whole;
  whole.sequence_length = args.counted_positions;
  return {q, k, v, sequence_ids, args.scale, args.dropout, args.hints, whole, args.window};
}

Var attention(Tape& tape, const Var& q, const Var& k, const Var& v, const Tensor& sequence_ids,
              const AttentionArgs& args, const Var& sinks) {
  check_attention("attention", q, k, v, sequence_ids, args);
  check_sinks("attention", q, sinks);
  Stream& s = tape.stream();
  const Tensor y = s.empty(q.shape().with(3, v.size(3)), q.dtype());
  const Tensor lse = s.empty({q.size(0), q.size(2), q.size(1)}, accumulator(q.dtype()));
  const kernels::AttentionInputs read = attention_inputs(q.value(), k.value(), v.value(), sequence_ids, args);
  kernels::attention_forward(s, y, lse, read);
  if (args.max_logits.defined()) kernels::attention_max_logits(s, args.max_logits, read);
  std::vector<Var> inputs = {q, k, v};
  if (sinks.defined()) {
    kernels::attention_sinks_forward(s, y, lse, sinks.value());
    inputs.push_back(sinks);
  }
  const Saved ids = sequence_ids.defined() ? tape.save(sequence_ids) : Saved();
  return tape.record(
      "attention", y, inputs,
      [q = tape.save(q), k = tape.save(k), v = tape.save(v), y = tape.save(y), lse = tape.save(lse), ids, args,
       sinks = sinks.defined() ? tape.save(sinks) : Saved()](Backward& b, const Tensor& dy) {
        const auto in = attention_inputs(b.value(q), b.value(k), b.value(v), b.value(ids), args);
        Stream& stream = b.stream();
        const kernels::AttentionGradients to{stream.empty_like(in.q), stream.empty_like(in.k), stream.empty_like(in.v)};
        kernels::attention_backward(stream, to, dy, b.value(y), b.value(lse), in);
        b.add(q, to.dq);
        b.add(k, to.dk);
        b.add(v, to.dv);
        write_sinks_gradient(b, sinks, dy, b.value(y), b.value(lse));
      });
}

}  // namespace witan::ops
