#include "witan/nn/attention.h"

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

Fields AttentionConfig::fields() {
  return {
      Field{"num_attention_heads", &num_attention_heads, "query heads"}.at_least(1),
      Field{"num_query_groups", &num_query_groups, "key/value heads; divides num_attention_heads"}.at_least(1),
      Field{"kv_channels", &kv_channels, "size of a head; 0: hidden_size / num_attention_heads"}.at_least(0),
      Field{"position_embedding_type", &position_embedding_type,
            "positions: rotated into queries and keys, learned and added to the embedding, or not at all"}
          .one_of({"rope", "learned_absolute", "none"}),
      Field{"max_position_embeddings", &max_position_embeddings, "learned positions; 0: seq_length"}.between(0,
                                                                                                             1 << 24),
      Field{"attention_dropout", &attention_dropout, "share of attention probabilities that training drops"}.at_least(
          0),
      Field{"rotary_base", &rotary_base, "base of the rotary frequencies"}.above(1),
      Field{"rotary_percent", &rotary_percent, "share of a head's channels that rotates"}.above(0),
      Field{"rotary_interleaved", &rotary_interleaved, "rotate neighbouring channels instead of halves"},
  };
}

kernels::RopeArgs AttentionConfig::rope(int64_t hidden_size) const {
  const int64_t dims = rotates() ? std::llround(static_cast<double>(head_dim(hidden_size)) * rotary_percent) : 0;
  return {rotary_base, dims, rotary_interleaved, false};
}

void AttentionConfig::validate(int64_t hidden_size) const {
  require<ConfigError>(num_attention_heads > 0 && num_query_groups > 0, "num_attention_heads = ", num_attention_heads,
                       " and num_query_groups = ", num_query_groups, " must be at least 1");
  require<ConfigError>(num_attention_heads % num_query_groups == 0, "num_query_groups = ", num_query_groups,
                       " does not divide num_attention_heads = ", num_attention_heads);
  require<ConfigError>(kv_channels != 0 || hidden_size % num_attention_heads == 0,
                       "num_attention_heads = ", num_attention_heads, " does not divide hidden_size = ", hidden_size,
                       "; set kv_channels");
  require<ConfigError>(attention_dropout < 1, "attention_dropout = ", attention_dropout,
                       " drops everything; take a share below 1, as 0.1");
  require<ConfigError>(rotary_percent <= 1, "rotary_percent = ", rotary_percent, ": a share is at most 1");
  const double rotated = static_cast<double>(head_dim(hidden_size)) * rotary_percent;
  require<ConfigError>(position_embedding_type != "rope" || (std::fmod(rotated, 2) == 0 && rotated >= 2),
                       "rope rotates pairs of channels: the head size ", head_dim(hidden_size),
                       " times rotary_percent ", rotary_percent, " must be even");
}

Tensor rotary_angles(Stream& stream, const Tensor& positions, const kernels::RopeArgs& rope, DType dtype) {
  if (rope.dims == 0) return {};
  const Tensor table = stream.empty({positions.elements(), rope.dims}, dtype);
  kernels::rotary_table(stream, table, positions, rope);
  return table;
}

Attention::Attention(const Builder& builder, const AttentionConfig& config, int64_t width, Bias bias, Group* context)
    : Module(builder.path),
      config_(config),
      axis_(builder.tensor),
      head_dim_(config.head_dim(width)),
      heads_(builder.share(config.num_attention_heads)),
      groups_(std::max<int64_t>(builder.share(config.num_query_groups), 1)),
      group_channels_(builder.share(config.num_query_groups * head_dim_)),
      rope_(config.rope(width)),
      dropout_(builder / "dropout", config.attention_dropout),
      context_(context),
      projections_(builder.side_by_side({heads_ * head_dim_ + 2 * group_channels_, width})),
      q_proj_((builder / "q_proj").at(projections_, 0, heads_ * head_dim_), width,
              config.num_attention_heads * head_dim_, builder.init_std, bias, Divided::out()),
      k_proj_((builder / "k_proj").at(projections_, heads_ * head_dim_, group_channels_), width,
              config.num_query_groups * head_dim_, builder.init_std, bias, Divided::out()),
      v_proj_((builder / "v_proj").at(projections_, heads_ * head_dim_ + group_channels_, group_channels_), width,
              config.num_query_groups * head_dim_, builder.init_std, bias, Divided::out()),
      o_proj_(builder / "o_proj", config.num_attention_heads * head_dim_, width, builder.output_init_std, bias,
              Divided::in()) {
  for (Linear* child : {&q_proj_, &k_proj_, &v_proj_, &o_proj_}) add_child(*child);
}

