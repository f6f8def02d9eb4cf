#include "witan/nn/attention/attention.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/context.h"
#include "witan/ops/attention/attention.h"
#include "witan/ops/shape/shape.h"

namespace witan {
namespace {

using kernels::CacheRun;
using kernels::CacheTokens;

int64_t slots_of(const StateSize& size, int64_t window) {
  return window > 0 && !size.all_positions ? std::min(size.positions, 2 * window) : size.positions;
}

void add_sinks(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& sinks) {
  if (sinks.defined()) kernels::attention_sinks_forward(stream, y, lse, sinks);
}

Tensor elements_of(Stream& stream, const StateSize& size, const CachedChannels& channels, int64_t dim, DType dtype) {
  return stream.empty({size.rows, slots_of(size, channels.window), channels.groups, dim},
                      size.cache.fp8 ? DType::f8 : dtype);
}

Tensor scales_of(Stream& stream, const StateSize& size, const CachedChannels& channels) {
  if (!size.cache.fp8) return {};
  return stream.empty({size.rows, slots_of(size, channels.window), channels.groups}, DType::f32);
}

// A part of a step's tokens, with their heads and their output.
struct Part {
  CacheTokens tokens;
  Tensor q, k, v, y;  // [1, count, ..]
  Tensor value_q;     // or undefined
};

// The tokens [first, first + count) of a step's tensor.
Tensor tokens_of(const Tensor& x, int64_t first, int64_t count) {
  return x.defined() ? x.narrow(1, first, count) : x;
}

CacheTokens tokens_of(CacheTokens tokens, int64_t first, int64_t count) {
  tokens.runs[0].past += first;
  tokens.runs[0].count = count;
  tokens.rows = tokens.rows.narrow(0, first, count);
  tokens.positions = tokens.positions.narrow(0, first, count);
  return tokens;
}

class CachedStep {
 public:
  CachedStep(Stream& stream, const CachedHeads& heads, const kernels::AttentionHints& hints, const KvCache& cache)
      : stream_(stream), heads_(heads), hints_(hints), cache_(cache) {}

  void whole(const Part& part) {
    attend_whole(stream_, part.y, {part.q, part.k, part.v, heads_.scale, heads_.window, heads_.sinks});
    if (!heads_.kept) cache_.append(stream_, part.k, part.v, part.tokens);
  }
  // Attends from tokens of sequences that are in the cache, in pieces if a window's ring has no room for all of them.
  void continued(const Part& part) {
    const int64_t count = part.q.size(1), slots = cache_.keys.size(1);
    const bool ring = heads_.window > 0 && slots < cache_.limit && part.tokens.runs.size() == 1;
    const int64_t piece = ring ? slots - heads_.window + 1 : count;
    for (int64_t done = 0; done < count; done += piece) few(narrowed(part, done, std::min(piece, count - done)));
  }

 private:
  // The tokens [first, first + count) of a part. A part of several runs can only be taken whole.
  Part narrowed(const Part& part, int64_t first, int64_t count) const {
    if (count == part.q.size(1)) return part;
    const auto of = [&](const Tensor& x) { return tokens_of(x, first, count); };
    return {tokens_of(part.tokens, first, count), of(part.q), of(part.k), of(part.v), of(part.y), of(part.value_q)};
  }
  void few(const Part& part) {
    if (part.k.defined() && !heads_.kept) cache_.append(stream_, part.k, part.v, part.tokens);
    const int64_t T = part.q.size(1), H = part.q.size(2);
    const Tensor y = part.y.reshape({T, 1, H, part.y.size(3)});
    const Tensor lse = heads_.sinks.defined() ? stream_.empty({T, H, 1}, accumulator(y.dtype())) : Tensor();
    const auto by_token = [&](const Tensor& x) { return x.defined() ? x.reshape({T, 1, H, x.size(3)}) : x; };
    kernels::cached_attention(stream_, y, lse,
                              {by_token(part.q), cache_.keys, cache_.values, part.tokens, heads_.scale, heads_.window,
                               hints_.batch_invariant, by_token(part.value_q), cache_.key_scales, cache_.value_scales});
    add_sinks(stream_, y, lse, heads_.sinks);
  }

