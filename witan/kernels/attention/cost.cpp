#include <algorithm>
#include <array>
#include <cassert>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/attention_path.h"
#include "witan/kernels/attention/heads.h"
#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/attention/qk_clip.h"
#include "witan/kernels/attention/rope.h"
#include "witan/kernels/attention/sequence_pieces.h"

namespace witan::kernels {
namespace {

struct Run {
  int64_t begin, size;
};

std::array<Run, 2> runs_of(const PositionRuns& positions, int64_t tokens) {
  const int64_t in_first = std::min(tokens, positions.split);
  return {Run{positions.first, in_first}, Run{positions.second, tokens - in_first}};
}

// The sum over the positions in `queries` of the number of positions in `keys` that are not after it.
double causal_pairs(const Run& queries, const Run& keys) {
  const auto up_to = [&](int64_t queries_from_first_key) {  // for queries at keys.begin + 0, 1, …
    const double all = static_cast<double>(std::max<int64_t>(queries_from_first_key, 0));
    const double size = static_cast<double>(keys.size), rising = std::min(all, size);
    return rising * (rising + 1) / 2 + (all - rising) * size;
  };
  return up_to(queries.begin + queries.size - keys.begin) - up_to(queries.begin - keys.begin);
}

// Query-key pairs of all rows and heads. Documents reduce them, by a number that shapes do not tell.
double visible_pairs(const Tensor& q, int64_t keys, const AttentionBlock& block, int64_t window) {
  double pairs = 0;
  for (const Run& of_queries : runs_of(block.queries, q.size(1)))
    for (const Run& of_keys : runs_of(block.keys, keys)) {
      pairs += causal_pairs(of_queries, of_keys);
      if (window > 0) pairs -= causal_pairs({of_queries.begin - window, of_queries.size}, of_keys);
    }
  return static_cast<double>(q.size(0) * q.size(2)) * pairs;
}
double visible_pairs(const AttentionInputs& in) {
  return visible_pairs(in.q, in.k.size(1), in.block, in.window);
}

double head_size(const Tensor& x) {
  return static_cast<double>(x.size(3));
}

CallShape shape_of(const AttentionInputs& in) {
  return {in.q.size(1), in.k.size(1), in.q.size(3), in.q.size(0) * in.q.size(2)};
}

AttentionPath path_of(Stream& stream, const AttentionInputs& in, bool backward) {
  return stream.plans_for_cuda() ? attention_path(in, backward) : AttentionPath{OwnAttention::suited};
}

double rows_bytes(const LatentRows& rows) {
  return bytes_of(rows.q, rows.kv, rows.rope_key);
}

// The channels that rotate, over all heads.
double turned(const Heads& heads, const LatentRows& rows) {
  return static_cast<double>(heads.q.elements() / heads.q.shape().last() * rows.rope_key.shape().last());
}

}  // namespace

// Two products: hd multiply-adds per pair for the scores, and hd_v for the output.
void attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in) {
  const Cost cost{2 * visible_pairs(in) * (head_size(in.q) + head_size(in.v)),
                  bytes_of(y, lse, in.q, in.k, in.v, in.sequence_ids, in.block.key_ids)};
  const AttentionPath path = path_of(stream, in, false);
  WITAN_LAUNCH_NAMED(stream, attention_forward, counted_name(path.own, false), cost, shape_of(in), y, lse, in);
}

// Five products: the scores again, dy v^T, and one per gradient; dy v^T and dv use hd_v, the others hd.
void attention_backward(Stream& stream, const AttentionGradients& to, const Tensor& dy, const Tensor& y,
                        const Tensor& lse, const AttentionInputs& in) {
  const Cost cost{2 * visible_pairs(in) * (3 * head_size(in.q) + 2 * head_size(in.v)),
                  bytes_of(to.dq, to.dk, to.dv, dy, y, lse, in.q, in.k, in.v, in.sequence_ids, in.block.key_ids)};
  const AttentionPath path = path_of(stream, in, true);
  AttentionInputs given = in;
  if (path.workspace > 0)
    given.workspace = stream.empty({path.workspace / size_of(DType::i32)}, DType::i32, MemoryTag::workspace);
  WITAN_LAUNCH_NAMED(stream, attention_backward, counted_name(path.own, true), cost, shape_of(in), to, dy, y, lse,
                     given);
}

