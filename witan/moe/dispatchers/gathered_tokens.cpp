#include "witan/moe/dispatchers/gathered_tokens.h"

#include <algorithm>

#include "witan/kernels/common/blocks.h"
#include "witan/kernels/moe/dispatch.h"
#include "witan/ops/shape/redistribute.h"

namespace witan {

DispatchMap make_gathered_map(Stream& stream, const Routing& routing, Group& group) {
  const int64_t R = group.size(), E = routing.counts.size(0), local = E / R;
  require<ShapeError>(E % R == 0, "dispatch: ", E, " experts are not divisible by ", R, " expert-parallel ranks");
  DispatchMap map;
  map.tokens = R * routing.ids.size(0);
  map.topk = routing.ids.size(1);
  // What an all-to-all bounds the pool by: no rank has more than this for another.
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