  Stream& stream_;
  const CachedHeads& heads_;
  const kernels::AttentionHints& hints_;
  const KvCache& cache_;
};

}  // namespace

KvCache::KvCache(Stream& stream, const StateSize& size, const CachedChannels& channels, DType dtype)
    : keys(elements_of(stream, size, channels, channels.key_dim, dtype)),
      values(elements_of(stream, size, channels, channels.value_dim, dtype)),
      key_scales(scales_of(stream, size, channels)),
      value_scales(scales_of(stream, size, channels)),
      limit(size.positions) {}

int64_t KvCache::bytes() const {
  return keys.bytes() + values.bytes() + (key_scales.defined() ? key_scales.bytes() + value_scales.bytes() : 0);
}

void KvCache::require_room(const CacheTokens& tokens) const {
  for (const CacheRun& run : tokens.runs)
    require<ShapeError>(run.past + run.count <= limit, "attention: ", run.past + run.count, " positions in a cache of ",
                        limit);
}

void KvCache::append(Stream& stream, const Tensor& k, const Tensor& v, const CacheTokens& tokens) const {
  const int64_t count = k.size(1), slots = keys.size(1);
  if (tokens.runs.size() == 1 && count > slots) {
    const auto last = [&](const Tensor& x) { return tokens_of(x, count - slots, slots); };
    return append(stream, last(k), last(v), tokens_of(tokens, count - slots, slots));
  }
  if (!key_scales.defined()) {
    kernels::append_to_cache(stream, keys, k, tokens);
    kernels::append_to_cache(stream, values, v, tokens);
    return;
  }
  kernels::append_quantised(stream, keys, key_scales, k, tokens);
  kernels::append_quantised(stream, values, value_scales, v, tokens);
}

int64_t KvCache::resumable(int64_t wanted, int64_t /*held*/, int64_t reach) const {
  const int64_t slots = keys.size(1), window = slots / 2;
  return slots < limit && wanted < reach - window - 1 ? 0 : wanted;
}

void KvCache::copy_row(Stream& stream, int64_t from, int64_t to) {
  for (const Tensor* cache : {&keys, &values, &key_scales, &value_scales})
    if (cache->defined()) stream.copy(cache->narrow(0, to, 1), cache->narrow(0, from, 1));
}

void attend_whole(Stream& stream, const Tensor& y, const CachedHeads& heads) {
  const Tensor lse = stream.empty({1, heads.q.size(2), heads.q.size(1)}, accumulator(heads.q.dtype()));
  // On a GPU too Witan's own kernels compute it: cuDNN prepares a plan for each length, which takes longer than the
  // attention itself.
  const kernels::AttentionHints hints{.one_sequence_per_row = true, .batch_invariant = true};
  kernels::attention_forward(stream, y, lse, {heads.q, heads.k, heads.v, {}, heads.scale, {}, hints, {}, heads.window});
  add_sinks(stream, y, lse, heads.sinks);
}

Tensor attend_with_cache(Stream& stream, const CachedHeads& heads, const CacheTokens& tokens,
                         const kernels::AttentionHints& hints, const KvCache& cache) {
  const int64_t T = heads.q.size(1);
  const Tensor y = stream.empty({1, T, heads.q.size(2), cache.values.size(3)}, heads.q.dtype());
  cache.require_room(tokens);
  CachedStep step(stream, heads, hints, cache);
  const auto part_of = [&](size_t first, size_t count, int64_t token) {
    CacheTokens some = tokens.part(first, count, token);
    const auto of = [&](const Tensor& x) { return tokens_of(x, token, some.rows.elements()); };
    Part part{{}, of(heads.q), of(heads.k), of(heads.v), of(y), of(heads.value_q)};
    part.tokens = std::move(some);
    return part;
  };
  int64_t token = 0;
  for (size_t i = 0, next = 0; i < tokens.runs.size(); i = next) {
    next = i + 1;
    if (tokens.runs[i].count == 1)  // consecutive runs of one token share a call
      while (next < tokens.runs.size() && tokens.runs[next].count == 1) ++next;
    const Part part = part_of(i, next - i, token);
    if (tokens.runs[i].count > 1 && tokens.runs[i].past == 0)
      step.whole(part);
    else
      step.continued(part);
    token += part.q.size(1);
  }
  return y;
}

Tensor gather_sequence_ids(Stream& stream, const Tensor& sequence_ids, Group& context) {
  const int64_t B = sequence_ids.size(0), S = sequence_ids.size(1);
  return gather_positions(stream, sequence_ids.reshape({B, S, 1}), context).reshape({B, S * context.size()});
}

Tensor whole_sequence_ids(Stream& stream, const Positions& where, Group& context) {
  if (where.hints.one_sequence_per_row) return {};
  if (where.whole_ids.defined() || !where.sequence_ids.defined()) return where.whole_ids;
  return gather_sequence_ids(stream, where.sequence_ids, context);
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
  const Tensor ids = whole_sequence_ids(tape.stream(), where, *group_);
  const std::vector<Var> whole = ops::gather_sequence(tape, {q, k, v}, *group_);
  return ops::scatter_sequence(tape, ops::attention(tape, whole[0], whole[1], whole[2], ids, args, sinks), *group_);
}

}  // namespace witan