Attention::Heads Attention::project(Tape& tape, const Var& x, const Positions& where) {
  const int64_t B = x.size(0), S = x.size(1);
  const Shape queries{B, S, heads_, head_dim_}, groups{B, S, groups_, head_dim_};
  const auto grouped = [&](Var channels) {
    if (shares_groups()) channels = own_group(tape, std::move(channels));
    return ops::reshape(tape, channels, groups);
  };
  const auto rotated = [&](const Var& heads) {
    if (config_.position_embedding_type != "rope") return heads;
    return ops::rope(tape, heads, where.positions, config_.rotary_base, config_.rotary_interleaved,
                     config_.rotary_percent);
  };
  return {rotated(ops::reshape(tape, q_proj_.forward(tape, x), queries)), rotated(grouped(k_proj_.forward(tape, x))),
          grouped(v_proj_.forward(tape, x))};
}

// channels [B, S, G hd / n] of all groups -> [B S, hd] of the one that this rank's queries ask, all of them
Var Attention::own_group(Tape& tape, Var channels) const {
  const int64_t tokens = channels.size(0) * channels.size(1), groups = config_.num_query_groups;
  const Var all = ops::redistribute(tape, std::move(channels), axis_->group, Placement::shard(2),
                                    Placement::replicate(Placement::Uses::own));
  const int64_t group = axis_->group.rank() * groups / axis_->group.size();
  return ops::take_part(tape, ops::reshape(tape, all, {tokens, groups, head_dim_}), group);
}

Attention::Heads Attention::project_together(Tape& tape, const Var& x, const Positions& where) {
  const ops::HeadSizes sizes{heads_, groups_, head_dim_, head_dim_, rope_};
  const Tensor angles = where.angles.defined()
                            ? where.angles
                            : rotary_angles(tape.stream(), where.positions, rope_, accumulator(x.dtype()));
  const auto heads = ops::project_heads(
      tape, x, {tape.parameter(q_proj_.weight()), tape.parameter(k_proj_.weight()), tape.parameter(v_proj_.weight())},
      angles, sizes);
  return {heads.q, heads.k, heads.v};
}

Var Attention::forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness) {
  const ModuleScope scope(tape, *this);
  const Var tokens = axis_ ? to_divided_layer(tape, x, *axis_) : x;  // [B, S, D]
  const bool alone = q_proj_.has_bias() || shares_groups();
  const Heads heads = alone ? project(tape, tokens, where) : project_together(tape, tokens, where);
  const Var mixed = mix(tape, heads, where, randomness);
  return o_proj_.forward(tape, ops::reshape(tape, mixed, {mixed.size(0), mixed.size(1), mixed.size(2) * head_dim_}));
}

Var Attention::mix(Tape& tape, const Heads& heads, const Positions& where, const Randomness& randomness) {
  const auto& [q, k, v] = heads;
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim_));
  kernels::Dropout dropout = dropout_.drawn_from(randomness);
  dropout.heads = config_.num_attention_heads;
  dropout.first_head = axis_ ? axis_->group.rank() * heads_ : 0;
  if (context_ == nullptr || context_->size() == 1)
    return ops::attention(tape, q, k, v, where.sequence_ids, {scale, dropout, where.hints});
  return ops::ring_attention(tape, q, k, v, where.sequence_ids, *context_, {scale, dropout, where.hints});
}

Var Attention::decode(Tape& tape, const Var& x, const Positions& where, KvCache& cache) {
  const ModuleScope scope(tape, *this);
  const auto [q, k, v] = project(tape, x, where);
  const int64_t B = x.size(0), S = x.size(1);
  require<ShapeError>(cache.length + S <= cache.keys.size(1), "attention: ", cache.length + S,
                      " positions in a cache of ", cache.keys.size(1));
  Stream& stream = tape.stream();
  kernels::append_to_cache(stream, cache.keys, k.value(), cache.length);
  kernels::append_to_cache(stream, cache.values, v.value(), cache.length);
  const Tensor mixed = stream.empty_like(q.value());
  kernels::attention_decode(stream, mixed, q.value(), cache.keys, cache.values, cache.length,
                            1 / std::sqrt(static_cast<double>(head_dim_)));
  cache.length += S;
  return o_proj_.forward(tape, tape.constant(mixed.reshape({B, S, q.size(2) * head_dim_})));
}

KvCache Attention::make_cache(Stream& stream, int64_t batch, int64_t positions, DType dtype) const {
  const Shape shape{batch, positions, groups_, head_dim_};
  return {stream.empty(shape, dtype), stream.empty(shape, dtype), 0};
}

}  // namespace witan