// Four operations per element, and a few per row.
void attention_merge(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& y_part, const Tensor& lse_part) {
  const Cost cost{4 * static_cast<double>(y.elements()), 2 * bytes_of(y, lse) + bytes_of(y_part, lse_part)};
  WITAN_LAUNCH(stream, attention_merge, cost, y, lse, y_part, lse_part);
}

void attention_decode(Stream& stream, const Tensor& y, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                      int64_t past, double scale, int64_t window, const Tensor& lse) {
  const int64_t keys = past + q.size(1), read = window > 0 ? std::min(keys, window + q.size(1) - 1) : keys;
  const int64_t key_bytes = k_cache.size(2) * (k_cache.size(3) + v_cache.size(3)) * size_of(k_cache.dtype());
  const double pairs = visible_pairs(q, keys, {.queries = {past}}, window);
  const Cost cost{2 * pairs * (head_size(q) + head_size(v_cache)),
                  bytes_of(y, lse, q) + static_cast<double>(q.size(0) * read * key_bytes)};
  WITAN_LAUNCH(stream, attention_decode, cost, y, q, k_cache, v_cache, past, scale, window, lse);
}

void attention_sinks_forward(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& sinks) {
  const Cost cost{static_cast<double>(y.elements()), 2 * bytes_of(y, lse) + bytes_of(sinks)};
  WITAN_LAUNCH(stream, attention_sinks_forward, cost, y, lse, sinks);
}

void attention_sinks_backward(Stream& stream, const Tensor& dsinks, Write write, const Tensor& dy, const Tensor& y,
                              const Tensor& lse, const Tensor& sinks) {
  const Cost cost{2.0 * static_cast<double>(y.elements()), bytes_of(dsinks, dy, y, lse, sinks)};
  WITAN_LAUNCH(stream, attention_sinks_backward, cost, dsinks, write, dy, y, lse, sinks);
}

void cached_attention(Stream& stream, const Tensor& y, const Tensor& lse, const CachedInputs& in) {
  double keys = 0;  // over all tokens
  for (const CacheRun& run : in.tokens.runs)
    for (int64_t position = run.past; position < run.past + run.count; ++position)
      keys += static_cast<double>(in.window > 0 ? std::min(position + 1, in.window) : position + 1);
  const int64_t hd = in.keys.size(3), hd_v = in.values.size(3);
  const int64_t of_scales = in.key_scales.defined() ? 2 * size_of(DType::f32) : 0;
  const double read =
      keys * static_cast<double>(in.keys.size(2) * ((hd + hd_v) * size_of(in.keys.dtype()) + of_scales));
  const int64_t multiplied = hd + (in.value_q.defined() ? 2 : 1) * hd_v;
  const Cost cost{2 * keys * static_cast<double>(in.q.size(2) * multiplied), bytes_of(y, lse, in.q, in.value_q) + read};
  WITAN_LAUNCH(stream, cached_attention, cost, y, lse, in);
}

// Sines are not counted: they are computed once for all blocks.
void rotary_table(Stream& stream, const Tensor& table, const Tensor& positions, const RopeArgs& args) {
  WITAN_LAUNCH(stream, rotary_table, (Cost{0, bytes_of(table, positions)}), table, positions, args);
}

void split_heads(Stream& stream, const Heads& heads, const Tensor& packed, const Tensor& table, const RopeArgs& args) {
  const Cost cost{3.0 * static_cast<double>(heads.q.elements() + heads.k.elements()),
                  2 * bytes_of(packed) + bytes_of(table)};
  WITAN_LAUNCH(stream, split_heads, cost, heads, packed, table, args);
}

