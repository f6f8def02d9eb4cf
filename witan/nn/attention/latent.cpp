#include "witan/nn/attention/latent.h"

#include <utility>

#include "witan/autograd/recompute.h"
#include "witan/kernels/attention/qk_clip.h"
#include "witan/kernels/gemm/gemm.h"
#include "witan/nn/mixer/step_runs.h"
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
  if (spec.indexer.own()) add_child(indexer_.emplace(builder / "indexer", spec.indexer, width, q_rank));
}

// Gathers x of the residual stream's tokens for layers that the ranks divide.
Var LatentAttention::sharded(Tape& tape, const Var& x) const {
  return axis_ ? to_sharded_layer(tape, x, *axis_) : x;
}

ops::LatentHeadSizes LatentAttention::head_sizes() const {
  return {heads_, spec_.nope_head_dim, spec_.rope_head_dim, spec_.v_head_dim, spec_.rope};
}

Var LatentAttention::query_input(Tape& tape, const Var& x, const Randomness& randomness) {
  return q_proj_ ? x : q_a_layernorm_->forward(tape, q_a_proj_->forward(tape, x, randomness), false);
}

std::vector<Var> LatentAttention::narrow_inputs(Tape& tape, const Var& x, const Var& query_input,
                                                const Randomness& randomness) {
  std::vector<Var> narrow = {sharded(tape, query_input)};
  const auto [latent, rope_key] = ops::split_columns(tape, kv_a_proj_->forward(tape, x, randomness), spec_.kv_rank);
  narrow.push_back(sharded(tape, kv_a_layernorm_->forward(tape, latent, false)));
  narrow.push_back(sharded(tape, rope_key));
  return narrow;
}

// Exchanged tensors are inputs of the recomputed segment, so that the backward does not exchange them again.
LatentAttention::Heads LatentAttention::project(Tape& tape, const Var& x, const Var& query_input,
                                                const Positions& where, const Randomness& randomness) {
  const std::vector<Var> narrow = narrow_inputs(tape, x, query_input, randomness);
  const ops::LatentHeadSizes sizes = head_sizes();
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
  const auto output = [&](const Var& mixed) {
    return o_proj_->forward(tape, ops::reshape(tape, mixed, {mixed.size(0), mixed.size(1), heads_ * spec_.v_head_dim}),
                            randomness);
  };
  const Var latent = query_input(tape, x, randomness);
  const Heads heads = project(tape, x, latent, where, randomness);
  if (spec_.indexer.any()) return output(attend_to_chosen(tape, x, latent, heads, where, randomness));
  const auto& [q, k, v] = heads;
  kernels::Dropout dropout = dropout_.drawn_from(randomness);
  dropout.heads = spec_.num_attention_heads;
  dropout.first_head = axis_ ? axis_->group.rank() * heads_ : 0;
  ops::AttentionArgs args{spec_.scale, dropout, where.hints, spec_.window};
  args.counted_positions = randomness.counted_positions;
  if (max_logits_.defined() && tape.training_forward())
    args.max_logits = max_logits_.narrow(0, dropout.first_head, heads_);
  return output(context_.forward(tape, q, k, v, where, args));
}

template <class Choose>
Tensor LatentAttention::chosen_keys(const Positions& where, const Choose& choose) const {
  const IndexerSpec& spec = spec_.indexer;
  if (!indexer_) {
    require<ShapeError>(where.chosen && where.chosen->of_layer.contains(spec.from), path(), ": layer ", spec.from,
                        ", whose indexer chooses the keys, has not run before");
    return where.chosen->of_layer.at(spec.from);
  }
  const Tensor chosen = choose();
  if (spec.lends && where.chosen) where.chosen->of_layer[spec.layer] = chosen;
  return chosen;
}

