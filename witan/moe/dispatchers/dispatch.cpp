#include "witan/moe/dispatchers/dispatch.h"

#include <algorithm>
#include <cassert>

#include "witan/kernels/common/blocks.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/ops/shape/redistribute.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

// weights [T, K] -> [N, 1] in send order
Var sort_weights(Tape& tape, const Var& weights, const DispatchMap& map) {
  Stream& s = tape.stream();
  Tensor y;
  if (map.weights.defined() && map.weights.raw() == weights.value().raw()) {
    y = map.row_weights;
  } else {
    const Tensor flat = weights.value().reshape({map.tokens * map.topk, 1});
    y = s.empty({map.source.size(0), 1}, flat.dtype());
    kernels::gather_rows(s, y, flat, map.source, 1);
  }
  return tape.record("sort_weights", y, {weights},
                     [weights = tape.slot(weights), shape = weights.shape(), slot = tape.save(map.slot)](
                         Backward& b, const Tensor& dy) {
                       const Tensor d = b.stream().empty({shape.elements(), 1}, dy.dtype());
                       kernels::gather_rows(b.stream(), d, dy, b.value(slot), 1);
                       b.add(weights, d.reshape(shape));
                     });
}

// How rows move between arrival order and expert order. The index has, for each row of one side, its row of the other;
// the first sum(counts) rows of the indexed side are valid.
struct Reordering {
  const Tensor& index;
  const Tensor& counts;
  bool to_buffer_gathers;  // the buffer's rows are indexed
};
Reordering reordering(const DispatchMap& map) {
  if (map.part_rows > 0) return {map.arrival, map.groups.count, true};
  return {map.place, map.recv_counts, false};
}

void move_first_rows(Stream& stream, bool gathers, const Tensor& y, const Tensor& x, const Tensor& index,
                     const Tensor& counts) {
  gathers ? kernels::gather_first_rows(stream, y, x, index, counts)
          : kernels::scatter_first_rows(stream, y, x, index, counts);
}

// rows [arriving_rows, D] as they arrived -> [capacity, D] grouped by expert
Var to_expert_order(Tape& tape, const Var& rows, const DispatchMap& map) {
  Stream& s = tape.stream();
  const auto [index, counts, gathers] = reordering(map);
  const Tensor y = s.empty(rows.shape().with(0, map.capacity), rows.dtype());
  move_first_rows(s, gathers, y, rows.value(), index, counts);
  return tape.record("to_expert_order", y, {rows},
                     [rows = tape.slot(rows), shape = rows.shape(), index = tape.save(index),
                      counts = tape.save(counts), gathers = gathers](Backward& b, const Tensor& dy) {
                       const Tensor d = b.stream().empty(shape, dy.dtype());
                       move_first_rows(b.stream(), !gathers, d, dy, b.value(index), b.value(counts));
                       b.add(rows, d);
                     });
}

// The inverse: [capacity, D] grouped by expert -> [arriving_rows, D] as they arrived
Var to_arrival_order(Tape& tape, const Var& rows, const DispatchMap& map) {
  Stream& s = tape.stream();
  const auto [index, counts, gathers] = reordering(map);
  const Tensor y = s.empty(rows.shape().with(0, map.arriving_rows()), rows.dtype());
  move_first_rows(s, !gathers, y, rows.value(), index, counts);
  return tape.record("to_arrival_order", y, {rows},
                     [rows = tape.slot(rows), shape = rows.shape(), index = tape.save(index),
                      counts = tape.save(counts), gathers = gathers](Backward& b, const Tensor& dy) {
                       const Tensor d = b.stream().empty(shape, dy.dtype());
                       move_first_rows(b.stream(), gathers, d, dy, b.value(index), b.value(counts));
                       b.add(rows, d);
                     });
}

// x [T, D], weights [T, K] -> the experts' receive buffers on all ranks; here [capacity, D] and [capacity]
Dispatched push_assignments(Tape& tape, const Var& x, const Var& weights, const DispatchMap& map,
                            const ops::Meanwhile* meanwhile) {
  Stream& s = tape.stream();
  const PeerMemory::Rows buffer{s.empty({map.capacity, x.size(1)}, x.dtype()),
                                s.empty({map.capacity}, weights.dtype())};
  const PeerMemory::Rows own{x.value(), weights.value().reshape({map.tokens * map.topk})};
  const auto push = [buffer, own, &map](Stream& on) {
    map.peers->push_rows(on, buffer, own, map.source, map.topk, map.remote);
  };
  const auto pull = [rows_shape = x.shape(), weights_shape = weights.shape(), peers = map.peers,
                     slot = tape.save(map.slot),
                     remote = tape.save(map.remote)](Backward& b, Stream& on, const std::vector<Tensor>& gradients) {
    const PeerMemory::Rows there{gradients[0], gradients[1]};
    PeerMemory::Rows here;
    if (there.rows.defined()) here.rows = on.empty(rows_shape, there.rows.dtype());
    if (there.weights.defined()) here.weights = on.empty({weights_shape.elements()}, there.weights.dtype());
    peers->pull_rows(on, here, there, b.value(slot), b.value(remote));
    if (here.weights.defined()) here.weights = here.weights.reshape(weights_shape);
    return std::vector{here.rows, here.weights};
  };
  if (meanwhile) {
    const auto out = ops::overlapped(tape, {{x, weights}, {buffer.rows, buffer.weights}, push, pull}, *meanwhile);
    return {out[0], out[1]};
  }
  push(s);
  const auto out = tape.record(
      "push_assignments", {buffer.rows, buffer.weights}, {x, weights},
      [x = tape.slot(x), weights = tape.slot(weights), pull](Backward& b, const std::vector<Tensor>& gradients) {
        const std::vector<Tensor> here = pull(b, b.stream(), gradients);
        if (here[0].defined()) b.add(x, here[0]);
        if (here[1].defined()) b.add(weights, here[1]);
      });
  return {out[0], out[1]};
}

