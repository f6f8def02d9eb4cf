#include "witan/ops/grouped_linear.h"

#include <cassert>

#include "witan/kernels/grouped_gemm.h"
#include "witan/ops/activation.h"
#include "witan/ops/saved_groups.h"

namespace witan::ops {
namespace {

void check_grouped_linear(const Var& rows, const RowGroups& groups, const Var& w) {
  require<ShapeError>(rows.shape().dims() == 2, "grouped_linear: rows must be [capacity, K], got ", rows.shape());
  const int64_t K = rows.size(1);
  require<ShapeError>(w.shape().dims() == 3 && w.size(2) == K, "grouped_linear: w must be [E, N, K=", K, "], got ",
                      w.shape());
  require<ShapeError>(w.dtype() == rows.dtype(), "grouped_linear: w is ", w.dtype(), " but rows are ", rows.dtype());
  for (const Tensor& bounds : {groups.begin, groups.count})
    require<ShapeError>(bounds.defined() && bounds.shape() == Shape{w.size(0)} && bounds.dtype() == DType::i64,
                        "grouped_linear: groups.begin and groups.count must be int64 [E=", w.size(0), "]",
                        bounds.defined() ? cat(", got ", bounds.dtype(), " ", bounds.shape()) : "");
}

// y = w[e] rows[i,:], which the caller computes.
Var record_linear(Tape& tape, const Tensor& y, const Var& rows, const RowGroups& groups, const Var& w) {
  return tape.record("grouped_linear", y, {rows, w},
                     [rows = tape.slot(rows), x = tape.save_for(w, rows), w = tape.save(w),
                      saved = SavedGroups(tape, groups)](Backward& b, const Tensor& dy) {
                       const RowGroups where = saved.value(b);
                       b.write_parts(w, [&](const Tensor& dw, Write how, int64_t part, int64_t parts) {
                         assert(parts == 1 || parts == where.sources());
                         kernels::grouped_gemm_backward_weight(b.stream(), dw, how, dy, b.value(x),
                                                               parts == 1 ? where : where.of_source(part));
                       });
                       if (b.wants(rows)) {
                         const Tensor dx = b.stream().empty({dy.size(0), b.value(w).size(2)}, dy.dtype());
                         kernels::grouped_gemm_backward_input(b.stream(), dx, dy, where, b.value(w));
                         b.add(rows, dx);
                       }
                     });
}

}  // namespace

Var grouped_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w) {
  check_grouped_linear(rows, groups, w);
  const Tensor y = tape.stream().empty({rows.size(0), w.size(1)}, rows.dtype());
  kernels::grouped_gemm_forward(tape.stream(), y, rows.value(), groups, w.value());
  return record_linear(tape, y, rows, groups, w);
}

Var grouped_swiglu(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w, const Var& row_weight) {
  check_grouped_linear(rows, groups, w);
  Stream& s = tape.stream();
  const Var h = record_linear(tape, s.empty({rows.size(0), w.size(1)}, rows.dtype()), rows, groups, w);
  const auto forward = [&](const Tensor& y) {
    kernels::grouped_swiglu_forward(s, y, h.value(), rows.value(), groups, w.value(),
                                    row_weight.defined() ? row_weight.value() : Tensor());
  };
  return swiglu_computed_by(forward, tape, h, row_weight, &groups);
}

}  // namespace witan::ops
