// Shared by the CPU's attention kernels: how queries and keys are divided into tiles, and which pairs of a tile are
// visible.
//
// The H / G query heads of a group read the same keys, so a group's queries form one list, position by position: row r
// is position r / rep of head g * rep + r % rep. A query tile is kQueries rows. Its scores are stored as s^T [keys,
// kQueries], so that maxima and sums over keys are computed lane by lane, and a query's result does not depend on its
// neighbours.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <memory>
#include <utility>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/attention/cpu/small_product.h"
#include "witan/kernels/common/cpu/math.h"
#include "witan/kernels/pointwise/cpu/dropout_mask.h"

namespace witan::kernels::cpu {

template <class A>
inline constexpr int64_t kQueries = 2 * kLanes<A>;  // rows of a query tile
inline constexpr int64_t kKeys = 64;                // keys per tile; less at the end of a document (KeyTiles)

struct Heads {
  int64_t B, S, H, G, hd, hd_v;  // S: queries per row
  int64_t capacity;              // keys that a row has memory for, or has had in a ring
  int64_t rep;                   // query heads per key head
  PositionRuns queries, keys;
  int64_t length;    // of the whole sequence
  int64_t window;    // 0: no window
  int64_t ring = 0;  // key j is stored in place j mod `ring`; 0: each key has a place of its own

  explicit Heads(const AttentionInputs& in)
      : B(in.q.size(0)),
        S(in.q.size(1)),
        H(in.q.size(2)),
        G(in.k.size(2)),
        hd(in.q.size(3)),
        hd_v(in.v.size(3)),
        capacity(in.k.size(1)),
        rep(H / G),
        queries(in.block.queries),
        keys(in.block.keys),
        length(in.block.sequence_length > 0 ? in.block.sequence_length : S),
        window(in.window) {}