void merge_heads(Stream& stream, const Tensor& dpacked, const Heads& gradients, const Tensor& table,
                 const RopeArgs& args) {
  const Cost cost{3.0 * static_cast<double>(gradients.q.elements() + gradients.k.elements()),
                  2 * bytes_of(dpacked) + bytes_of(table)};
  WITAN_LAUNCH(stream, merge_heads, cost, dpacked, gradients, table, args);
}

void head_norms_forward(Stream& stream, const HeadNorm& q, const HeadNorm& k, const Tensor& table, const RopeArgs& args,
                        double eps) {
  const Cost cost{7.0 * static_cast<double>(q.x.elements() + k.x.elements()),
                  bytes_of(q.y, q.r, q.x, q.w.values, k.y, k.r, k.x, k.w.values, table)};
  WITAN_LAUNCH(stream, head_norms_forward, cost, q, k, table, args, eps);
}

void head_norms_backward(Stream& stream, const HeadNormGradient& q, const HeadNormGradient& k, const Tensor& table,
                         const RopeArgs& args) {
  const Cost cost{
      14.0 * static_cast<double>(q.x.elements() + k.x.elements()),
      bytes_of(q.dx, q.dw, q.dy, q.x, q.w.values, q.r, table) + bytes_of(k.dx, k.dw, k.dy, k.x, k.w.values, k.r)};
  WITAN_LAUNCH(stream, head_norms_backward, cost, q, k, table, args);
}

void latent_heads(Stream& stream, const Heads& heads, const LatentRows& rows, const Tensor& table,
                  const RopeArgs& args) {
  const Cost cost{3 * 2 * turned(heads, rows), rows_bytes(rows) + bytes_of(heads.q, heads.k, heads.v, table)};
  WITAN_LAUNCH(stream, latent_heads, cost, heads, rows, table, args);
}

// A key's channels are summed over heads, and rotated once.
void latent_heads_backward(Stream& stream, const LatentRows& to, const Heads& gradients, const Tensor& table,
                           const RopeArgs& args) {
  const double key = static_cast<double>(to.rope_key.elements());
  const Cost cost{4 * turned(gradients, to) + 3 * key,
                  rows_bytes(to) + bytes_of(gradients.q, gradients.k, gradients.v, table)};
  WITAN_LAUNCH(stream, latent_heads_backward, cost, to, gradients, table, args);
}

void turn_latent_channels(Stream& stream, const TurnedChannels& turned, const Tensor& q, const Tensor& rope_key,
                          const Tensor& table, const RopeArgs& args) {
  const Cost cost{3.0 * static_cast<double>(turned.q.elements() + turned.key.elements()),
                  2 * bytes_of(turned.q, turned.key) + bytes_of(table)};
  WITAN_LAUNCH(stream, turn_latent_channels, cost, turned, q, rope_key, table, args);
}

void append_to_cache(Stream& stream, const Tensor& cache, const Tensor& x, const CacheTokens& tokens) {
  const Cost cost{0, 2 * bytes_of(x) + bytes_of(tokens.rows, tokens.positions)};
  WITAN_LAUNCH(stream, append_to_cache, cost, cache, x, tokens);
}

bool cached_in_tiles(const Tensor& keys, const Tensor& values) {
  constexpr int64_t kMostChannels = 256, kPack = 8;
  const int64_t hd = keys.size(3), hd_v = values.size(3);
  return size_of(keys.dtype()) == 2 && hd % kPack == 0 && hd_v % kPack == 0 && std::max(hd, hd_v) <= kMostChannels;
}

