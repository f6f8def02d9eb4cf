#include "witan/nn/attention/grouped_query.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <utility>

#include "witan/kernels/attention/attention.h"
#include "witan/ops/attention/heads.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/shape/redistribute.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

// For norms that divide by the root mean square only.
NormConfig unweighted(NormConfig norm) {
  norm.normalization = "RMSNorm";
  norm.norm_weight = norm.norm_bias = false;
  return norm;
}

// Sinks are drawn like a matrix, as in Megatron-LM and gpt-oss; PyTorch has no default for a single parameter.
Initialization sinks_init(const Builder& builder) {
  return builder.torch ? Initialization{Initialization::Kind::zeros} : Initialization{.std = builder.init_std};
}

// A projection to keys or values with these rows of `memory`; null if there are none.
std::unique_ptr<Linear> projection(const Builder& builder, const Tensor& memory, int64_t first, int64_t rows,
                                   int64_t width, int64_t out, Bias bias) {
  if (rows == 0) return nullptr;
  return std::make_unique<Linear>(builder.at(memory, first, rows), width, out, builder.init_std, bias, Divided::out());
}

}  // namespace

GroupedQueryAttention::GroupedQueryAttention(const Builder& builder, const MultiHeadSpec& spec, int64_t width,
                                             Bias bias, const ContextAxis& context, const NormConfig& norm)
    : Attention(builder.path),
      spec_(spec),
      axis_(builder.tensor),
      heads_(builder.share(spec.num_attention_heads)),
      groups_(std::max<int64_t>(builder.share(spec.num_query_groups), 1)),
      key_channels_(spec.borrows() ? 0 : builder.share(spec.num_query_groups * spec.qk_head_dim)),
      value_channels_(spec.borrows() || spec.values_from_keys ? 0
                                                              : builder.share(spec.num_query_groups * spec.v_head_dim)),
      dropout_(builder / "dropout", spec.dropout),
      context_(context, spec, builder.tensor_ranks()),
      projections_(builder.side_by_side({heads_ * spec.qk_head_dim + key_channels_ + value_channels_, width})),
      q_proj_((builder / "q_proj").at(projections_, 0, heads_ * spec.qk_head_dim), width,
              spec.num_attention_heads * spec.qk_head_dim, builder.init_std, spec.qkv_bias ? Bias::zeros : bias,
              Divided::out()),
      k_proj_(projection(builder / "k_proj", projections_, heads_ * spec.qk_head_dim, key_channels_, width,
                         spec.num_query_groups * spec.qk_head_dim, spec.qkv_bias ? Bias::zeros : bias)),
      v_proj_(projection(builder / "v_proj", projections_, heads_ * spec.qk_head_dim + key_channels_, value_channels_,
                         width, spec.num_query_groups * spec.v_head_dim, spec.qkv_bias ? Bias::zeros : bias)),
      o_proj_(builder / "o_proj", spec.num_attention_heads * spec.v_head_dim, width, builder.output_init_std,
              spec.output_bias ? Bias::zeros : bias, Divided::in()) {
  for (Linear* child : {&q_proj_, k_proj_.get(), v_proj_.get(), &o_proj_})
    if (child != nullptr) add_child(*child);
  if (spec.output_gate)
    add_child(g_proj_.emplace(builder / "g_proj", width, spec.num_attention_heads * spec.v_head_dim, builder.init_std,
                              spec.qkv_bias ? Bias::zeros : bias, Divided::out()));
  const bool full_width = spec.qk_norm == QkNorm::full_width;
  const Builder own_heads = builder.of_own_part();
  if (spec.qk_norm != QkNorm::none) {
    const Builder& of_norms = full_width ? builder : own_heads;
    const NormConfig of_heads = spec.qk_norm == QkNorm::l2 ? unweighted(norm) : norm;
    const int64_t queries = full_width ? spec.num_attention_heads : 1, keys = full_width ? spec.num_query_groups : 1;
    add_child(q_norm_.emplace(of_norms / "q_norm", of_heads, queries * spec.qk_head_dim, full_width));
    if (!spec.borrows()) add_child(k_norm_.emplace(of_norms / "k_norm", of_heads, keys * spec.qk_head_dim, full_width));
  }
  if (spec.v_norm && !spec.borrows())
    add_child(v_norm_.emplace(own_heads / "v_norm", unweighted(norm), spec.v_head_dim));
  if (spec.sinks)
    sinks_ = &add_parameter(builder.of_kind(ParameterKind::biases), "sinks", {spec.num_attention_heads},
                            sinks_init(builder), false, TensorSplit{0});
  constexpr double kHalf = 0.5;
  const auto scalar = [&](const char* name) {
    return &add_parameter(own_heads.of_kind(ParameterKind::norms), name, {1}, Initialization::constant(kHalf), false);
  };
  if (spec.value_scale) value_scale_ = scalar("value_scale");
  if (spec.value_table > 0) embedded_scale_ = scalar("embedded_scale");
}

