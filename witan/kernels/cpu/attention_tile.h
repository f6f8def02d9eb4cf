// What the attention twins share: how queries and keys are cut into tiles, and which pairs of a tile are visible.
//
// The H / G query heads of a group read the same keys, so a group's queries form one list, position by position: row r
// is position r / rep of head g * rep + r % rep. A query tile is kQueries rows; its scores are kept as s^T [keys,
// kQueries], so that maxima and sums over keys are lane by lane, and a query's result knows nothing of its neighbours.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <memory>
#include <utility>

#include "witan/kernels/attention.h"
#include "witan/kernels/cpu/dropout_mask.h"
#include "witan/kernels/cpu/math.h"
#include "witan/kernels/cpu/small_product.h"

namespace witan::kernels::cpu {

template <class A>
inline constexpr int64_t kQueries = 2 * kLanes<A>;  // rows of a query tile
inline constexpr int64_t kKeys = 64;  // keys of a tile; tiles begin at multiples of it, whatever a task covers

struct Heads {
  int64_t B, S, H, G, hd;  // S: queries of a row
  int64_t capacity;        // keys that a row has memory for
  int64_t rep;             // query heads per key head
  PositionRuns queries, keys;
  int64_t length;  // of the whole sequence

  Heads(const Tensor& q, const Tensor& k, const AttentionBlock& block)
      : B(q.size(0)),
        S(q.size(1)),
        H(q.size(2)),
        G(k.size(2)),
        hd(q.size(3)),
        capacity(k.size(1)),
        rep(H / G),
        queries(block.queries),
        keys(block.keys),
        length(block.sequence_length > 0 ? block.sequence_length : S) {}

  int64_t groups() const { return B * G; }
  int64_t rows() const { return S * rep; }
  bool empty() const { return B * (rows() + capacity) * hd == 0; }
  // How many keys row r may see by position: its first ones.
  int64_t keys_of(int64_t r) const { return keys.before(queries.at(r / rep) + 1, capacity); }
  // The first row that may see key j, or rows().
  int64_t first_row_of(int64_t j) const { return queries.before(keys.at(j), S) * rep; }

  // hd rounded up to whole vectors: the row size of tiles in scratch memory, whose last columns are zeros.
  template <class A>
  int64_t padded() const {
    return (hd + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
  }
};

// One group of one batch row: where its rows and keys lie.
struct Group {
  Heads heads;
  int64_t b, g;

  Group(const Heads& heads_, int64_t index) : heads(heads_), b(index / heads.G), g(index % heads.G) {}

  // Row r in q, y, dq, dy [B, S, H, hd], and in lse [B, H, S].
  int64_t query_offset(int64_t r) const { return ((b * heads.S + r / heads.rep) * heads.H + head_of(r)) * heads.hd; }
  int64_t lse_offset(int64_t r) const { return (b * heads.H + head_of(r)) * heads.S + r / heads.rep; }
  // The same in the lse of all heads and the whole sequence, which dropout numbers rows by.
  int64_t whole_offset(int64_t r, const Dropout& how) const {
    const int64_t H = how.heads > 0 ? how.heads : heads.H;
    return (b * H + how.first_head + head_of(r)) * heads.length + heads.queries.at(r / heads.rep);
  }
  // Key j in k, v, dk, dv [B, capacity, G, hd].
  int64_t key_offset(int64_t j) const { return ((b * heads.capacity + j) * heads.G + g) * heads.hd; }

 private:
  int64_t head_of(int64_t r) const { return g * heads.rep + r % heads.rep; }
};

// Scratch memory of one task, aligned for vectors. Not initialised.
template <class A>
class Scratch {
 public:
  explicit Scratch(int64_t elements)
      : memory_(std::make_unique_for_overwrite<Vector<A>[]>(static_cast<size_t>(elements / kLanes<A> + 1))),
        next_(reinterpret_cast<A*>(memory_.get())) {}
  A* take(int64_t elements) { return std::exchange(next_, next_ + elements); }