// buffer [capacity, D] of every rank -> [T, D]: the adjoint
Var pull_sums(Tape& tape, const Var& buffer, const DispatchMap& map) {
  Stream& s = tape.stream();
  const Tensor y = s.empty({map.tokens, buffer.size(1)}, buffer.dtype());
  map.peers->pull_rows(s, {y, {}}, {buffer.value(), {}}, map.slot, map.remote);
  return tape.record("pull_sums", y, {buffer},
                     [buffer = tape.slot(buffer), shape = buffer.shape(), peers = map.peers, topk = map.topk,
                      source = tape.save(map.source), remote = tape.save(map.remote)](Backward& b, const Tensor& dy) {
                       const Tensor dbuffer = b.stream().empty(shape, dy.dtype());
                       peers->push_rows(b.stream(), {dbuffer, {}}, {dy, {}}, b.value(source), topk, b.value(remote));
                       b.add(buffer, dbuffer);
                     });
}

// Send rows -> this rank's receive buffer.
Var send(Tape& tape, const Var& rows, const DispatchMap& map) {
  return map.group ? to_expert_order(tape, send_rows(tape, rows, map), map) : rows;
}

void check_dispatched(const Var& x, const Var& weights, const DispatchMap& map) {
  require<ShapeError>(x.shape().dims() == 2 && x.size(0) == map.tokens, "dispatch: x must be [T=", map.tokens,
                      ", D], got ", x.shape());
  require<ShapeError>(weights.shape() == Shape({map.tokens, map.topk}), "dispatch: weights must be [T=", map.tokens,
                      ", K=", map.topk, "], got ", weights.shape());
}

// Completes a map whose rows travel in parts of fixed size: kept [E], this rank's rows for each expert.
DispatchMap in_parts(Stream& stream, DispatchMap map, const Tensor& kept, Group& group, int64_t part_rows) {
  const int64_t R = group.size(), local = kept.elements() / R;
  const auto integers = [&](const Shape& shape) { return stream.empty(shape, DType::i64); };
  map.group = &group;
  map.part_rows = part_rows;
  map.capacity = std::min(map.capacity, R * part_rows);
  const Tensor counts = integers({R}), parts = integers({R * part_rows}), received = integers({R, local});
  kernels::rank_counts(stream, counts, kept);
  kernels::spread_to_parts(stream, map.slot, parts, map.source, counts);
  map.source = parts;
  group.all_to_all_equal(stream, received, kept.reshape({R, local}));
  kernels::gathered_groups(stream, map.groups, received);
  map.arrival = integers({map.capacity});
  kernels::find_in_parts(stream, map.arrival, map.groups, part_rows);
  return map;
}

}  // namespace

bool rows_go_by_peers(Group& group, int64_t experts) {
  return group.peers() != nullptr && experts <= PeerMemory::kMostExperts;
}

DispatchMap make_dispatch_map(Stream& stream, const Routing& routing, Group& group) {
  DispatchMap map;
  map.tokens = routing.ids.size(0);
  map.topk = routing.ids.size(1);
  const int64_t assignments = map.tokens * map.topk, E = routing.counts.size(0), R = group.size(), local = E / R;
  require<ShapeError>(E % R == 0, "dispatch: ", E, " experts are not divisible by ", R, " expert-parallel ranks");
  const auto integers = [&](const Shape& shape) { return stream.empty(shape, DType::i64); };
  const int64_t experts = routing.replicas.any() ? routing.replicas.choice.place.size(1) : E;
  int64_t rows = std::min(assignments, experts * routing.capacity);
  if (routing.send_rows > 0) rows = std::min(rows, routing.send_rows);
  map.slot = integers({assignments});
  map.source = integers({rows});
  map.groups = {integers({local}), integers({local})};
  map.groups.expected_rows = rows;
  if (R == 1) {
    map.capacity = rows;
    if (routing.weights.defined()) {
      map.weights = routing.weights.value();
      map.row_weights = stream.empty({rows, 1}, map.weights.dtype());
    }
    kernels::local_order(stream, {map.slot, map.source, map.groups, map.row_weights}, routing.ids, routing.kept,
                         map.weights);
    return map;
  }
  kernels::send_order(stream, map.slot, map.source, routing.ids, routing.kept);
  // A token visits an expert at most once, and an expert keeps its capacity: no rank gets more than this from another.
  map.capacity = R * std::min(map.tokens * std::min(map.topk, local), local * routing.capacity);
  if (routing.buffer_rows > 0) map.capacity = std::min(map.capacity, routing.buffer_rows);
  map.groups.source_begin = integers({R, local});
  map.groups.source_count = integers({R, local});
  if (rows_go_by_peers(group, E)) {
    map.peers = group.peers();
    map.remote = integers({rows});
    map.peers->place_rows(stream, map.groups, map.remote, routing.kept, map.capacity);
    return map;
  }
  if (routing.part_rows > 0) return in_parts(stream, std::move(map), routing.kept, group, routing.part_rows);
  map.group = &group;
  map.send_counts = integers({R});
  map.recv_counts = integers({R});
  map.place = integers({map.capacity});
  kernels::rank_counts(stream, map.send_counts, routing.kept);
  const Tensor received = integers({R, local});
  group.all_to_all_equal(stream, received, routing.kept.reshape({R, local}));
  kernels::receive_order(stream, map.groups, map.recv_counts, map.place, received);
  return map;
}

