#include "witan/nn/attention/grouped_query.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "witan/kernels/attention.h"
#include "witan/kernels/kv_cache.h"
#include "witan/ops/attention.h"
#include "witan/ops/heads.h"
#include "witan/ops/part.h"
#include "witan/ops/redistribute.h"
#include "witan/ops/ring_attention.h"
#include "witan/ops/rope.h"
#include "witan/ops/view.h"

namespace witan {

GroupedQueryAttention::GroupedQueryAttention(const Builder& builder, const AttentionSpec& spec, int64_t width,
                                             Bias bias, Group* context)
    : Attention(builder.path),
      spec_(spec),
      axis_(builder.tensor),
      heads_(builder.share(spec.num_attention_heads)),
      groups_(std::max<int64_t>(builder.share(spec.num_query_groups), 1)),
      key_channels_(builder.share(spec.num_query_groups * spec.qk_head_dim)),
      value_channels_(builder.share(spec.num_query_groups * spec.v_head_dim)),
      dropout_(builder / "dropout", spec.dropout),
      context_(context),
      projections_(builder.side_by_side({heads_ * spec.qk_head_dim + key_channels_ + value_channels_, width})),
      q_proj_((builder / "q_proj").at(projections_, 0, heads_ * spec.qk_head_dim), width,
              spec.num_attention_heads * spec.qk_head_dim, builder.init_std, bias, Divided::out()),
      k_proj_((builder / "k_proj").at(projections_, heads_ * spec.qk_head_dim, key_channels_), width,
              spec.num_query_groups * spec.qk_head_dim, builder.init_std, bias, Divided::out()),
      v_proj_((builder / "v_proj").at(projections_, heads_ * spec.qk_head_dim + key_channels_, value_channels_), width,
              spec.num_query_groups * spec.v_head_dim, builder.init_std, bias, Divided::out()),
      o_proj_(builder / "o_proj", spec.num_attention_heads * spec.v_head_dim, width, builder.output_init_std, bias,
              Divided::in()) {
  for (Linear* child : {&q_proj_, &k_proj_, &v_proj_, &o_proj_}) add_child(*child);
}

double GroupedQueryAttention::scale() const {
  return 1 / std::sqrt(static_cast<double>(spec_.qk_head_dim));
}

GroupedQueryAttention::Heads GroupedQueryAttention::project(Tape& tape, const Var& x, const Positions& where) {
  const int64_t B = x.size(0), S = x.size(1);
  const auto grouped = [&](Var channels, int64_t head_dim) {
    if (shares_groups()) channels = own_group(tape, std::move(channels));
    return ops::reshape(tape, channels, {B, S, groups_, head_dim});
  };
  const auto rotated = [&](const Var& heads) {
    return spec_.rope.dims == 0 ? heads : ops::rope(tape, heads, where.positions, spec_.rope);
  };
  const Var q = ops::reshape(tape, q_proj_.forward(tape, x), {B, S, heads_, spec_.qk_head_dim});
  return {rotated(q), rotated(grouped(k_proj_.forward(tape, x), spec_.qk_head_dim)),
          grouped(v_proj_.forward(tape, x), spec_.v_head_dim)};
}

// channels [B, S, G hd / n] of all groups -> [B S, hd] of the one that this rank's queries ask, all of them; of values
// hd_v
Var GroupedQueryAttention::own_group(Tape& tape, Var channels) const {
  const int64_t tokens = channels.size(0) * channels.size(1), groups = spec_.num_query_groups;
  const Var all = ops::redistribute(tape, std::move(channels), axis_->group, Placement::shard(2),
                                    Placement::replicate(Placement::Uses::own));
  const int64_t group = axis_->group.rank() * groups / axis_->group.size();
  return ops::take_part(tape, ops::reshape(tape, all, {tokens, groups, all.size(2) / groups}), group);
}

GroupedQueryAttention::Heads GroupedQueryAttention::project_together(Tape& tape, const Var& x, const Positions& where) {
  const ops::HeadSizes sizes{heads_, groups_, spec_.qk_head_dim, spec_.v_head_dim, spec_.rope};
  const Tensor angles = rotary_angles(tape.stream(), where, spec_.rope, accumulator(x.dtype()));
  const auto heads = ops::project_heads(
      tape, x, {tape.parameter(q_proj_.weight()), tape.parameter(k_proj_.weight()), tape.parameter(v_proj_.weight())},
      angles, sizes);
  return {heads.q, heads.k, heads.v};
}

Var GroupedQueryAttention::forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness) {
  const ModuleScope scope(tape, *this);
  const Var tokens = axis_ ? to_sharded_layer(tape, x, *axis_) : x;  // [B, S, D]
  const bool alone = q_proj_.has_bias() || shares_groups();
  const Heads heads = alone ? project(tape, tokens, where) : project_together(tape, tokens, where);
  const Var mixed = mix(tape, heads, where, randomness);
  return o_proj_.forward(tape, ops::reshape(tape, mixed, {mixed.size(0), mixed.size(1), heads_ * spec_.v_head_dim}));
}

