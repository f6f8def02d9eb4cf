#include "witan/nn/attention/context_attention.h"

#include <utility>

#include "witan/comm/context.h"
#include "witan/ops/attention/context_parallel.h"
#include "witan/ops/shape/shape.h"

namespace witan {

Tensor gather_sequence_ids(Stream& stream, const Tensor& sequence_ids, Group& context) {
  const int64_t B = sequence_ids.size(0), S = sequence_ids.size(1);
  return gather_positions(stream, sequence_ids.reshape({B, S, 1}), context).reshape({B, S * context.size()});
}

ContextAttention::ContextAttention(const ContextAxis& context, const AttentionSpec& spec, int64_t tensor)
    : group_(context.divides() ? context.group : nullptr) {
  if (group_ == nullptr || !exchanges_heads(context.exchange, spec, tensor, group_->size())) return;
  by_heads_ = true;
  require<ConfigError>(ranks_divide_heads(spec, tensor, group_->size()), "cp_comm_type = a2a: ", group_->size(),
                       " context-parallel ranks do not divide the ", spec.num_attention_heads / tensor,
                       " heads that tensor parallelism leaves them, or their groups of ", spec.num_query_groups,
                       "; set it to p2p");
}

Var ContextAttention::forward(Tape& tape, const Var& q, const Var& k, const Var& v, const Positions& where,
                              const ops::AttentionArgs& args, const Var& sinks) const {
  if (by_heads_) return of_own_heads(tape, q, k, v, where, args, sinks);
  if (group_ == nullptr) return ops::attention(tape, q, k, v, where.sequence_ids, args, sinks);
  return ops::ring_attention(tape, q, k, v, where.sequence_ids, *group_, args, nullptr, sinks);
}

Var ContextAttention::of_own_heads(Tape& tape, const Var& q, const Var& k, const Var& v, const Positions& where,
                                   ops::AttentionArgs args, Var sinks) const {
  const int64_t n = group_->size(), rank = group_->rank(), heads = q.size(2) / n;
  args.dropout.first_head += rank * heads;
  if (args.max_logits.defined()) args.max_logits = args.max_logits.narrow(0, rank * heads, heads);
  if (sinks.defined())
    sinks = ops::reshape(tape, ops::take_part(tape, ops::reshape(tape, sinks, {1, n, heads}), rank), {heads});
  Tensor ids = where.whole_ids;
  if (args.hints.one_sequence_per_row)
    ids = Tensor();
  else if (!ids.defined() && where.sequence_ids.defined())
    ids = gather_sequence_ids(tape.stream(), where.sequence_ids, *group_);
  const std::vector<Var> whole = ops::gather_sequence(tape, {q, k, v}, *group_);
  return ops::scatter_sequence(tape, ops::attention(tape, whole[0], whole[1], whole[2], ids, args, sinks), *group_);
}

}  // namespace witan