double GroupedQueryAttention::scale() const {
  return spec_.scale > 0 ? spec_.scale : 1 / std::sqrt(static_cast<double>(spec_.qk_head_dim));
}

// v [.., G hd_v / n] or its heads
Var GroupedQueryAttention::mix_values(Tape& tape, const Var& v, const Var& embedded) {
  assert(embedded.defined() == (embedded_scale_ != nullptr));
  if (value_scale_ == nullptr) return v;
  const Var scale = tape.parameter(*value_scale_);
  if (embedded_scale_ == nullptr) return ops::scaled_sum(tape, {v, scale});
  return ops::scaled_sum(tape, {v, scale}, {ops::reshape(tape, embedded, v.shape()), tape.parameter(*embedded_scale_)});
}

GroupedQueryAttention::Heads GroupedQueryAttention::borrow(Tape& tape, const Var& x, const Positions& where,
                                                           const Randomness& randomness) {
  Var q = q_proj_.forward(tape, x, randomness), none;
  if (spec_.qk_norm == QkNorm::full_width) normalise_width(tape, q, none);
  q = ops::reshape(tape, q, {x.size(0), x.size(1), heads_, spec_.qk_head_dim});
  const LentHeads::Heads& lent = where.lent->of_layer.at(spec_.sharing->of);
  return {prepare(tape, {std::move(q), {}, {}}, where).q, lent.keys, lent.values};
}

GroupedQueryAttention::Heads GroupedQueryAttention::project(Tape& tape, const Var& x, const Positions& where,
                                                            const Var& embedded, const Randomness& randomness) {
  const int64_t B = x.size(0), S = x.size(1);
  Var q = q_proj_.forward(tape, x, randomness), k = k_proj_->forward(tape, x, randomness),
      v = v_proj_ ? v_proj_->forward(tape, x, randomness) : k;
  if (spec_.qk_norm == QkNorm::full_width) normalise_width(tape, q, k);
  v = mix_values(tape, v, embedded);
  if (shares_groups()) {
    const bool once = !v_proj_ && spec_.qk_norm != QkNorm::full_width;  // keys and values are still the same
    k = own_group(tape, std::move(k));
    v = once ? k : own_group(tape, std::move(v));
  }
  return prepare(tape,
                 {ops::reshape(tape, q, {B, S, heads_, spec_.qk_head_dim}),
                  ops::reshape(tape, k, {B, S, groups_, spec_.qk_head_dim}),
                  ops::reshape(tape, v, {B, S, groups_, spec_.v_head_dim})},
                 where);
}

void GroupedQueryAttention::normalise_width(Tape& tape, Var& q, Var& k) {
  const auto normalise = [&](Norm& norm, Var& x, int64_t channels) {
    const Shape shape = x.shape();
    x = ops::reshape(tape, x, {shape[0] * shape[1], channels});
    x = ops::reshape(tape, norm.forward(tape, x, false), shape);
  };
  normalise(*q_norm_, q, heads_ * spec_.qk_head_dim);
  if (k.defined()) normalise(*k_norm_, k, key_channels_);
}

bool GroupedQueryAttention::normalises_in_one_pass() const {
  if (spec_.qk_norm != QkNorm::per_head || spec_.clip_qkv > 0 || spec_.borrows()) return false;
  const NormConfig& norm = q_norm_->config();
  return norm.normalization == "RMSNorm" && norm.norm_weight;
}

GroupedQueryAttention::Heads GroupedQueryAttention::prepare(Tape& tape, Heads heads, const Positions& where) {
  if (normalises_in_one_pass()) {
    const auto [q, k] =
        ops::rmsnorm_heads(tape, heads.q, heads.k, tape.parameter(q_norm_->weight()), tape.parameter(k_norm_->weight()),
                           rotary_angles(tape.stream(), where, spec_.rope, accumulator(heads.q.dtype())), spec_.rope,
                           q_norm_->config().norm_epsilon, q_norm_->config().apply_layernorm_1p);
    return {q, k, heads.v};
  }
  const bool rotated_first = spec_.qk_norm == QkNorm::per_head_rotated;
  const auto normalise = [&] {
    heads.q = q_norm_->forward(tape, heads.q, false);
    if (heads.k.defined()) heads.k = k_norm_->forward(tape, heads.k, false);
  };
  if (q_norm_ && spec_.qk_norm != QkNorm::full_width && !rotated_first) normalise();
  if (spec_.clip_qkv > 0)
    for (Var* x : {&heads.q, &heads.k, &heads.v})
      if (x->defined()) *x = ops::clamp(tape, *x, spec_.clip_qkv);
  if (spec_.rope.dims > 0)
    for (Var* x : {&heads.q, &heads.k})
      if (x->defined()) *x = ops::rope(tape, *x, where.positions, spec_.rope);
  if (rotated_first) normalise();
  return heads;
}