  int64_t groups() const { return B * G; }
  int64_t rows() const { return S * rep; }
  bool empty() const { return B * (rows() + capacity) * hd * hd_v == 0; }
  // By position, row r may see keys [first_key_of(r), keys_of(r)); both bounds never decrease as r grows.
  int64_t first_key_of(int64_t r) const {
    return window > 0 ? keys.before(queries.at(r / rep) + 1 - window, capacity) : 0;
  }
  int64_t keys_of(int64_t r) const { return keys.before(queries.at(r / rep) + 1, capacity); }
  // By position, rows [first_row_of(j), rows_of(j)) may see key j.
  int64_t first_row_of(int64_t j) const { return queries.before(keys.at(j), S) * rep; }
  int64_t rows_of(int64_t j) const { return window > 0 ? queries.before(keys.at(j) + window, S) * rep : rows(); }
};

// A head size rounded up to whole vectors: the row size of tiles in scratch memory, whose last columns are zeros.
template <class A>
int64_t padded(int64_t hd) {
  return (hd + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
}

// One group of one batch row, and the offsets of its rows and keys.
struct Group {
  Heads heads;
  int64_t b, g;

  Group(const Heads& heads_, int64_t index) : heads(heads_), b(index / heads.G), g(index % heads.G) {}

  // Row r in q, dq or y, dy [B, S, H, width], and in lse [B, H, S].
  int64_t query_offset(int64_t r, int64_t width) const {
    return ((b * heads.S + r / heads.rep) * heads.H + head_of(r)) * width;
  }
  int64_t lse_offset(int64_t r) const { return (b * heads.H + head_of(r)) * heads.S + r / heads.rep; }
  // The number of row r in the lse of all heads and the whole sequence, by which dropout numbers rows.
  int64_t whole_offset(int64_t r, const Dropout& how) const {
    const int64_t H = how.heads > 0 ? how.heads : heads.H;
    return (b * H + how.first_head + head_of(r)) * heads.length + heads.queries.at(r / heads.rep);
  }
  // Key j in k, dk or v, dv [B, capacity, G, width].
  int64_t key_offset(int64_t j, int64_t width) const {
    if (heads.ring > 0) return ((b * heads.ring + j % heads.ring) * heads.G + g) * width;
    return ((b * heads.capacity + j) * heads.G + g) * width;
  }

 private:
  int64_t head_of(int64_t r) const { return g * heads.rep + r % heads.rep; }
};

// Scratch memory of one task, aligned for vectors and not initialised.
template <class A>
class Scratch {
 public:
  explicit Scratch(int64_t elements)
      : memory_(std::make_unique_for_overwrite<Vector<A>[]>(static_cast<size_t>(elements / kLanes<A> + 1))),
        next_(reinterpret_cast<A*>(memory_.get())) {}
  A* take(int64_t elements) { return std::exchange(next_, next_ + elements); }
  // Frees all allocations at once.
  void reset() { next_ = reinterpret_cast<A*>(memory_.get()); }

 private:
  std::unique_ptr<Vector<A>[]> memory_;
  A* next_;
};

// to[0..width) = factor * from, and zeros up to `stride`.
template <class T, class A>
inline void unpack_row(A* to, const T* from, A factor, int64_t width, int64_t stride) {
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) to[d] = factor * A(from[d]);
  for (int64_t d = width; d < stride; ++d) to[d] = A(0);
}

// Rows [begin, end) of keys or values, a tensor [B, capacity, G, width], as [end - begin, padded].
template <class T, class A>
void unpack_keys(A* to, const Group& group, const Tensor& keys, int64_t begin, int64_t end) {
  const int64_t width = keys.size(3), stride = padded<A>(width);
  for (int64_t j = begin; j < end; ++j, to += stride)
    unpack_row(to, keys.data<T>() + group.key_offset(j, width), A(1), width, stride);
}

// Rows [first, first + kQueries) of factor * x, x [B, S, H, width], as [kQueries, padded]; zeros beyond the last row.
template <class T, class A>
void unpack_queries(A* to, const Group& group, const Tensor& x, A factor, int64_t first) {
  const int64_t width = x.size(3), stride = padded<A>(width);
  for (int64_t r = first; r < first + kQueries<A>; ++r, to += stride)
    if (r < group.heads.rows()) {
      unpack_row(to, x.data<T>() + group.query_offset(r, width), factor, width, stride);
    } else {
      std::fill_n(to, stride, A(0));
    }
}

// [kQueries, columns] -> [columns, kQueries]
template <class A>
void transpose_tile(A* to, const A* from, int64_t columns) {
  constexpr int64_t L = kLanes<A>;
  for (int64_t r = 0; r < kQueries<A>; r += L)
    for (int64_t d = 0; d < columns; d += L) {
      Vector<A> square[L];
      for (int64_t i = 0; i < L; ++i) load(square[i], from + (r + i) * columns + d);
      transpose<A>(square);
      for (int64_t i = 0; i < L; ++i) store(to + (d + i) * kQueries<A> + r, square[i]);
    }
}

// x <- exp(x)
template <class A>
inline void exponential(Vector<A>& x) {
  A lanes[kLanes<A>];
  store(lanes, x);
#pragma omp simd
  for (int i = 0; i < kLanes<A>; ++i) lanes[i] = fast_exp(lanes[i]);
  load(x, lanes);
}

// The tiles that the forward reads keys in, whatever a task covers: the rescaling of its sums depends on where they
// begin. They begin at multiples of kKeys or, in rows of several documents, at multiples from each document's first key
// on, so that a document has the same bits anywhere in a row. With dropout they keep to the row's multiples: masks are
// drawn for four keys at a time, and depend on the place in the row anyway.
struct KeyTiles {
  const int32_t* ids = nullptr;  // of the batch row's keys; null: one document
  int64_t keys = 0;              // the keys after the last tile are not read

  // The first key of the tile that contains `key`.
  int64_t begin_of(int64_t key) const {
    if (!ids || key >= keys) return key / kKeys * kKeys;
    int64_t first = key;
    while (first > 0 && ids[first - 1] == ids[key]) --first;
    return first + (key - first) / kKeys * kKeys;
  }
  // The end of that tile, for a key that begins one.
  int64_t end_of(int64_t key) const {
    if (!ids) return (key / kKeys + 1) * kKeys;
    const int64_t most = std::min(key + kKeys, keys);
    int64_t end = key + 1;
    while (end < most && ids[end] == ids[key]) ++end;
    return end;
  }
};

// How many of the keys in a tile a tile of queries may see, apart from causal order.
enum class Sight : uint8_t { none, some, all };

// The rows of a query tile's lanes, and the keys that they may see. Lanes after the last row repeat it.
template <class A>
struct QueryTile {
  int64_t first = 0, count = 0;  // rows
  int64_t lanes = 0;             // count rounded up to whole vectors; lanes beyond are not computed
  // By position, a lane may see keys [from, limit), some lane [first_key, keys), and every lane [shared_from, shared).
  std::array<int32_t, kQueries<A>> from{}, limit{}, id{};
  int64_t first_key = 0, keys = 0, shared_from = 0, shared = 0;
  int32_t least_id = 0, most_id = 0;
  const int32_t* key_ids = nullptr;  // of the batch row's keys; null: all the same