 private:
  std::unique_ptr<Vector<A>[]> memory_;
  A* next_;
};

// to[0..hd) = factor * from, and zeros up to `padded`.
template <class T, class A>
inline void unpack_row(A* to, const T* from, A factor, int64_t hd, int64_t padded) {
#pragma omp simd
  for (int64_t d = 0; d < hd; ++d) to[d] = factor * A(from[d]);
  for (int64_t d = hd; d < padded; ++d) to[d] = A(0);
}

// Rows [begin, end) of keys, a tensor [B, capacity, G, hd], as [end - begin, padded].
template <class T, class A>
void unpack_keys(A* to, const Group& group, const Tensor& keys, int64_t begin, int64_t end) {
  const int64_t hd = group.heads.hd, padded = group.heads.padded<A>();
  for (int64_t j = begin; j < end; ++j, to += padded)
    unpack_row(to, keys.data<T>() + group.key_offset(j), A(1), hd, padded);
}

// Rows [first, first + kQueries) of factor * x, x [B, S, H, hd], as [kQueries, padded]; zeros beyond the last row.
template <class T, class A>
void unpack_queries(A* to, const Group& group, const Tensor& x, A factor, int64_t first) {
  const int64_t hd = group.heads.hd, padded = group.heads.padded<A>();
  for (int64_t r = first; r < first + kQueries<A>; ++r, to += padded)
    if (r < group.heads.rows()) {
      unpack_row(to, x.data<T>() + group.query_offset(r), factor, hd, padded);
    } else {
      std::fill_n(to, padded, A(0));
    }
}

// [kQueries, padded] -> [padded, kQueries]
template <class A>
void transpose_tile(A* to, const A* from, int64_t padded) {
  constexpr int64_t L = kLanes<A>;
  for (int64_t r = 0; r < kQueries<A>; r += L)
    for (int64_t d = 0; d < padded; d += L) {
      Vector<A> square[L];
      for (int64_t i = 0; i < L; ++i) load(square[i], from + (r + i) * padded + d);
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

// How much of a tile of keys a tile of queries may see, their order aside.
enum class Sight : uint8_t { none, some, all };

// Who the lanes of a query tile are, and what they may see. Lanes past the last row repeat it.
template <class A>
struct QueryTile {
  int64_t first = 0, count = 0;                    // rows
  int64_t lanes = 0;                               // count rounded up to whole vectors; what is beyond is not computed
  int64_t keys = 0, shared = 0;                    // the most and the least of the lanes' limits
  std::array<int32_t, kQueries<A>> limit{}, id{};  // by position a lane may see the keys before its limit
  int32_t least_id = 0, most_id = 0;
  const int32_t* key_ids = nullptr;  // of the batch row's keys; null: all equal

  QueryTile(const Group& group, const AttentionInputs& in, int64_t first_row)
      : first(first_row), count(std::min(kQueries<A>, group.heads.rows() - first_row)) {
    const Heads& heads = group.heads;
    lanes = (count + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
    shared = heads.keys_of(first), keys = heads.keys_of(first + count - 1);
    const int32_t* ids = nullptr;
    if (in.sequence_ids.defined()) {
      const Tensor& of_keys = in.block.key_ids.defined() ? in.block.key_ids : in.sequence_ids;
      ids = in.sequence_ids.data<int32_t>() + group.b * heads.S;
      key_ids = of_keys.data<int32_t>() + group.b * heads.capacity;
    }
    for (size_t lane = 0; lane < limit.size(); ++lane) {
      const int64_t r = first + std::min(static_cast<int64_t>(lane), count - 1);
      limit[lane] = static_cast<int32_t>(heads.keys_of(r));
      id[lane] = ids ? ids[r / heads.rep] : 0;
    }
    const auto [least, most] = std::ranges::minmax(id);
    least_id = least, most_id = most;
  }

  // How many keys from `begin` on, below `end`, some lane may see by position; 0 or less: none.
  int64_t keys_from(int64_t begin, int64_t end) const { return std::min(end, keys) - begin; }

  // By sequence: may lanes see keys [begin, begin + n)?
  Sight sight(int64_t begin, int64_t n) const {
    if (!key_ids) return Sight::all;
    int32_t least = key_ids[begin], most = key_ids[begin];
    for (int64_t j = begin; j < begin + n; ++j) least = std::min(least, key_ids[j]), most = std::max(most, key_ids[j]);
    if (most < least_id || least > most_id) return Sight::none;
    return least == most && least_id == most_id ? Sight::all : Sight::some;
  }

  // s^T [n, kQueries]: minus infinity where a lane may not see key begin + j.
  void hide(A* s, int64_t begin, int64_t n, Sight sight) const {
    const int64_t from = sight == Sight::all ? std::max<int64_t>(0, shared - begin) : 0;
    for (int64_t j = from; j < n; ++j) {
      const auto key = static_cast<int32_t>(begin + j);
      const int32_t key_id = key_ids ? key_ids[key] : 0;
      A* row = s + j * kQueries<A>;
#pragma omp simd
      for (size_t lane = 0; lane < static_cast<size_t>(lanes); ++lane)
        row[lane] = key < limit[lane] && id[lane] == key_id ? row[lane] : -std::numeric_limits<A>::infinity();
    }
  }
};

// What dropout multiplies the probabilities of a query tile by.
template <class A>
class TileDropout {
 public:
  TileDropout(const DropoutMask& mask, const Dropout& how, const Group& group, const QueryTile<A>& tile)
      : mask_(&mask), lanes_(tile.lanes), keys_(group.heads.keys) {
    assert(keys_.first % 4 == 0 && (keys_.split >= group.heads.capacity || (keys_.split | keys_.second) % 4 == 0));
    const int64_t blocks = (group.heads.length + 3) / 4;  // of a query's probabilities
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
