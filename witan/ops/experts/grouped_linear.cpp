#include "witan/ops/experts/grouped_linear.h"

#include <cassert>

#include "witan/kernels/grouped/grouped_gemm.h"
#include "witan/ops/experts/expert_replicas.h"
#include "witan/ops/shape/shape.h"

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

kernels::BlockTopology block_topology(Stream& stream, const RowGroups& groups, int64_t capacity) {
  const int64_t E = groups.experts();
  kernels::BlockTopology topology{stream.empty({kernels::most_block_rows(capacity, E), 3}, DType::i32),
                                  stream.empty({E + 1}, DType::i32), groups};
  kernels::block_topology(stream, topology);
  return topology;
}

Var block_sparse_linear(Tape& tape, const Var& rows, const kernels::BlockTopology& topology, const Var& w) {
  require<ShapeError>(rows.shape().dims() == 2, "block_sparse_linear: rows must be [capacity, K], got ", rows.shape());
  require<ShapeError>(w.shape().dims() == 3 && w.size(0) == topology.experts() && w.size(2) == rows.size(1),
                      "block_sparse_linear: w must be [E=", topology.experts(), ", N, K=", rows.size(1), "], got ",
                      w.shape());
  require<ShapeError>(w.dtype() == rows.dtype(), "block_sparse_linear: w is ", w.dtype(), " but rows are ",
                      rows.dtype());
  Stream& s = tape.stream();
  const Tensor y = s.empty({rows.size(0), w.size(1)}, rows.dtype());
  kernels::block_rows_product(s, y, rows.value(), topology, w.value(), kernels::Transpose::yes);
  return tape.record(
      "block_sparse_linear", y, {rows, w},
      [rows = tape.save(rows), w = tape.save(w), blocks = tape.save(topology.blocks), first = tape.save(topology.first),
       groups = SavedGroups(tape, topology.groups)](Backward& b, const Tensor& dy) {
        const kernels::BlockTopology where{b.value(blocks), b.value(first), groups.value(b)};
        b.write_parts(w, [&](const Tensor& dw, Write how, int64_t part, int64_t parts) {
          assert(parts == 1 || parts == where.groups.sources());
          kernels::block_columns_product(
              b.stream(), dw, how, dy, b.value(rows),
              parts == 1 ? where : block_topology(b.stream(), where.groups.of_source(part), dy.size(0)));
        });
        if (!b.wants(rows)) return;
        const Tensor dx = b.stream().empty({dy.size(0), b.value(w).size(2)}, dy.dtype());
        kernels::block_rows_product(b.stream(), dx, dy, where, b.value(w), kernels::Transpose::no);
        b.add(rows, dx);
      });
}

}  // namespace witan::ops
