#include "witan/kernels/attention/qk_clip.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/kernels/attention/cpu/attention_tile.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/cpu/weights.h"
#include "witan/kernels/common/step_report.h"

namespace witan::kernels::cpu {
namespace {

// Raises of_heads[r % rep] to the largest score of the rows of one query tile. Padding rows have no scores.
template <class T, class A>
void raise_by_tile(A* of_heads, const Group& group, const AttentionInputs& in, int64_t first, Scratch<A>& scratch) {
  constexpr int64_t Q = kQueries<A>;
  const int64_t hd = group.heads.hd, P = padded<A>(hd);
  scratch.reset();
  A *rows = scratch.take(Q * P), *q_transposed = scratch.take(Q * P), *k = scratch.take(kKeys * P),
    *s = scratch.take(kKeys * Q);
  const QueryTile<A> tile(group, in, first);
  if (tile.most_id < 0) return;
  unpack_queries<T>(rows, group, in.q, A(in.scale), first);
  transpose_tile(q_transposed, rows, P);
  for (int64_t key = tile.first_key_tile(); key < tile.keys; key += kKeys) {
    const int64_t n = tile.keys_from(key, key + kKeys);
    const Sight sight = n > 0 ? tile.sight(key, n) : Sight::none;
    if (sight == Sight::none) continue;
    unpack_keys<T>(k, group, in.k, key, key + n);
    multiply<A>(n, tile.lanes, hd, {k, P, 1}, {q_transposed, Q}, {s, Q}, Write::overwrite);
    tile.hide(s, key, n, sight);
    for (int64_t j = 0; j < n; ++j)
      for (int64_t lane = 0; lane < tile.count; ++lane) {
        if (tile.id[static_cast<size_t>(lane)] < 0) continue;
        A& most = of_heads[(first + lane) % group.heads.rep];
        most = std::max(most, s[j * Q + lane]);
      }
  }
}

}  // namespace

void attention_max_logits(Stream& stream, const Tensor& largest, const AttentionInputs& in) {
  const Heads heads(in);
  if (heads.empty()) return;
  dispatch_floating(in.q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    constexpr int64_t kRows = 4 * kQueries<A>;
    const int64_t rep = heads.rep, P = padded<A>(heads.hd), blocks = (heads.rows() + kRows - 1) / kRows;
    // Each task raises numbers of its own, so that no task waits for another. The maximum over tasks does not depend on
    // their order.
    std::vector<A> found(static_cast<size_t>(heads.groups() * blocks * rep), -std::numeric_limits<A>::infinity());
    stream.pool().run(heads.groups() * blocks, [&](int64_t task) {
      const int64_t begin = task % blocks * kRows;
      const Group group(heads, task / blocks);
      Scratch<A> scratch(2 * kQueries<A> * P + kKeys * (P + kQueries<A>));
      for (int64_t first = begin; first < std::min(begin + kRows, heads.rows()); first += kQueries<A>)
        raise_by_tile<T>(found.data() + task * rep, group, in, first, scratch);
    });
    A* to = largest.data<A>();
    for (size_t i = 0; i < found.size(); ++i) {
      const auto at = static_cast<int64_t>(i), group = at / (blocks * rep);
      A& most = to[group % heads.G * rep + at % rep];
      most = std::max(most, found[i]);
    }
  });
}

void clip_projection(Stream& stream, const ClippedTensors& to, const Tensor& largest, int64_t groups,
                     const Tensor& step, const ClipArgs& args) {
  if (step.data<double>()[step_value::skip] != 0) return;
  const int64_t rep = largest.elements() / groups, end = args.first + to.value.elements();
  dispatch_floating(to.value.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    T* value = to.value.data<T>();
    Remainder<T>* remainder = remainder_of<T>(to.value, to.remainder);
    for (int64_t at = args.first; at < end;) {
      const int64_t group = at / args.per_group, leading = std::min(args.leading, args.per_group);
      const bool leads = at % args.per_group < leading;
      const int64_t stop = std::min(group * args.per_group + (leads ? leading : args.per_group), end);
      const double exponent = leads ? args.exponent : args.exponent_of_rest;
      const A* of_heads = largest.data<A>() + group * rep;
      const auto most = static_cast<double>(*std::max_element(of_heads, of_heads + rep));
      if (most > args.threshold && exponent != 0) {
        const A factor = A(std::pow(args.threshold / most, exponent));
        stream.pool().for_ranges(stop - at, kTaskElements, [&](int64_t first, int64_t last) {
          for (int64_t i = at - args.first + first; i < at - args.first + last; ++i)
            store_weight(value, remainder, i, factor * weight(value, remainder, i));
        });
      }
      at = stop;
    }
  });
}

}  // namespace witan::kernels::cpu