  QueryTile(const Group& group, const AttentionInputs& in, int64_t first_row)
      : first(first_row), count(std::min(kQueries<A>, group.heads.rows() - first_row)) {
    const Heads& heads = group.heads;
    lanes = (count + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
    const int64_t last = first + count - 1;
    first_key = heads.first_key_of(first), keys = heads.keys_of(last);
    shared_from = heads.first_key_of(last), shared = heads.keys_of(first);
    const int32_t* ids = nullptr;
    if (in.sequence_ids.defined()) {
      const Tensor& of_keys = in.block.key_ids.defined() ? in.block.key_ids : in.sequence_ids;
      ids = in.sequence_ids.data<int32_t>() + group.b * heads.S;
      key_ids = of_keys.data<int32_t>() + group.b * heads.capacity;
    }
    for (size_t lane = 0; lane < limit.size(); ++lane) {
      const int64_t r = first + std::min(static_cast<int64_t>(lane), count - 1);
      from[lane] = static_cast<int32_t>(heads.first_key_of(r));
      limit[lane] = static_cast<int32_t>(heads.keys_of(r));
      id[lane] = ids ? ids[r / heads.rep] : 0;
    }
    const auto [least, most] = std::ranges::minmax(id);
    least_id = least, most_id = most;
  }

  // The first multiple of kKeys from which some lane may see keys.
  int64_t first_key_tile() const { return first_key / kKeys * kKeys; }
  // The number of keys from `begin` on, below `end`, that are before the last lane's limit; none if not positive.
  int64_t keys_from(int64_t begin, int64_t end) const { return std::min(end, keys) - begin; }

  // How many of the keys [begin, begin + n) lanes may see, by window and sequence.
  Sight sight(int64_t begin, int64_t n) const {
    if (begin + n <= first_key) return Sight::none;
    if (!key_ids) return Sight::all;
    int32_t least = key_ids[begin], most = key_ids[begin];
    for (int64_t j = begin; j < begin + n; ++j) least = std::min(least, key_ids[j]), most = std::max(most, key_ids[j]);
    if (most < least_id || least > most_id) return Sight::none;
    return least == most && least_id == most_id ? Sight::all : Sight::some;
  }

  // Sets s^T [n, kQueries] to minus infinity where a lane may not see key begin + j.
  void hide(A* s, int64_t begin, int64_t n, Sight sight) const {
    for (int64_t j = 0; j < n; ++j) {
      const auto key = static_cast<int32_t>(begin + j);
      if (sight == Sight::all && key >= shared_from && key < shared) continue;
      const int32_t key_id = key_ids ? key_ids[key] : 0;
      A* row = s + j * kQueries<A>;
#pragma omp simd
      for (size_t lane = 0; lane < static_cast<size_t>(lanes); ++lane)
        row[lane] = key >= from[lane] && key < limit[lane] && id[lane] == key_id ? row[lane]
                                                                                 : -std::numeric_limits<A>::infinity();
    }
  }
};

// Dropout's factors for the probabilities of a query tile.
template <class A>
class TileDropout {
 public:
  TileDropout(const DropoutMask& mask, const Dropout& how, const Group& group, const QueryTile<A>& tile)
      : mask_(&mask), lanes_(tile.lanes), keys_(group.heads.keys) {
    assert(keys_.first % 4 == 0 && (keys_.split >= group.heads.capacity || (keys_.split | keys_.second) % 4 == 0));
    const int64_t blocks = (group.heads.length + 3) / 4;  // blocks of a query's probabilities
    for (size_t lane = 0; lane < row_.size(); ++lane) {
      const int64_t r = tile.first + std::min(static_cast<int64_t>(lane), tile.count - 1);
      row_[lane] = static_cast<uint64_t>(group.whole_offset(r, how) * blocks);
    }
  }

  // factors [n rounded up to a multiple of 4, kQueries], for keys [begin, begin + n); begin is a multiple of 4.
  void draw(A* factors, int64_t begin, int64_t n) const {
    std::array<uint64_t, kQueries<A>> index;
    for (int64_t j = 0; j < n; j += 4) {
      for (size_t lane = 0; lane < index.size(); ++lane)
        index[lane] = row_[lane] + static_cast<uint64_t>(keys_.at(begin + j) / 4);
      mask_->template draw<kQueries<A>>(factors + j * kQueries<A>, index);
    }
  }

  // s^T [n, kQueries] *= factors
  void apply(A* s, const A* factors, int64_t n) const {
    for (int64_t i = 0; i < n * kQueries<A>; i += kQueries<A>) {
#pragma omp simd
      for (int64_t lane = 0; lane < lanes_; ++lane) s[i + lane] *= factors[i + lane];
    }
  }

 private:
  const DropoutMask* mask_;
  int64_t lanes_;
  PositionRuns keys_;
  std::array<uint64_t, kQueries<A>> row_;  // first block of each lane's probabilities
};

}  // namespace witan::kernels::cpu