// In the warm-up, and for a loss over all keys, attention's sums over all keys are those of the plain kernel.
Var LatentAttention::attend_to_chosen(Tape& tape, const Var& x, const Var& latent, const Heads& heads,
                                      const Positions& where, const Randomness& randomness) {
  Stream& stream = tape.stream();
  const IndexerSpec& spec = spec_.indexer;
  const auto& [q, k, v] = heads;
  const Tensor ids = where.hints.one_sequence_per_row ? Tensor() : where.sequence_ids;
  const int64_t B = q.size(0), S = q.size(1);
  if (max_logits_.defined() && tape.training_forward()) {
    const int64_t first = axis_ ? axis_->group.rank() * heads_ : 0;
    kernels::attention_max_logits(stream, max_logits_.narrow(0, first, heads_),
                                  {q.value(), k.value(), v.value(), ids, spec_.scale, {}, where.hints});
  }
  const bool learns = indexer_ && spec.learns() && tape.keeps_losses();
  ops::IndexerHeads index;
  if (indexer_ && (spec.chooses() || learns)) index = indexer_->project(tape, x, latent, where, randomness);
  ops::IndexerTarget target{q.value(), k.value(), {}, {}, spec_.scale};
  Var mixed;
  if (spec.chooses()) {
    const Tensor chosen = chosen_keys(
        where, [&] { return indexer_->choose(stream, index, index.k.value(), {.rows = B, .slots = S, .ids = ids}); });
    auto [y, lse] = ops::sparse_attention(tape, q, k, v, chosen, spec_.scale, ids);
    mixed = std::move(y);
    if (spec.sparse_loss) target.lse = lse, target.chosen = chosen;
  } else {
    mixed = ops::attention(tape, q, k, v, ids, {spec_.scale, {}, where.hints});
  }
  if (!learns) return mixed;
  if (!target.lse.defined())
    target.lse = ops::attention_sums(stream, q.value(), k.value(), v.value(), ids, spec_.scale);
  indexer_->learn(tape, index, target, ids);
  return mixed;
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
  const Var input = query_input(tape, x, {});
  const Tensor mixed = decode_heads(tape, x, input, where, state);
  return o_proj_->forward(tape, tape.constant(mixed.reshape({1, mixed.size(1), heads_ * spec_.v_head_dim})));
}

Tensor LatentAttention::decode_heads(Tape& tape, const Var& x, const Var& query_input, const Positions& where,
                                     SequenceState& state) {
  if (const auto* latents = dynamic_cast<const LatentCache*>(&state))
    return decode_latents(tape, x, query_input, where, *latents);
  const Heads heads = project(tape, x, query_input, where);
  if (spec_.indexer.chooses()) return decode_chosen(tape, x, query_input, heads, where, state);
  return attend_with_cache(tape.stream(),
                           {heads.q.value(), heads.k.value(), heads.v.value(), spec_.scale, spec_.window}, where.cached,
                           where.hints, dynamic_cast<const KvCache&>(state));
}

// kv_b_proj multiplies only the latents of sequences that begin.
Tensor LatentAttention::decode_latents(Tape& tape, const Var& x, const Var& query_input, const Positions& where,
                                       const LatentCache& cache) {
  Stream& stream = tape.stream();
  cache.require_room(where.cached);
  const std::vector<Var> narrow = narrow_inputs(tape, x, query_input, {});
  const Tensor q = (q_proj_ ? q_proj_ : q_b_proj_)->forward(tape, narrow[0]).value();
  const Tensor latent = narrow[1].value(), rope_key = narrow[2].value();
  const int64_t T = q.size(1), H = heads_, hd = spec_.qk_head_dim, hd_v = spec_.v_head_dim, R = spec_.rope_head_dim;
  const Tensor angles = rotary_angles(stream, where, spec_.rope, accumulator(x.dtype()));
  const kernels::TurnedChannels turned{stream.empty({T, H, R}, x.dtype()), stream.empty({T, R}, x.dtype())};
  kernels::turn_latent_channels(stream, turned, q.reshape({T, H * hd}), rope_key.reshape({T, R}), angles, spec_.rope);
  const Tensor keys = turned.key.reshape({1, T, 1, R}), values = latent.reshape({1, T, 1, spec_.kv_rank});
  const Tensor y = stream.empty({1, T, H, hd_v}, x.dtype());
  const auto whole = [&](const kernels::CacheRun& run, int64_t first) {
    const auto of = [&](const Tensor& all) { return all.narrow(1, first, run.count); };
    const Var kv = kv_b_proj_->forward(tape, tape.constant(of(latent)));
    const auto heads = ops::latent_heads(tape, tape.constant(of(q)), kv, tape.constant(of(rope_key)),
                                         angles.defined() ? angles.narrow(0, first, run.count) : angles, head_sizes());
    attend_whole(stream, of(y), {heads.q.value(), heads.k.value(), heads.v.value(), spec_.scale, spec_.window});
    const auto part = [&](const Tensor& all) { return all.narrow(0, first, run.count); };
    cache.append(stream, of(keys), of(values), {{run}, part(where.cached.rows), part(where.cached.positions)});
  };
  const auto continued = [&](const kernels::CacheTokens& tokens, int64_t first) {
    const int64_t count = tokens.rows.elements();
    const auto of = [&](const Tensor& all) { return all.narrow(1, first, count); };
    const CachedHeads heads{of(turned.q.reshape({1, T, H, R})), of(keys), of(values), spec_.scale, spec_.window};
    absorb(tape, of(y), of(q).reshape({count, H, hd}), heads, tokens, where.hints, cache);
  };
  for_step_runs(where.cached, whole, continued);
  return y;
}

