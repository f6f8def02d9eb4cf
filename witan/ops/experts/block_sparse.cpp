#include "witan/ops/experts/block_sparse.h"

#include <cassert>

#include "witan/ops/shape/saved_groups.h"

namespace witan::ops {

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
