// Forward and decoding. A task is kTilesPerTask query tiles of one group, which share each unpacked tile of keys. Keys
// are processed in order: a query keeps its largest score and its sum so far, and rescales its sums when a larger
// score comes (online softmax: Milakov & Gimelshein, 2018).
#include "witan/kernels/attention/attention.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/kernels/attention/cpu/attention_tile.h"
#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/common/fp8_scale.h"

namespace witan::kernels::cpu {
namespace {

constexpr int64_t kTilesPerTask = 4;

// The state of a query tile after the keys so far.
template <class A>
struct Running {
  QueryTile<A> tile;
  A *q_transposed, *y;   // scale q^T [padded hd, kQueries], [kQueries, padded hd_v]
  A* value_q = nullptr;  // scale value_q^T [padded hd_v, kQueries] (CachedInputs::value_q); null: there is none
  alignas(kVectorBytes) std::array<A, kQueries<A>> top{}, sum{}, rescale{};
  std::optional<TileDropout<A>> dropout = std::nullopt;
  bool begun = false;
};

// Turns s^T [n, kQueries] into exp(s - top), and updates top, sum and rescale.
template <class A>
void softmax_step(Running<A>& run, A* s, int64_t n) {
  constexpr int64_t L = kLanes<A>, Q = kQueries<A>;
  for (int64_t lane = 0; lane < run.tile.lanes; lane += L) {
    Vector<A> before, sum, top[4];
    load(before, &run.top[static_cast<size_t>(lane)]);
    load(sum, &run.sum[static_cast<size_t>(lane)]);
    for (auto& part : top) part = before;
    const auto raise = [&](Vector<A>& largest, int64_t j) {
      Vector<A> x;
      load(x, s + j * Q + lane);
      largest = x > largest ? x : largest;
    };
    int64_t j = 0;
    for (; j + 4 <= n; j += 4)
      for (int64_t i = 0; i < 4; ++i) raise(top[i], j + i);
    for (; j < n; ++j) raise(top[0], j);
    for (int i = 1; i < 4; ++i) top[0] = top[i] > top[0] ? top[i] : top[0];

    Vector<A> rescale = before - top[0];
    exponential<A>(rescale);
    sum *= rescale;
    for (j = 0; j < n; ++j) {
      Vector<A> p;
      load(p, s + j * Q + lane);
      p -= top[0];
      exponential<A>(p);
      store(s + j * Q + lane, p);
      sum += p;
    }
    store(&run.top[static_cast<size_t>(lane)], top[0]);
    store(&run.sum[static_cast<size_t>(lane)], sum);
    store(&run.rescale[static_cast<size_t>(lane)], rescale);
  }
}

// y [kQueries, columns] = rescale y + p v
template <class A>
void add_values(Running<A>& run, const A* p, const A* v, int64_t n, int64_t columns) {
  if (run.begun)
    for (int64_t lane = 0; lane < run.tile.count; ++lane) {
      const A factor = run.rescale[static_cast<size_t>(lane)];
      A* row = run.y + lane * columns;
#pragma omp simd
      for (int64_t d = 0; d < columns; ++d) row[d] *= factor;
    }
  const Write how = std::exchange(run.begun, true) ? Write::accumulate : Write::overwrite;
  multiply<A>(run.tile.count, columns, n, {p, 1, kQueries<A>}, {v, columns}, {run.y, columns}, how);
}

// The inputs that only attention over a cache has (CachedInputs); each may be undefined.
struct CachedParts {
  Tensor value_q, key_scales, value_scales;
};

struct Forward {
  Heads heads;
  const Tensor &y, &lse;  // lse may be undefined if it is not wanted
  const AttentionInputs& in;
  std::optional<DropoutMask> mask;
  CachedParts cached = {};
};

// unpack_keys() of keys or values that may be in e4m3.
template <class T, class A>
void unpack_cached(A* to, const Group& group, const Tensor& keys, const Tensor& scales, int64_t begin, int64_t end) {
  if (!scales.defined()) return unpack_keys<T>(to, group, keys, begin, end);
  const int64_t width = keys.size(3), stride = padded<A>(width);
  for (int64_t j = begin; j < end; ++j, to += stride)
    unpack_row(to, keys.data<e4m3>() + group.key_offset(j, width), A(scales.data<float>()[group.key_offset(j, 1)]),
               width, stride);
}

template <class T, class A>
void finish(const Forward& f, const Group& group, const Running<A>& run) {
  const int64_t hd_v = f.heads.hd_v;
  for (int64_t lane = 0; lane < run.tile.count; ++lane) {
    const int64_t r = run.tile.first + lane;
    const A sum = run.sum[static_cast<size_t>(lane)], inverse = A(1) / sum;
    const A* from = run.y + lane * padded<A>(hd_v);
    T* to = f.y.data<T>() + group.query_offset(r, hd_v);
    if (f.lse.defined()) f.lse.data<A>()[group.lse_offset(r)] = run.top[static_cast<size_t>(lane)] + std::log(sum);
    if (sum == 0) {  // no key was seen
      std::fill_n(to, hd_v, T(A(0)));
      continue;
    }
#pragma omp simd
    for (int64_t d = 0; d < hd_v; ++d) to[d] = T(from[d] * inverse);
  }
}

// The tiles of query rows [begin, end) before the first key.
template <class T, class A>
std::vector<Running<A>> start(const Forward& f, const Group& group, int64_t begin, int64_t end, Scratch<A>& scratch) {
  const int64_t P = padded<A>(f.heads.hd), room = std::max(P, padded<A>(f.heads.hd_v));
  std::vector<Running<A>> runs;
  for (int64_t first = begin; first < end; first += kQueries<A>) {
    A *q_transposed = scratch.take(kQueries<A> * P), *y = scratch.take(kQueries<A> * room);
    runs.push_back({QueryTile<A>(group, f.in, first), q_transposed, y});
    runs.back().top.fill(std::numeric_limits<A>::lowest());
    if (f.mask) runs.back().dropout.emplace(*f.mask, f.in.dropout, group, runs.back().tile);
    unpack_queries<T>(y, group, f.in.q, A(f.in.scale), first);  // y's memory is unused until the first key
    transpose_tile(q_transposed, y, P);
    if (!f.cached.value_q.defined()) continue;
    runs.back().value_q = scratch.take(kQueries<A> * padded<A>(f.heads.hd_v));
    unpack_queries<T>(y, group, f.cached.value_q, A(f.in.scale), first);
    transpose_tile(runs.back().value_q, y, padded<A>(f.heads.hd_v));
  }
  return runs;
}

// Computes query rows [begin, end) of one group.
template <class T>
void attend(const Forward& f, const Group& group, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  constexpr int64_t Q = kQueries<A>;
  const int64_t hd = f.heads.hd, P = padded<A>(hd), PV = padded<A>(f.heads.hd_v);
  const int64_t of_tile = Q * (P + std::max(P, PV) + (f.cached.value_q.defined() ? PV : 0));
  Scratch<A> scratch(kKeys * (P + PV) + kTilesPerTask * of_tile + (f.mask ? 2 : 1) * kKeys * Q);
  A *k = scratch.take(kKeys * P), *v = scratch.take(kKeys * PV), *s = scratch.take(kKeys * Q);
  A* factors = f.mask ? scratch.take(kKeys * Q) : nullptr;
  std::vector<Running<A>> runs = start<T>(f, group, begin, end, scratch);
  const int64_t keys = runs.back().tile.keys;
  const KeyTiles tiles{f.mask ? nullptr : runs.back().tile.key_ids, keys};
  // A ring no longer holds the keys before the first, which would add exactly 0.
  int64_t key = f.heads.ring > 0 ? runs.front().tile.first_key : tiles.begin_of(runs.front().tile.first_key);
  for (int64_t end_of_tile = 0; key < keys; key = end_of_tile) {
    end_of_tile = tiles.end_of(key);
    bool unpacked = false;
    for (Running<A>& run : runs) {
      const int64_t n = run.tile.keys_from(key, end_of_tile);
      const Sight sight = n > 0 ? run.tile.sight(key, n) : Sight::none;
      if (sight == Sight::none) continue;
      if (!std::exchange(unpacked, true)) {
        unpack_cached<T>(k, group, f.in.k, f.cached.key_scales, key, std::min(end_of_tile, keys));
        unpack_cached<T>(v, group, f.in.v, f.cached.value_scales, key, std::min(end_of_tile, keys));
      }
      multiply<A>(n, run.tile.lanes, hd, {k, P, 1}, {run.q_transposed, Q}, {s, Q}, Write::overwrite);
      if (run.value_q)
        multiply<A>(n, run.tile.lanes, f.heads.hd_v, {v, PV, 1}, {run.value_q, Q}, {s, Q}, Write::accumulate);
      run.tile.hide(s, key, n, sight);
      softmax_step(run, s, n);
      if (run.dropout) {  // after the sum: dropped probabilities still count in the softmax
        run.dropout->draw(factors, key, n);
        run.dropout->apply(s, factors, n);
      }
      add_values(run, s, v, n, PV);
    }
  }
  for (const Running<A>& run : runs) finish<T>(f, group, run);
}

void run_forward(Stream& stream, const Forward& f) {
  if (f.heads.empty()) return;
  dispatch_floating(f.y.dtype(), [&]<class T>() {
    constexpr int64_t kRows = kTilesPerTask * kQueries<Accumulator<T>>;
    const int64_t rows = f.heads.rows(), blocks = (rows + kRows - 1) / kRows;
    stream.pool().run(f.heads.groups() * blocks, [&](int64_t task) {
      const int64_t block = blocks - 1 - task % blocks;  // the longest come first
      attend<T>(f, Group(f.heads, task / blocks), block * kRows, std::min((block + 1) * kRows, rows));
    });
  });
}

}  // namespace

void attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in) {
  Forward f{Heads(in), y, lse, in, std::nullopt};
  if (in.dropout.on()) f.mask.emplace(in.dropout);
  run_forward(stream, f);
}