void LatentAttention::absorb(Tape& tape, const Tensor& y, const Tensor& q, CachedHeads heads,
                             const kernels::CacheTokens& tokens, const kernels::AttentionHints& hints,
                             const LatentCache& cache) {
  Stream& stream = tape.stream();
  const int64_t T = q.size(0), H = heads_, n = spec_.nope_head_dim, hd_v = spec_.v_head_dim, K = spec_.kv_rank;
  const Tensor weight = tape.parameter(kv_b_proj_->weight()).value().reshape({H, n + hd_v, K});
  const auto by_head = [&](const Tensor& x) { return x.reshape({T, H, x.size(x.shape().dims() - 1)}).transpose(0, 1); };
  heads.value_q = stream.empty({1, T, H, K}, q.dtype());
  kernels::batched_gemm(stream, by_head(heads.value_q),
                        {.a = by_head(q).narrow(2, 0, n),
                         .transpose_a = kernels::Transpose::no,
                         .b = weight.narrow(1, 0, n),
                         .transpose_b = kernels::Transpose::no});
  const Tensor mixed = attend_with_cache(stream, heads, tokens, hints, cache);  // [1, T, H, K]
  kernels::batched_gemm(stream, by_head(y),
                        {.a = by_head(mixed),
                         .transpose_a = kernels::Transpose::no,
                         .b = weight.narrow(1, n, hd_v),
                         .transpose_b = kernels::Transpose::yes});
}

// The step's keys are in the cache before its tokens choose: a token sees those up to its own position.
Tensor LatentAttention::decode_chosen(Tape& tape, const Var& x, const Var& latent, const Heads& heads,
                                      const Positions& where, SequenceState& state) {
  Stream& stream = tape.stream();
  const auto& cache = dynamic_cast<const IndexedCache&>(state);
  const kernels::CacheTokens& tokens = where.cached;
  cache.require_room(tokens);
  kernels::append_to_cache(stream, cache.keys, heads.k.value(), tokens);
  kernels::append_to_cache(stream, cache.values, heads.v.value(), tokens);
  const int64_t T = tokens.rows.elements(), R = cache.keys.size(0), C = cache.keys.size(1);
  const kernels::KeyRows rows{.rows = R, .slots = C, .row_of = tokens.rows, .positions = tokens.positions};
  const Tensor chosen = chosen_keys(where, [&] {
    const ops::IndexerHeads index = indexer_->project(tape, x, latent, where);
    kernels::append_to_cache(stream, cache.index_keys, index.k.value().reshape({1, T, 1, index.k.size(2)}), tokens);
    return indexer_->choose(stream, index, cache.index_keys, rows);
  });
  const Tensor y = stream.empty({T, heads_, spec_.v_head_dim}, x.dtype());
  kernels::sparse_attention_forward(
      stream, y, {},
      {heads.q.value().reshape({T, heads_, spec_.qk_head_dim}), cache.keys, cache.values, chosen, rows, spec_.scale});
  return y.reshape({1, T, heads_, spec_.v_head_dim});
}

std::unique_ptr<SequenceState> LatentAttention::make_state(Stream& stream, const StateSize& size, DType dtype) const {
  if (size.cache.latents)
    return std::make_unique<LatentCache>(stream, size,
                                         CachedChannels{1, spec_.rope_head_dim, spec_.kv_rank, spec_.window}, dtype);
  const CachedChannels channels{heads_, spec_.qk_head_dim, spec_.v_head_dim, spec_.window};
  const IndexerSpec& indexer = spec_.indexer;
  if (!indexer.chooses()) return std::make_unique<KvCache>(stream, size, channels, dtype);
  return std::make_unique<IndexedCache>(stream, size, channels, indexer.own() ? indexer.head_dim : 0, dtype);
}

IndexedCache::IndexedCache(Stream& stream, const StateSize& size, const CachedChannels& channels,
                           int64_t index_channels, DType dtype)
    : KvCache(stream, size, channels, dtype),
      index_keys(index_channels > 0 ? stream.empty({size.rows, size.positions, 1, index_channels}, dtype) : Tensor()) {}

int64_t IndexedCache::bytes() const {
  return KvCache::bytes() + (index_keys.defined() ? index_keys.bytes() : 0);
}

void IndexedCache::copy_row(Stream& stream, int64_t from, int64_t to) {
  KvCache::copy_row(stream, from, to);
  if (index_keys.defined()) stream.copy(index_keys.narrow(0, to, 1), index_keys.narrow(0, from, 1));
}

}  // namespace witan