void heads_to_cache(Stream& stream, const Tensor& q, const Tensor& keys, const Tensor& values,
                    const CachedProjections& from, const CacheTokens& tokens) {
  const int64_t T = from.packed.size(0), G = keys.size(2), hd = keys.size(3), hd_v = values.size(3);
  const int64_t H = q.elements() / std::max<int64_t>(T * hd, 1);
  if (stream.plans_for_cuda()) {
    const Cost cost{7.0 * static_cast<double>(T * (H + G) * hd),
                    2 * bytes_of(from.packed) + bytes_of(from.table, tokens.rows, tokens.positions)};
    charge(stream, "heads_to_cache", cost,
           [&] { WITAN_CALL_CUDA(heads_to_cache, stream, q, keys, values, from, tokens); });
    return;
  }
  const auto heads = [&](int64_t of, int64_t channels) {
    return stream.empty({1, T, of, channels}, from.packed.dtype(), MemoryTag::workspace);
  };
  const auto scales = [&](int64_t of) {
    return stream.empty({T * of}, accumulator(from.packed.dtype()), MemoryTag::workspace);
  };
  const Heads split{heads(H, hd), heads(G, hd), heads(G, hd_v)};
  const Tensor normed = heads(G, hd);
  split_heads(stream, split, from.packed, {}, {});
  head_norms_forward(stream, {q.reshape({1, T, H, hd}), scales(H), split.q, from.q_norm},
                     {normed, scales(G), split.k, from.k_norm}, from.table, from.rope, from.eps);
  append_to_cache(stream, keys, normed, tokens);
  append_to_cache(stream, values, split.v, tokens);
}

void append_quantised(Stream& stream, const Tensor& cache, const Tensor& scales, const Tensor& x,
                      const CacheTokens& tokens) {
  const double numbers = static_cast<double>(x.elements()), heads = numbers / static_cast<double>(cache.size(3));
  const Cost cost{2 * numbers, bytes_of(x, tokens.rows, tokens.positions) + numbers + 4 * heads};
  WITAN_LAUNCH(stream, append_quantised, cost, cache, scales, x, tokens);
}

void attention_max_logits(Stream& stream, const Tensor& largest, const AttentionInputs& in) {
  const Cost cost{2 * visible_pairs(in) * static_cast<double>(in.q.size(3)),
                  bytes_of(largest, in.q, in.k, in.sequence_ids, in.block.key_ids)};
  WITAN_LAUNCH(stream, attention_max_logits, cost, largest, in);
}

void clip_projection(Stream& stream, const ClippedTensors& to, const Tensor& largest, int64_t groups,
                     const Tensor& step, const ClipArgs& args) {
  const Cost cost{static_cast<double>(to.value.elements()), 2 * bytes_of(to.value, to.remainder) + bytes_of(largest)};
  WITAN_LAUNCH(stream, clip_projection, cost, to, largest, groups, step, args);
}

void rope(Stream& stream, const Tensor& y, const Tensor& table, const Tensor& x, const Tensor& positions,
          const RopeArgs& args) {
  WITAN_LAUNCH(stream, rope, (Cost{3.0 * static_cast<double>(x.elements()), bytes_of(y, table, x, positions)}), y,
               table, x, positions, args);
}

void copy_pieces(Stream& stream, const std::vector<PieceCopy>& copies, int64_t ranks) {
  assert(!copies.empty() && copies.size() <= kMostPieceCopies);
  double bytes = 0;
  for (const PieceCopy& copy : copies)
    bytes += static_cast<double>(ranks * copy.size.elements() * size_of(copy.from.dtype()));
  WITAN_LAUNCH(stream, copy_pieces, (Cost{0, 2 * bytes}), copies, ranks);
}

void sum_shares(Stream& stream, const Tensor& y, const Tensor& x, int64_t w) {
  WITAN_LAUNCH(stream, sum_shares, (Cost{static_cast<double>(x.elements() - y.elements()), bytes_of(x, y)}), y, x, w);
}

}  // namespace witan::kernels
