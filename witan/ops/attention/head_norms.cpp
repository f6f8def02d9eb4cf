#include <functional>

#include "witan/kernels/attention/heads.h"
#include "witan/ops/attention/heads.h"

namespace witan::ops {
namespace {

void check_heads(const char* name, const Var& x, const Var& w, const Var& q) {
  require<ShapeError>(x.shape().dims() == 4 && x.value().contiguous() && x.dtype() == q.dtype(),
                      "rmsnorm_heads: ", name, " must be [B, S, heads, hd], contiguous and ", q.dtype(), ", got ",
                      x.dtype(), " ", x.shape());
  const int64_t hd = q.size(3);
  require<ShapeError>(x.shape() == q.shape().with(2, x.size(2)), "rmsnorm_heads: ", name, " must be as q is, ",
                      q.shape(), ", but for the number of heads, got ", x.shape());
  require<ShapeError>(w.shape() == Shape{hd} && w.dtype() == q.dtype(), "rmsnorm_heads: the weight of ", name,
                      " must be ", q.dtype(), " [hd=", hd, "], got ", w.dtype(), " ", w.shape());
}

}  // namespace

NormedHeads rmsnorm_heads(Tape& tape, const Var& q, const Var& k, const Var& wq, const Var& wk, const Tensor& table,
                          const kernels::RopeArgs& rope, double eps, bool zero_centered) {
  check_heads("q", q, wq, q);
  check_heads("k", k, wk, q);
  const Shape angles{q.size(0) * q.size(1), rope.dims};
  require<ShapeError>(rope.dims == 0 || (table.defined() && table.shape() == angles),
                      "rmsnorm_heads: the table of angles must be ", angles, ", got ",
                      table.defined() ? table.shape() : Shape{});
  Stream& s = tape.stream();
  const auto output_of = [&](const Var& x, const Var& w) {
    return kernels::HeadNorm{s.empty_like(x.value()),
                             s.empty({x.shape().as_rows().first}, accumulator(x.dtype())),
                             x.value(),
                             {w.value(), zero_centered}};
  };
  const kernels::HeadNorm of_q = output_of(q, wq), of_k = output_of(k, wk);
  kernels::head_norms_forward(s, of_q, of_k, table, rope, eps);
  auto backward = [q = tape.save(q), k = tape.save(k), wq = tape.save(wq), wk = tape.save(wk), rq = tape.save(of_q.r),
                   rk = tape.save(of_k.r), table = table.defined() ? tape.save(table) : Saved(), rope,
                   zero_centered](Backward& b, const std::vector<Tensor>& gradients) {
    Stream& stream = b.stream();
    const Tensor in_q = b.value(q), in_k = b.value(k), dq = stream.empty_like(in_q), dk = stream.empty_like(in_k);
    const Tensor from_q = gradients[0].defined() ? gradients[0] : stream.zeros(in_q.shape(), in_q.dtype());
    const Tensor from_k = gradients[1].defined() ? gradients[1] : stream.zeros(in_k.shape(), in_k.dtype());
    // One kernel computes all four; a weight gradient that is not needed is written to scratch memory.
    const auto write = [&](const Saved& w, const std::function<void(const Tensor&, Write)>& to) {
      if (b.wants(w)) return b.write(w, to);
      to(stream.empty(b.value(w).shape(), accumulator(in_q.dtype()), MemoryTag::workspace), Write::overwrite);
    };
    write(wq, [&](const Tensor& to_q, Write how_q) {
      write(wk, [&](const Tensor& to_k, Write how_k) {
        kernels::head_norms_backward(stream, {dq, to_q, how_q, from_q, in_q, {b.value(wq), zero_centered}, b.value(rq)},
                                     {dk, to_k, how_k, from_k, in_k, {b.value(wk), zero_centered}, b.value(rk)},
                                     b.value(table), rope);
      });
    });
    b.add(q, dq);
    b.add(k, dk);
  };
  const auto out = tape.record("rmsnorm_heads", std::vector{of_q.y, of_k.y}, {q, k, wq, wk}, std::move(backward));
  return {out[0], out[1]};
}

}  // namespace witan::ops
