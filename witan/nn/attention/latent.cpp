#include "witan/nn/attention/latent.h"

#include "witan/autograd/recompute.h"
#include "witan/ops/attention/heads.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

// The norm of latents is DeepSeek's, whatever the model's other norms are.
NormConfig latent_norm() {
  NormConfig norm;
  norm.norm_epsilon = 1e-6;
  return norm;
}

}  // namespace

LatentAttention::LatentAttention(const Builder& builder, const LatentSpec& spec, int64_t width,
                                 const ContextAxis& context)
    : Attention(builder.path),
      spec_(spec),
      axis_(builder.tensor),
      heads_(builder.share(spec.num_attention_heads)),
      dropout_(builder / "dropout", spec.dropout),
      context_(context, spec, builder.tensor_ranks()) {
  const int64_t H = spec.num_attention_heads, q_rank = spec.q_rank, kv_rank = spec.kv_rank;
  const auto linear = [&](std::optional<Linear>& to, const char* name, int64_t in, int64_t out, Divided divided) {
    add_child(to.emplace(builder / name, in, out, builder.init_std, Bias::none, divided));
  };
  if (q_rank == 0) {
    linear(q_proj_, "q_proj", width, H * spec.qk_head_dim, Divided::out());
  } else {
    linear(q_a_proj_, "q_a_proj", width, q_rank, {});
    add_child(q_a_layernorm_.emplace(builder / "q_a_layernorm", latent_norm(), q_rank));
    linear(q_b_proj_, "q_b_proj", q_rank, H * spec.qk_head_dim, Divided::out());
  }
  linear(kv_a_proj_, "kv_a_proj_with_mqa", width, kv_rank + spec.rope_head_dim, {});
  add_child(kv_a_layernorm_.emplace(builder / "kv_a_layernorm", latent_norm(), kv_rank));
  linear(kv_b_proj_, "kv_b_proj", kv_rank, H * (spec.nope_head_dim + spec.v_head_dim), Divided::out());
  add_child(o_proj_.emplace(builder / "o_proj", H * spec.v_head_dim, width, builder.output_init_std, Bias::none,
                            Divided::in()));
}

// Gathers x of the residual stream's tokens for layers that the ranks divide.
Var LatentAttention::sharded(Tape& tape, const Var& x) const {
  return axis_ ? to_sharded_layer(tape, x, *axis_) : x;
}

Var LatentAttention::query_input(Tape& tape, const Var& x, const Randomness& randomness) {
  if (q_proj_) return sharded(tape, x);
  return sharded(tape, q_a_layernorm_->forward(tape, q_a_proj_->forward(tape, x, randomness), false));
}

// Exchanged tensors are inputs of the recomputed segment, so that the backward does not exchange them again.
LatentAttention::Heads LatentAttention::project(Tape& tape, const Var& x, const Positions& where,
                                                const Randomness& randomness) {
  std::vector<Var> narrow = {query_input(tape, x, randomness)};
  {
    const auto [latent, rope_key] = ops::split_columns(tape, kv_a_proj_->forward(tape, x, randomness), spec_.kv_rank);
    narrow.push_back(sharded(tape, kv_a_layernorm_->forward(tape, latent, false)));
    narrow.push_back(sharded(tape, rope_key));
  }
  const ops::LatentHeadSizes sizes{heads_, spec_.nope_head_dim, spec_.rope_head_dim, spec_.v_head_dim, spec_.rope};
  const Tensor angles = rotary_angles(tape.stream(), where, spec_.rope, accumulator(x.dtype()));
  const auto up = [this, angles, sizes, randomness](Tape& on, const std::vector<Var>& in) {
    const Var q = (q_proj_ ? q_proj_ : q_b_proj_)->forward(on, in[0], randomness);
    const Var kv = kv_b_proj_->forward(on, in[1], randomness);
    const auto heads = ops::latent_heads(on, q, kv, in[2], angles, sizes);
    return std::vector{heads.q, heads.k, heads.v};
  };
  const std::vector<Var> heads = recompute_up_ ? recomputed_when_needed(tape, narrow, up) : up(tape, narrow);
  return {heads[0], heads[1], heads[2]};
}

Var LatentAttention::forward(Tape& tape, const Var& x, const Positions& where, const Randomness& randomness,
                             const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  const auto [q, k, v] = project(tape, x, where, randomness);
  kernels::Dropout dropout = dropout_.drawn_from(randomness);
  dropout.heads = spec_.num_attention_heads;
  dropout.first_head = axis_ ? axis_->group.rank() * heads_ : 0;
  ops::AttentionArgs args{spec_.scale, dropout, where.hints, spec_.window};
  args.counted_positions = randomness.counted_positions;
  if (max_logits_.defined() && tape.training_forward())
    args.max_logits = max_logits_.narrow(0, dropout.first_head, heads_);
  const Var mixed = context_.forward(tape, q, k, v, where, args);
  return o_proj_->forward(tape, ops::reshape(tape, mixed, {mixed.size(0), mixed.size(1), heads_ * spec_.v_head_dim}),
                          randomness);
}

// All heads share the rotary keys, so the queries for them take all of a head's scaling.
std::vector<ClippedLogits::Projection> LatentAttention::clipped() {
  using Of = Projection::Of;
  const int64_t still = spec_.nope_head_dim;
  return {{&(q_proj_ ? q_proj_ : q_b_proj_)->weight(), Of::queries, still, Of::queries_of_shared_keys},
          {&kv_b_proj_->weight(), Of::keys, still}};
}

Var LatentAttention::decode(Tape& tape, const Var& x, const Positions& where, SequenceState& state,
                            const Var& /*embedded*/) {
  const ModuleScope scope(tape, *this);
  const Heads heads = project(tape, x, where);
  const Tensor mixed =
      attend_with_cache(tape.stream(), {heads.q.value(), heads.k.value(), heads.v.value(), spec_.scale, spec_.window},
                        where.cached, where.hints, dynamic_cast<const KvCache&>(state));
  return o_proj_->forward(tape, tape.constant(mixed.reshape({1, mixed.size(1), heads_ * spec_.v_head_dim})));
}

std::unique_ptr<SequenceState> LatentAttention::make_state(Stream& stream, const StateSize& size, DType dtype) const {
  return std::make_unique<KvCache>(stream, size,
                                   CachedChannels{heads_, spec_.qk_head_dim, spec_.v_head_dim, spec_.window}, dtype);
}

}  // namespace witan