Dispatched dispatch(Tape& tape, const Var& x, const Var& weights, const DispatchMap& map,
                    const ops::Meanwhile* meanwhile) {
  check_dispatched(x, weights, map);
  if (map.peers) return push_assignments(tape, x, weights, map, meanwhile);
  if (meanwhile && map.group) {
    const Var sent = copy_to_assignments(tape, x, map), sent_weights = sort_weights(tape, weights, map);
    const std::vector<Var> arrived = send_rows_with_weights(tape, sent, sent_weights, map, *meanwhile);
    const Var grouped = to_expert_order(tape, arrived[0], map);
    return {grouped, ops::reshape(tape, to_expert_order(tape, arrived[1], map), {map.capacity})};
  }
  const Var rows = send(tape, copy_to_assignments(tape, x, map), map);
  const Var row_weights = send(tape, sort_weights(tape, weights, map), map);
  return {rows, ops::reshape(tape, row_weights, {map.capacity})};
}

Dispatched dispatch_in_place(Tape& tape, const Var& x, const Var& weights, const DispatchMap& map) {
  check_dispatched(x, weights, map);
  assert(!map.group && !map.peers);
  return {x, ops::reshape(tape, sort_weights(tape, weights, map), {map.capacity}), &map};
}

Dispatched copied_to_rows(Tape& tape, const Dispatched& in) {
  return {copy_to_assignments(tape, in.rows, *in.in_place), in.row_weights};
}

Var combine(Tape& tape, const Var& rows, const DispatchMap& map) {
  require<ShapeError>(rows.shape().dims() == 2 && rows.size(0) == map.capacity,
                      "combine: rows must be [capacity=", map.capacity, ", D], got ", rows.shape());
  if (map.peers) return pull_sums(tape, rows, map);
  if (!map.group) return sum_assignments(tape, rows, map);
  return sum_assignments(tape, return_rows(tape, to_arrival_order(tape, rows, map), map), map);
}

DispatchMap make_gathered_map(Stream& stream, const Routing& routing, Group& group) {
  const int64_t R = group.size(), E = routing.counts.size(0), local = E / R;
  require<ShapeError>(E % R == 0, "dispatch: ", E, " experts are not divisible by ", R, " expert-parallel ranks");
  DispatchMap map;
  map.tokens = R * routing.ids.size(0);
  map.topk = routing.ids.size(1);
  // The receive buffer's bound is that of an all-to-all: no rank has more rows for another.
  map.capacity = R * std::min(routing.ids.size(0) * std::min(map.topk, local), local * routing.capacity);
  const auto integers = [&](const Shape& shape) { return stream.empty(shape, DType::i64); };
  const Tensor all_ids = stream.empty({map.tokens, map.topk}, DType::i32), ids = stream.empty_like(all_ids);
  group.all_gather(stream, all_ids, routing.ids);
  kernels::local_choices(stream, ids, all_ids, group.rank() * local, local);
  const Tensor all_kept = integers({R, E}), kept = integers({R, local});
  group.all_gather(stream, all_kept, routing.kept.reshape({1, E}));
  kernels::take_part(stream, kept, all_kept.reshape({R, R, local}), group.rank());

  map.groups = {integers({local}), integers({local}), integers({R, local}), integers({R, local})};
  map.groups.expected_rows = std::min(routing.ids.elements(), E * routing.capacity);
  kernels::gathered_groups(stream, map.groups, kept);
  map.slot = integers({ids.elements()});
  map.source = integers({map.capacity});
  kernels::send_order(stream, map.slot, map.source, ids, map.groups.count);
  return map;
}

Var gather_tokens(Tape& tape, const Var& x, Group& group) {
  return ops::redistribute(tape, x, group, Placement::shard(0), Placement::replicate(Placement::Uses::own));
}

Var scatter_token_sums(Tape& tape, Var y, Group& group) {
  return ops::redistribute(tape, std::move(y), group, Placement::partial(), Placement::shard(0));
}

}  // namespace witan
