#include <cassert>

#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/ops/experts/grouped_linear.h"
#include "witan/ops/shape/shape.h"

namespace witan::ops {
namespace {

void check_gathered(const char* op, const char* name, const Var& in, const TokenRows& rows, const RowGroups& groups,
                    const Var& w) {
  require<ShapeError>(in.shape().dims() == 2, op, ": ", name, " must be a matrix, got ", in.shape());
  const int64_t K = in.size(1);
  require<ShapeError>(w.shape().dims() == 3 && w.size(2) == K, op, ": w must be [E, N, ", K, "], got ", w.shape());
  require<ShapeError>(w.dtype() == in.dtype(), op, ": w is ", w.dtype(), " but ", name, " is ", in.dtype());
  const auto found = [](const Tensor& tensor) {
    return tensor.defined() ? cat(", got ", tensor.dtype(), " ", tensor.shape()) : std::string();
  };
  for (const Tensor& bounds : {groups.begin, groups.count})
    require<ShapeError>(bounds.defined() && bounds.shape() == Shape{w.size(0)} && bounds.dtype() == DType::i64, op,
                        ": groups.begin and groups.count must be int64 [E=", w.size(0), "]", found(bounds));
  for (const Tensor& places : {rows.source, rows.slot})
    require<ShapeError>(places.defined() && places.shape().dims() == 1 && places.dtype() == DType::i64, op,
                        ": rows.source and rows.slot must be int64 and have one dim", found(places));
  require<ShapeError>(rows.topk > 0 && rows.slot.size(0) % rows.topk == 0, op,
                      ": rows.slot must be [T K], K=", rows.topk, ", got ", rows.slot.shape());
}

void check_gathered_tokens(const Var& x, const TokenRows& rows) {
  require<ShapeError>(x.size(0) * rows.topk == rows.slot.size(0),
                      "gathered_linear: x must be [T=", rows.slot.size(0) / rows.topk, ", D], got ", x.shape());
}

WeightGradient whole(const Backward::Part& dw) {
  assert(dw.parts == 1);
  return {dw.to, dw.how, dw.block_sums};
}

}  // namespace

Var gathered_linear_computed_by(const std::function<void(const Tensor& y)>& forward, Tape& tape, const Var& x,
                                const TokenRows& rows, const RowGroups& groups, const Var& w) {
  check_gathered("gathered_linear", "x", x, rows, groups, w);
  check_gathered_tokens(x, rows);
  const Tensor y = tape.stream().empty({rows.source.size(0), w.size(1)}, x.dtype());
  forward(y);
  return tape.record("gathered_linear", y, {x, w},
                     [to = tape.slot(x), x = tape.save_for(w, x), w = tape.save(w), source = tape.save(rows.source),
                      slot = tape.save(rows.slot), topk = rows.topk, shape = x.shape(),
                      saved = SavedGroups(tape, groups)](Backward& b, const Tensor& dy) {
                       const RowGroups where = saved.value(b);
                       b.write_with_sums(w, [&](const Backward::Part& dw) {
                         kernels::grouped_gemm_backward_weight(b.stream(), whole(dw), dy, b.value(x), where,
                                                               {.x = {b.value(source), topk}});
                       });
                       if (!b.wants(to)) return;
                       const Tensor dx = b.stream().empty(shape, dy.dtype());
                       {
                         const Tensor drows = b.stream().empty({dy.size(0), shape[1]}, dy.dtype());
                         kernels::grouped_gemm_backward_input(b.stream(), drows, dy, where, b.value(w));
                         kernels::sum_assignments(b.stream(), dx, drows, b.value(slot));
                       }
                       b.add(to, dx);
                     });
}

Var gathered_linear(Tape& tape, const Var& x, const TokenRows& rows, const RowGroups& groups, const Var& w) {
  const auto forward = [&](const Tensor& y) {
    kernels::grouped_gemm_forward(tape.stream(), y, x.value(), groups, w.value(), {rows.source, rows.topk});
  };
  return gathered_linear_computed_by(forward, tape, x, rows, groups, w);
}

Var summed_linear(Tape& tape, const Var& in, const TokenRows& rows, const RowGroups& groups, const Var& w) {
  check_gathered("summed_linear", "in", in, rows, groups, w);
  require<ShapeError>(in.size(0) == rows.source.size(0), "summed_linear: in must be [capacity=", rows.source.size(0),
                      ", F], got ", in.shape());
  Stream& s = tape.stream();
  const Tensor y = s.empty({rows.slot.size(0) / rows.topk, w.size(1)}, in.dtype());
  {
    const Tensor products = s.empty({in.size(0), w.size(1)}, in.dtype());
    kernels::grouped_gemm_forward(s, products, in.value(), groups, w.value());
    kernels::sum_assignments(s, y, products, rows.slot);
  }
  return tape.record("summed_linear", y, {in, w},
                     [to = tape.slot(in), in = tape.save_for(w, in), w = tape.save(w), source = tape.save(rows.source),
                      topk = rows.topk, saved = SavedGroups(tape, groups)](Backward& b, const Tensor& dy) {
                       const RowGroups where = saved.value(b);
                       const RowIndex dy_rows{b.value(source), topk};
                       b.write_with_sums(w, [&](const Backward::Part& dw) {
                         kernels::grouped_gemm_backward_weight(b.stream(), whole(dw), dy, b.value(in), where,
                                                               {.dy = dy_rows});
                       });
                       if (!b.wants(to)) return;
                       const Tensor din = b.stream().empty({dy_rows.capacity(dy), b.value(w).size(2)}, dy.dtype());
                       kernels::grouped_gemm_backward_input(b.stream(), din, dy, where, b.value(w), dy_rows);
                       b.add(to, din);
                     });
}

}  // namespace witan::ops
