#include "witan/moe/dispatchers/expert_tensor.h"

#include "witan/kernels/common/blocks.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/ops/shape/redistribute.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

// buffers [n capacity, D], in the order of ranks -> by expert
Var to_merged_order(Tape& tape, const Var& buffers, const MergedBuffers& merged) {
  Stream& s = tape.stream();
  const Tensor y = s.empty_like(buffers.value());
  kernels::gather_first_rows(s, y, buffers.value(), merged.place, merged.groups.count);
  return tape.record("to_merged_order", y, {buffers},
                     [buffers = tape.slot(buffers), place = tape.save(merged.place),
                      count = tape.save(merged.groups.count)](Backward& b, const Tensor& dy) {
                       const Tensor dx = b.stream().empty_like(dy);
                       kernels::scatter_first_rows(b.stream(), dx, dy, b.value(place), b.value(count));
                       b.add(buffers, dx);
                     });
}

// Its inverse.
Var to_buffers(Tape& tape, const Var& rows, const MergedBuffers& merged) {
  Stream& s = tape.stream();
  const Tensor y = s.empty_like(rows.value());
  kernels::scatter_first_rows(s, y, rows.value(), merged.place, merged.groups.count);
  return tape.record("to_buffers", y, {rows},
                     [rows = tape.slot(rows), place = tape.save(merged.place), count = tape.save(merged.groups.count)](
                         Backward& b, const Tensor& dy) {
                       const Tensor dx = b.stream().empty_like(dy);
                       kernels::gather_first_rows(b.stream(), dx, dy, b.value(place), b.value(count));
                       b.add(rows, dx);
                     });
}

// [capacity, D] of each rank -> [n capacity, D], merged
Var gather(Tape& tape, const Var& rows, const MergedBuffers& merged) {
  return to_merged_order(
      tape,
      ops::redistribute(tape, rows, merged.group, Placement::shard(0), Placement::replicate(Placement::Uses::own)),
      merged);
}

}  // namespace

MergedBuffers merge_buffers(Stream& stream, const DispatchMap& map, Group& group) {
  const int64_t E = map.groups.experts(), n = group.size();
  const Tensor buffers = stream.empty({n, 2, E}, DType::i64), own = stream.empty({2, E}, DType::i64);
  kernels::take_part(stream, own.narrow(0, 0, 1), map.groups.begin.reshape({1, 1, E}), 0);
  kernels::take_part(stream, own.narrow(0, 1, 1), map.groups.count.reshape({1, 1, E}), 0);
  group.all_gather(stream, buffers.reshape({n * 2, E}), own);
  MergedBuffers merged{group,
                       {stream.empty({E}, DType::i64), stream.empty({E}, DType::i64)},
                       stream.empty({n * map.capacity}, DType::i64)};
  if (map.groups.expected_rows >= 0) merged.groups.expected_rows = n * map.groups.expected_rows;
  kernels::merge_order(stream, merged.groups, merged.place, buffers, map.capacity);
  return merged;
}

Dispatched gather_buffers(Tape& tape, const Dispatched& own, const MergedBuffers& merged) {
  const int64_t capacity = own.rows.size(0), all = merged.place.elements();
  const Var weights = gather(tape, ops::reshape(tape, own.row_weights, {capacity, 1}), merged);
  return {gather(tape, own.rows, merged), ops::reshape(tape, weights, {all})};
}

Var scatter_sums(Tape& tape, const Var& y, const MergedBuffers& merged) {
  return ops::redistribute(tape, to_buffers(tape, y, merged), merged.group, Placement::partial(), Placement::shard(0));
}

}  // namespace witan
