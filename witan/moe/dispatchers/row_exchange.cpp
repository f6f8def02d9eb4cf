#include "witan/moe/dispatchers/row_exchange.h"

#include <array>

#include "witan/kernels/common/blocks.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/ops/shape/redistribute.h"

namespace witan {
namespace {

// Sends rows in parts of fixed size with their weights.
std::vector<Var> send_parts_with_weights(Tape& tape, const Var& rows, const Var& weights, const RowExchange& map,
                                         const ops::Meanwhile& meanwhile) {
  const std::array<Tensor, 2> sent = {rows.value(), weights.value()};
  const std::vector<Tensor> arrived = {tape.stream().empty_like(sent[0]), tape.stream().empty_like(sent[1])};
  const auto there = [sent, arrived, group = map.group](Stream& on) {
    for (const size_t i : {0U, 1U}) group->all_to_all_equal(on, arrived[i], sent[i]);
  };
  const auto back = [group = map.group](Backward&, Stream& on, const std::vector<Tensor>& gradients) {
    std::vector<Tensor> returned(2);
    for (const size_t i : {0U, 1U}) {
      if (!gradients[i].defined()) continue;
      returned[i] = on.empty_like(gradients[i]);
      group->all_to_all_equal(on, returned[i], gradients[i]);
    }
    return returned;
  };
  return ops::overlapped(tape, {{rows, weights}, arrived, there, back}, meanwhile);
}

}  // namespace

Var copy_to_assignments(Tape& tape, const Var& x, const RowExchange& map) {
  Stream& s = tape.stream();
  const Tensor y = s.empty({map.source.size(0), x.size(1)}, x.dtype());
  kernels::gather_rows(s, y, x.value(), map.source, map.topk);
  return tape.record("copy_to_assignments", y, {x},
                     [x = tape.slot(x), shape = x.shape(), slot = tape.save(map.slot)](Backward& b, const Tensor& dy) {
                       const Tensor dx = b.stream().empty(shape, dy.dtype());
                       kernels::sum_assignments(b.stream(), dx, dy, b.value(slot));
                       b.add(x, dx);
                     });
}

Var sum_assignments(Tape& tape, const Var& rows, const RowExchange& map) {
  Stream& s = tape.stream();
  const Tensor y = s.empty({map.tokens, rows.size(1)}, rows.dtype());
  kernels::sum_assignments(s, y, rows.value(), map.slot);
  return tape.record("sum_assignments", y, {rows},
                     [rows = tape.slot(rows), shape = rows.shape(), topk = map.topk, source = tape.save(map.source)](
                         Backward& b, const Tensor& dy) {
                       const Tensor drows = b.stream().empty(shape, dy.dtype());
                       kernels::gather_rows(b.stream(), drows, dy, b.value(source), topk);
                       b.add(rows, drows);
                     });
}

Var send_rows(Tape& tape, const Var& rows, const RowExchange& map) {
  if (map.part_rows > 0) return ops::exchange_parts(tape, rows, *map.group);
  return ops::exchange_rows(tape, rows, *map.group, map.send_counts, map.recv_counts, map.capacity);
}

Var return_rows(Tape& tape, const Var& rows, const RowExchange& map) {
  if (map.part_rows > 0) return ops::exchange_parts(tape, rows, *map.group);
  return ops::exchange_rows(tape, rows, *map.group, map.recv_counts, map.send_counts, map.source.size(0));
}

// Weights, the smaller tensor, travel first: a host that must know how many rows travel learns it before the larger
// exchange begins.
std::vector<Var> send_rows_with_weights(Tape& tape, const Var& rows, const Var& weights, const RowExchange& map,
                                        const ops::Meanwhile& meanwhile) {
  if (map.part_rows > 0) return send_parts_with_weights(tape, rows, weights, map, meanwhile);
  const std::array<Tensor, 2> sent = {rows.value(), weights.value()};
  std::vector<Tensor> arrived;
  for (const Tensor& one : sent) arrived.push_back(tape.stream().empty(one.shape().with(0, map.capacity), one.dtype()));
  const auto there = [sent, arrived, &map](Stream& on) {
    for (const size_t i : {1U, 0U}) map.group->all_to_all(on, arrived[i], map.recv_counts, sent[i], map.send_counts);
  };
  const auto back = [group = map.group, shapes = std::array{rows.shape(), weights.shape()},
                     sends = tape.save(map.send_counts), receives = tape.save(map.recv_counts)](
                        Backward& b, Stream& on, const std::vector<Tensor>& gradients) {
    std::vector<Tensor> returned(2);
    for (const size_t i : {1U, 0U}) {
      if (!gradients[i].defined()) continue;
      returned[i] = on.empty(shapes[i], gradients[i].dtype());
      group->all_to_all(on, returned[i], b.value(sends), gradients[i], b.value(receives));
      kernels::zero_last_rows(on, returned[i], b.value(sends));
    }
    return returned;
  };
  return ops::overlapped(tape, {{rows, weights}, arrived, there, back}, meanwhile);
}

}  // namespace witan