void attention_merge(Stream& stream, const Tensor& y, const Tensor& lse, const Tensor& y_part, const Tensor& lse_part) {
  constexpr int64_t kGrain = 64;
  const int64_t S = y.size(1), H = y.size(2), hd = y.size(3);
  dispatch_floating(y_part.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(y.size(0) * S * H, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {  // of y, [B, S, H]
        const int64_t at = (row / (S * H) * H + row % H) * S + row / H % S;
        A& sum = lse.data<A>()[at];
        const A part = lse_part.data<A>()[at];
        if (part == -std::numeric_limits<A>::infinity()) continue;
        const A top = std::max(sum, part), joined = top + std::log(std::exp(sum - top) + std::exp(part - top));
        const A keep = std::exp(sum - joined), take = std::exp(part - joined);
        A* to = y.data<A>() + row * hd;
        const T* from = y_part.data<T>() + row * hd;
#pragma omp simd
        for (int64_t d = 0; d < hd; ++d) to[d] = keep * to[d] + take * A(from[d]);
        sum = joined;
      }
    });
  });
}

void attention_decode(Stream& stream, const Tensor& y, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                      int64_t past, double scale, int64_t window, const Tensor& lse) {
  assert(past >= 0 && past + q.size(1) <= k_cache.size(1));
  const AttentionInputs in{q, k_cache, v_cache, Tensor(), scale, {}, {}, {.queries = {past}}, window};
  run_forward(stream, {Heads(in), y, lse, in, std::nullopt});
}