Var GroupedQueryAttention::mix(Tape& tape, const Heads& heads, const Positions& where, const Randomness& randomness) {
  const auto& [q, k, v] = heads;
  kernels::Dropout dropout = dropout_.drawn_from(randomness);
  dropout.heads = spec_.num_attention_heads;
  dropout.first_head = axis_ ? axis_->group.rank() * heads_ : 0;
  const ops::AttentionArgs args{scale(), dropout, where.hints, spec_.window};
  if (context_ == nullptr || context_->size() == 1) return ops::attention(tape, q, k, v, where.sequence_ids, args);
  return ops::ring_attention(tape, q, k, v, where.sequence_ids, *context_, args);
}

Var GroupedQueryAttention::decode(Tape& tape, const Var& x, const Positions& where, KvCache& cache) {
  const ModuleScope scope(tape, *this);
  const Heads heads = project(tape, x, where);
  const int64_t B = x.size(0), S = x.size(1);
  require<ShapeError>(cache.length + S <= cache.limit, "attention: ", cache.length + S, " positions in a cache of ",
                      cache.limit);
  const Tensor mixed = tape.stream().empty({B, S, heads_, spec_.v_head_dim}, heads.q.dtype());
  KvCache after = cache;
  for (int64_t row = 0; row < B; ++row) {
    after = cache;
    decode_row(tape.stream(), mixed, heads, row, after);
  }
  cache = after;
  return o_proj_.forward(tape, tape.constant(mixed.reshape({B, S, heads_ * spec_.v_head_dim})));
}

// In pieces, where a window's cache has no room for all positions.
void GroupedQueryAttention::decode_row(Stream& stream, const Tensor& mixed, const Heads& heads, int64_t row,
                                       KvCache& cache) const {
  const auto of_row = [&](const Tensor& all, int64_t first, int64_t count) {
    return all.narrow(0, row, 1).narrow(1, first, count);
  };
  const int64_t S = mixed.size(1), capacity = cache.keys.size(1);
  const Tensor keys = of_row(cache.keys, 0, capacity), values = of_row(cache.values, 0, capacity);
  for (int64_t done = 0, count = 0; done < S; done += count) {
    if (cache.length - cache.first == capacity) {
      const int64_t kept = spec_.window - 1;
      for (const Tensor& cached : {keys, values})
        kernels::append_to_cache(stream, cached, cached.narrow(1, capacity - kept, kept), 0);
      cache.first = cache.length - kept;
    }
    const int64_t past = cache.length - cache.first;
    count = std::min(S - done, capacity - past);
    kernels::append_to_cache(stream, keys, of_row(heads.k.value(), done, count), past);
    kernels::append_to_cache(stream, values, of_row(heads.v.value(), done, count), past);
    kernels::attention_decode(stream, of_row(mixed, done, count), of_row(heads.q.value(), done, count), keys, values,
                              past, scale(), spec_.window);
    cache.length += count;
  }
}

KvCache GroupedQueryAttention::make_cache(Stream& stream, int64_t batch, int64_t positions, DType dtype) const {
  const int64_t capacity = spec_.window > 0 ? std::min(positions, 2 * spec_.window) : positions;
  return {stream.empty({batch, capacity, groups_, spec_.qk_head_dim}, dtype),
          stream.empty({batch, capacity, groups_, spec_.v_head_dim}, dtype), 0, 0, positions};
}

}  // namespace witan