// channels [B, S, G hd / n] of all groups -> [B S, hd], all channels of this rank's group; hd_v for values
Var GroupedQueryAttention::own_group(Tape& tape, Var channels) const {
  const int64_t tokens = channels.size(0) * channels.size(1), groups = spec_.num_query_groups;
  const Var all = ops::redistribute(tape, std::move(channels), axis_->group, Placement::shard(2),
                                    Placement::replicate(Placement::Uses::own));
  const int64_t group = axis_->group.rank() * groups / axis_->group.size();
  return ops::take_part(tape, ops::reshape(tape, all, {tokens, groups, all.size(2) / groups}), group);
}

GroupedQueryAttention::Heads GroupedQueryAttention::project_together(Tape& tape, const Var& x, const Positions& where,
                                                                     const std::vector<Var>& weights,
                                                                     const Var& embedded) {
  const kernels::RopeArgs rope = spec_.prepares_heads() ? kernels::RopeArgs{} : spec_.rope;  // else prepare() rotates
  const ops::HeadSizes sizes{heads_, groups_, spec_.qk_head_dim, spec_.v_head_dim, rope};
  const Tensor angles = rotary_angles(tape.stream(), where, rope, accumulator(x.dtype()));
  const auto heads = ops::project_heads(tape, x, weights, angles, sizes);
  Heads all{heads.q, heads.k, heads.v};
  all.v = mix_values(tape, all.v, embedded);
  if (!spec_.prepares_heads()) return all;
  if (spec_.qk_norm == QkNorm::full_width) normalise_width(tape, all.q, all.k);
  return prepare(tape, std::move(all), where);
}

std::vector<Var> GroupedQueryAttention::projection_weights(Tape& tape) {
  const Var q = tape.parameter(q_proj_.weight());
  if (!k_proj_) return {q};
  const Var k = tape.parameter(k_proj_->weight());
  if (!v_proj_) return {q, k};
  const Var v = tape.parameter(v_proj_->weight());
  if (!shares_groups() || gathers_channels()) return {q, k, v};
  return {ops::gather_group_weights(tape, {q, k, v, spec_.num_query_groups}, axis_->group)};
}

bool GroupedQueryAttention::projects_separately() const {
  return !v_proj_ || std::ranges::any_of(std::array<const Linear*, 3>{&q_proj_, k_proj_.get(), v_proj_.get()},
                                         [](const Linear* projection) {
                                           return projection->has_bias() || projection->multiplies_in_fp8() ||
                                                  projection->has_adapters();
                                         });
}

GroupedQueryAttention::Heads GroupedQueryAttention::heads_of(Tape& tape, const Var& x, const Positions& where,
                                                             const std::vector<Var>& weights,
                                                             const Randomness& randomness, const Var& embedded) {
  if (spec_.borrows()) return borrow(tape, x, where, randomness);
  Heads heads = projects_separately() || gathers_channels() ? project(tape, x, where, embedded, randomness)
                                                            : project_together(tape, x, where, weights, embedded);
  if (v_norm_) heads.v = v_norm_->forward(tape, heads.v, false);
  if (spec_.lends()) where.lent->of_layer[spec_.sharing->of] = {heads.k, heads.v};
  return heads;
}

Var GroupedQueryAttention::forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness,
                                   const Var& embedded) {
  const ModuleScope scope(tape, *this);
  const Var tokens = axis_ ? to_sharded_layer(tape, x, *axis_) : x;  // [B, S, D]
  const Var mixed = attend(tape, tokens, where, projection_weights(tape), randomness, embedded);
  return o_proj_.forward(tape, mixed, randomness);
}

Var GroupedQueryAttention::summands(Tape& tape, const Var& x, const Positions& where, const std::vector<Var>& weights,
                                    const Randomness& randomness, const Var& embedded) {
  const ModuleScope scope(tape, *this);
  return o_proj_.summands(tape, attend(tape, x, where, weights, randomness, embedded), randomness);
}

Var GroupedQueryAttention::attend(Tape& tape, const Var& x, const Positions& where, const std::vector<Var>& weights,
                                  const Randomness& randomness, const Var& embedded) {
  const Heads heads = heads_of(tape, x, where, weights, randomness, embedded);
  const Var mixed = mix(tape, heads, where, randomness);
  const Shape channels{mixed.size(0), mixed.size(1), heads_ * spec_.v_head_dim};
  return gated(tape, ops::reshape(tape, mixed, channels), x, randomness);
}

