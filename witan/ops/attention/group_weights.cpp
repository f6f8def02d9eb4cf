#include "witan/kernels/common/blocks.h"
#include "witan/ops/attention/heads.h"

namespace witan::ops {
namespace {

void check(const SharedProjections& parts, const Group& group) {
  const auto& [q, k, v, groups] = parts;
  const int64_t ranks = group.size();
  require<ShapeError>(groups > 0 && ranks % groups == 0, "gather_group_weights over axis ", group.name(), ": ", groups,
                      " groups do not divide its ", ranks, " ranks");
  for (const Var& part : {k, v})
    require<ShapeError>(part.shape().dims() == 2 && part.size(1) == q.size(1) && part.dtype() == q.dtype() &&
                            part.size(0) * ranks % groups == 0,
                        "gather_group_weights over axis ", group.name(), ": parts of keys and values must be [.., ",
                        q.size(1), "] and divide by groups, got ", part.shape());
}

// The rows of one group among those of all, which ranks have parts of.
struct GroupRows {
  int64_t all, own, index;
};
GroupRows rows_of(const Var& part, int64_t groups, const Group& group) {
  const int64_t all = part.size(0) * group.size();
  return {all, all / groups, group.rank() * groups / group.size()};
}

// to [own, D] = the rows of this rank's group of what ranks have parts [all / n, D] of
void gather(Stream& stream, const Tensor& to, const Tensor& part, const GroupRows& rows, Group& group) {
  if (rows.own == rows.all) return group.all_gather(stream, to, part);
  const Tensor all = stream.empty(part.shape().with(0, rows.all), part.dtype());
  group.all_gather(stream, all, part);
  stream.copy(to, all.narrow(0, rows.index * rows.own, rows.own));
}

// Its adjoint: of gradients [own, D] the sum over the ranks of each group, of which each has a part [all / n, D].
Tensor reduce(Stream& stream, const Tensor& gradient, const GroupRows& rows, Group& group) {
  Tensor all = gradient;
  if (rows.own < rows.all) {
    const int64_t D = gradient.size(1), groups = rows.all / rows.own;
    all = stream.empty({rows.all, D}, gradient.dtype());
    kernels::place_part(stream, all.reshape({1, groups, rows.own * D}), gradient.reshape({1, rows.own * D}),
                        rows.index);
  }
  const Tensor part = stream.empty(gradient.shape().with(0, rows.all / group.size()), gradient.dtype());
  group.reduce_scatter(stream, part, all);
  return part;
}

}  // namespace

Var gather_group_weights(Tape& tape, const SharedProjections& parts, Group& group) {
  check(parts, group);
  const auto& [q, k, v, groups] = parts;
  const int64_t queries = q.size(0);
  const GroupRows of_keys = rows_of(k, groups, group), of_values = rows_of(v, groups, group);
  Stream& stream = tape.stream();
  const Tensor all = stream.empty({queries + of_keys.own + of_values.own, q.size(1)}, q.dtype());
  stream.copy(all.narrow(0, 0, queries), q.value());
  gather(stream, all.narrow(0, queries, of_keys.own), k.value(), of_keys, group);
  gather(stream, all.narrow(0, queries + of_keys.own, of_values.own), v.value(), of_values, group);
  const Var gathered = tape.record(
      "gather_group_weights", all, {q, k, v},
      [q = tape.slot(q), k = tape.slot(k), v = tape.slot(v), queries, of_keys, of_values, &group](
          Backward& b, const Tensor& gradient) {
        b.add(q, gradient.narrow(0, 0, queries));
        if (b.wants(k)) b.add(k, reduce(b.stream(), gradient.narrow(0, queries, of_keys.own), of_keys, group));
        if (b.wants(v))
          b.add(v, reduce(b.stream(), gradient.narrow(0, queries + of_keys.own, of_values.own), of_values, group));
      });
  return tape.with_wide_gradient(gathered);
}

}  // namespace witan::ops