void cached_attention(Stream& stream, const Tensor& y, const Tensor& lse, const CachedInputs& in) {
  const int64_t T = in.q.size(0), H = in.q.size(2), G = in.keys.size(2);
  if (y.elements() == 0 || in.q.elements() == 0) return;
  dispatch_floating(y.dtype(), [&]<class E>() {
    // Heads of one group are a task, unless threads would have nothing to do.
    constexpr int64_t kTile = kQueries<Accumulator<E>>;
    const int64_t heads = H / G, rows = T * G < stream.pool().threads() ? kTile : kTilesPerTask * kTile;
    const int64_t blocks = (heads + rows - 1) / rows;
    stream.pool().run(T * G * blocks, [&](int64_t task) {
      const int64_t t = task / (G * blocks), row = in.tokens.rows.data<int32_t>()[t];
      const int64_t position = in.tokens.positions.data<int32_t>()[t];
      const AttentionInputs of_token{in.q.narrow(0, t, 1),
                                     in.keys.narrow(0, row, 1),
                                     in.values.narrow(0, row, 1),
                                     Tensor(),
                                     in.scale,
                                     {},
                                     {},
                                     {.queries = {position}},
                                     in.window};
      const auto part = [](const Tensor& x, int64_t i) { return x.defined() ? x.narrow(0, i, 1) : x; };
      const Tensor its_y = y.narrow(0, t, 1), its_lse = part(lse, t);
      Forward f{Heads(of_token), its_y, its_lse, of_token, std::nullopt};
      f.cached = {part(in.value_q, t), part(in.key_scales, row), part(in.value_scales, row)};
      f.heads.ring = f.heads.capacity;
      f.heads.capacity = position + 1;
      const int64_t begin = task % blocks * rows;
      attend<E>(f, Group(f.heads, task / blocks % G), begin, std::min(begin + rows, heads));
    });
  });
}

