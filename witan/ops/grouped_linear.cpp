#include "witan/ops/grouped_linear.h"

#include "witan/kernels/grouped_gemm.h"

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

}  // namespace

Var grouped_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w, int64_t expected_rows) {
  check_grouped_linear(rows, groups, w);
  Stream& s = tape.stream();
  const Tensor y = s.empty({rows.size(0), w.size(1)}, rows.dtype());
  kernels::grouped_gemm_forward(s, y, rows.value(), groups, w.value(), expected_rows);
  return tape.record("grouped_linear", y, {rows, w},
                     [rows = tape.save(rows), w = tape.save(w), begin = tape.save(groups.begin),
                      count = tape.save(groups.count), expected_rows](Backward& b, const Tensor& dy) {
                       const RowGroups saved{b.value(begin), b.value(count)};
                       b.write(w, [&](const Tensor& dw, Write how) {
                         kernels::grouped_gemm_backward_weight(b.stream(), dw, how, dy, b.value(rows), saved,
                                                               expected_rows);
                       });
                       if (b.wants(rows)) {
                         const Tensor dx = b.stream().empty({dy.size(0), b.value(w).size(2)}, dy.dtype());
                         kernels::grouped_gemm_backward_input(b.stream(), dx, dy, saved, b.value(w), expected_rows);
                         b.add(rows, dx);
                       }
                     });
}

}  // namespace witan::ops