Var GroupedQueryAttention::gated(Tape& tape, Var mixed, const Var& x, const Randomness& randomness) {
  return g_proj_ ? ops::sigmoid_gate(tape, mixed, g_proj_->forward(tape, x, randomness)) : mixed;
}

Var GroupedQueryAttention::mix(Tape& tape, const Heads& heads, const Positions& where, const Randomness& randomness) {
  const auto& [q, k, v] = heads;
  kernels::Dropout dropout = dropout_.drawn_from(randomness);
  dropout.heads = spec_.num_attention_heads;
  dropout.first_head = axis_ ? axis_->group.rank() * heads_ : 0;
  ops::AttentionArgs args{scale(), dropout, where.hints, spec_.window};
  args.counted_positions = randomness.counted_positions;
  if (max_logits_.defined() && tape.training_forward())
    args.max_logits = max_logits_.narrow(0, dropout.first_head, heads_);
  const Var sinks = sinks_ ? tape.parameter(*sinks_) : Var();
  return context_.forward(tape, q, k, v, where, args, sinks);
}

std::vector<ClippedLogits::Projection> GroupedQueryAttention::clipped() {
  std::vector<Projection> all;
  for (const auto& [of, linear] :
       {std::pair{Projection::Of::queries, &q_proj_}, {Projection::Of::keys, k_proj_.get()}}) {
    if (linear == nullptr) continue;
    all.push_back({&linear->weight(), of});
    if (Parameter* bias = linear->bias()) all.push_back({bias, of});
  }
  return all;
}

bool GroupedQueryAttention::fills_cache_at_once(const kernels::CacheTokens& tokens) const {
  return normalises_in_one_pass() && !spec_.lends() && !projects_separately() && !gathers_channels() && !v_norm_ &&
         value_scale_ == nullptr &&
         std::ranges::all_of(tokens.runs, [](const kernels::CacheRun& run) { return run.count == 1; });
}

// Writes the tokens' keys and values to the cache; returns their queries [1, T, H, hd].
Tensor GroupedQueryAttention::heads_to_cache(Tape& tape, const Var& x, const Positions& where, const KvCache& cache) {
  Stream& stream = tape.stream();
  const Tensor packed = ops::project_rows(stream, x, projection_weights(tape),
                                          {heads_, groups_, spec_.qk_head_dim, spec_.v_head_dim, {}});
  const Tensor q = stream.empty({1, x.size(1), heads_, spec_.qk_head_dim}, x.dtype());
  const auto weight = [&](Norm& norm) {
    return kernels::NormWeight(tape.parameter(norm.weight()).value(), norm.config().apply_layernorm_1p);
  };
  const NormConfig& norm = q_norm_->config();
  kernels::heads_to_cache(
      stream, q, cache.keys, cache.values,
      {packed, weight(*q_norm_), weight(*k_norm_), rotary_angles(stream, where, spec_.rope, accumulator(x.dtype())),
       spec_.rope, norm.norm_epsilon},
      where.cached);
  return q;
}

Var GroupedQueryAttention::decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state,
                                  const Var& embedded) {
  const ModuleScope scope(tape, *this);
  const Var tokens = axis_ ? to_sharded_layer(tape, x, *axis_) : x;  // [1, T, D]
  const auto& cache = dynamic_cast<const KvCache&>(state);
  CachedHeads heads{{}, {}, {}, scale(), spec_.window, sinks_ ? tape.parameter(*sinks_).value() : Tensor()};
  heads.kept = spec_.borrows();
  if (fills_cache_at_once(where.cached) && !cache.key_scales.defined()) {
    heads.q = heads_to_cache(tape, tokens, where, cache);
  } else {
    const Heads all = heads_of(tape, tokens, where, projection_weights(tape), {}, embedded);
    heads.q = all.q.value(), heads.k = all.k.value(), heads.v = all.v.value();
  }
  const Tensor mixed = attend_with_cache(tape.stream(), heads, where.cached, where.hints, cache);
  const Var channels = tape.constant(mixed.reshape({1, mixed.size(1), heads_ * spec_.v_head_dim}));
  return o_proj_.forward(tape, gated(tape, channels, tokens, {}));
}

std::unique_ptr<SequenceState> GroupedQueryAttention::make_state(Stream& stream, const StateSize& size,
                                                                 DType dtype) const {
  if (spec_.borrows()) return nullptr;
  const int64_t window =
      spec_.lends() ? 0 : spec_.window;  // positions that the cache may forget: MultiHeadSpec::state_bytes
  return std::make_unique<KvCache>(stream, size, CachedChannels{groups_, spec_.qk_head_dim, spec_.v_head_dim, window},
                                   dtype);
}

}  // namespace witan
