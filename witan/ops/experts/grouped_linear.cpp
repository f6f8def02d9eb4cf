#include "witan/ops/experts/grouped_linear.h"

#include <cassert>

#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/ops/experts/expert_replicas.h"
#include "witan/ops/shape/saved_groups.h"

namespace witan::ops {
namespace {

void check_grouped_linear(const Var& rows, const RowGroups& groups, const Var& w, const ExpertReplicas& replicas) {
  require<ShapeError>(rows.shape().dims() == 2, "grouped_linear: rows must be [capacity, K], got ", rows.shape());
  const int64_t K = rows.size(1);
  require<ShapeError>(w.shape().dims() == 3 && w.size(2) == K, "grouped_linear: w must be [E, N, K=", K, "], got ",
                      w.shape());
  require<ShapeError>(w.dtype() == rows.dtype(), "grouped_linear: w is ", w.dtype(), " but rows are ", rows.dtype());
  const int64_t E = w.size(0) + replicas.slots();
  for (const Tensor& bounds : {groups.begin, groups.count})
    require<ShapeError>(bounds.defined() && bounds.shape() == Shape{E} && bounds.dtype() == DType::i64,
                        "grouped_linear: groups.begin and groups.count must be int64 [E=", E, "]",
                        bounds.defined() ? cat(", got ", bounds.dtype(), " ", bounds.shape()) : "");
}

}  // namespace

Var grouped_linear_computed_by(const std::function<void(const Tensor& y)>& forward, Tape& tape, const Var& rows,
                               const RowGroups& groups, const Var& w, const ExpertReplicas& replicas) {
  check_grouped_linear(rows, groups, w, replicas);
  const Tensor y = tape.stream().empty({rows.size(0), w.size(1)}, rows.dtype());
  forward(y);
  return tape.record(
      "grouped_linear", y, {rows, w},
      [rows = tape.slot(rows), x = tape.save_for(w, rows), w = tape.save(w), saved = SavedGroups(tape, groups),
       replicas = SavedReplicas(tape, replicas)](Backward& b, const Tensor& dy) {
        Stream& s = b.stream();
        const RowGroups where = saved.value(b);
        const ExpertReplicas also = replicas.value(b);
        b.write_with_sums(w, [&](const Backward::Part& dw) {
          write_stacks(s, also, where, dw, [&](const RowGroups& of, const WeightGradient& to) {
            kernels::grouped_gemm_backward_weight(s, to, dy, b.value(x), of);
          });
        });
        if (!b.wants(rows)) return;
        const Tensor dx = s.empty({dy.size(0), b.value(w).size(2)}, dy.dtype());
        for_stacks(s, also, where, b.value(w), [&](const RowGroups& of, const Tensor& stack) {
          kernels::grouped_gemm_backward_input(s, dx, dy, of, stack);
        });
        b.add(rows, dx);
      });
}

Var grouped_linear(Tape& tape, const Var& rows, const RowGroups& groups, const Var& w, const ExpertReplicas& replicas) {
  const auto forward = [&](const Tensor& y) {
    for_stacks(tape.stream(), replicas, groups, w.value(), [&](const RowGroups& of, const Tensor& stack) {
      kernels::grouped_gemm_forward(tape.stream(), y, rows.value(), of, stack);
    });
  };
  return grouped_linear_computed_by(forward, tape, rows, groups, w, replicas);
}

}  // namespace witan::ops
