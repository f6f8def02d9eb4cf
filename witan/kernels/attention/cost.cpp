#include <array>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/attention_cost.h"
#include "witan/kernels/attention/attention_path.h"

namespace witan::kernels {
namespace {

struct Run {
  int64_t begin, size;
};

std::array<Run, 2> runs_of(const PositionRuns& positions, int64_t tokens) {
  const int64_t in_first = std::min(tokens, positions.split);
  return {Run{positions.first, in_first}, Run{positions.second, tokens - in_first}};
}

// Sum over a query's position in `queries` of the positions in `keys` that are not after it.
double causal_pairs(const Run& queries, const Run& keys) {
  const auto up_to = [&](int64_t queries_from_first_key) {  // of queries at keys.begin + 0, 1, ..
    const double all = static_cast<double>(std::max<int64_t>(queries_from_first_key, 0));
    const double size = static_cast<double>(keys.size), rising = std::min(all, size);
    return rising * (rising + 1) / 2 + (all - rising) * size;
  };
  return up_to(queries.begin + queries.size - keys.begin) - up_to(queries.begin - keys.begin);
}

// Query-key pairs of all rows and heads. Documents make it fewer, which no shape tells.
double visible_pairs(const Tensor& q, int64_t keys, const AttentionBlock& block, int64_t window) {
  double pairs = 0;
  for (const Run& of_queries : runs_of(block.queries, q.size(1)))
    for (const Run& of_keys : runs_of(block.keys, keys)) {
      pairs += causal_pairs(of_queries, of_keys);
      if (window > 0) pairs -= causal_pairs({of_queries.begin - window, of_queries.size}, of_keys);
    }
  return static_cast<double>(q.size(0) * q.size(2)) * pairs;
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

}  // namespace

double visible_pairs(const AttentionInputs& in) {
  return visible_pairs(in.q, in.k.size(1), in.block, in.window);
}

// Two products: hd multiply-adds for each pair, and hd_v.
void attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in) {
  const Cost cost{2 * visible_pairs(in) * (head_size(in.q) + head_size(in.v)),
                  bytes_of(y, lse, in.q, in.k, in.v, in.sequence_ids, in.block.key_ids)};
  const AttentionPath path = path_of(stream, in, false);
  WITAN_LAUNCH_NAMED(stream, attention_forward, counted_name(path.own, false), cost, shape_of(in), y, lse, in);
}

// Five products: s again, dy v^T, and one for each gradient; those of dy v^T and dv are of hd_v.
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

// Four operations an element, and a few a row.
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

}  // namespace witan::kernels