void append_to_cache(Stream&, const Tensor& cache, const Tensor& x, const CacheTokens& tokens) {
  const int64_t T = tokens.rows.elements(), slots = cache.size(1);
  if (T == 0 || x.elements() == 0) return;
  const int64_t bytes = x.bytes() / T;
  for (int64_t t = 0; t < T; ++t) {
    const int64_t row = tokens.rows.data<int32_t>()[t], slot = tokens.positions.data<int32_t>()[t] % slots;
    assert(row >= 0 && row < cache.size(0) && slot >= 0);
    std::memcpy(cache.raw() + (row * slots + slot) * bytes, x.raw() + t * bytes, static_cast<size_t>(bytes));
  }
}

void append_quantised(Stream& stream, const Tensor& cache, const Tensor& scales, const Tensor& x,
                      const CacheTokens& tokens) {
  const int64_t T = tokens.rows.elements(), slots = cache.size(1), G = cache.size(2), hd = cache.size(3);
  if (T == 0 || x.elements() == 0) return;
  dispatch_floating(x.dtype(), [&]<class E>() {
    stream.pool().for_ranges(T * G, kTaskElements / hd, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i / G,
                      slot = tokens.rows.data<int32_t>()[t] * slots + tokens.positions.data<int32_t>()[t] % slots;
        const E* from = x.data<E>() + i * hd;
        uint32_t largest = 0;
        for (int64_t d = 0; d < hd; ++d)
          largest = std::max(largest, std::bit_cast<uint32_t>(static_cast<float>(from[d])) & 0x7FFFFFFFu);
        const Fp8Scale scale = fp8_scale(largest, Fp8Format::e4m3);
        const int64_t head = slot * G + i % G;
        scales.data<float>()[head] = scale.scale;
        e4m3* to = cache.data<e4m3>() + head * hd;
        for (int64_t d = 0; d < hd; ++d) to[d] = e4m3(static_cast<float>(from[d]) * scale.inverse);
      }
    });
  });
}

}  // namespace witan::kernels::cpu
