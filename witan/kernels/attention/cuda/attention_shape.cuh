// Shared by the GPU's attention kernels: how queries are divided into tiles, and which pairs of a tile are visible.
//
// As in the CPU's kernels, the H / G query heads of a group read the same keys, so a group's queries form one list: row
// r is position r / rep of head g * rep + r % rep, with rep = H / G. A block works on a tile of rows or of keys of one
// group, so that dk and dv are summed over heads within a block, in the order of rows, and keys are read once for all
// heads.
#pragma once

#include <algorithm>
#include <cassert>
#include <limits>

#include "witan/kernels/attention/attention.h"
#include "witan/kernels/pointwise/cuda/philox.cuh"

namespace witan::kernels::cuda {

// kernels::PositionRuns on the device.
struct Runs {
  int first, split, second;

  explicit Runs(const PositionRuns& positions)
      : first(static_cast<int>(positions.first)),
        split(static_cast<int>(std::min<int64_t>(positions.split, std::numeric_limits<int>::max()))),
        second(static_cast<int>(positions.second)) {}

  __host__ __device__ __forceinline__ int at(int token) const {
    return token < split ? first + token : second + (token - split);
  }
  __host__ __device__ __forceinline__ int before(int position, int tokens) const {
    return min(max(position - first, 0), min(tokens, split)) + min(max(position - second, 0), max(tokens - split, 0));
  }
};

constexpr int64_t kMostWindow = int64_t{1} << 30;  // more positions than a sequence has; sums of two fit in an int

struct Heads {
  int B, S, H, G, hd, hd_v;  // S: queries per row
  int capacity;              // keys that a row has memory for
  int rep, rows;             // query heads per key head; query rows per group
  Runs queries, keys;
  int length;      // of the whole sequence
  int window;      // 0: no window
  int first_head;  // among all heads, by which dropout counts
  int all_heads;

  explicit Heads(const AttentionInputs& in)
      : B(static_cast<int>(in.q.size(0))),
        S(static_cast<int>(in.q.size(1))),
        H(static_cast<int>(in.q.size(2))),
        G(static_cast<int>(in.k.size(2))),
        hd(static_cast<int>(in.q.size(3))),
        hd_v(static_cast<int>(in.v.size(3))),
        capacity(static_cast<int>(in.k.size(1))),
        rep(H / G),
        rows(S * rep),
        queries(in.block.queries),
        keys(in.block.keys),
        length(in.block.sequence_length > 0 ? static_cast<int>(in.block.sequence_length) : S),
        window(static_cast<int>(std::min<int64_t>(in.window, kMostWindow))),
        first_head(static_cast<int>(in.dropout.first_head)),
        all_heads(in.dropout.heads > 0 ? static_cast<int>(in.dropout.heads) : H) {}

  int64_t groups() const { return int64_t{B} * G; }
  bool empty() const { return groups() * (rows + capacity) * hd * hd_v == 0; }

  __host__ __device__ __forceinline__ int token(int r) const { return r / rep; }
  // By position, row r may see keys [first_key_of(r), keys_of(r)); both bounds never decrease as r grows.
  __device__ __forceinline__ int first_key_of(int r) const {
    return window > 0 ? keys.before(queries.at(token(r)) + 1 - window, capacity) : 0;
  }
  __host__ __device__ __forceinline__ int keys_of(int r) const {
    return keys.before(queries.at(token(r)) + 1, capacity);
  }
  // By position, rows [first_row_of(j), rows_of(j)) may see key j.
  __device__ __forceinline__ int first_row_of(int j) const { return queries.before(keys.at(j), S) * rep; }
  __device__ __forceinline__ int rows_of(int j) const {
    return window > 0 ? queries.before(keys.at(j) + window, S) * rep : rows;
  }
  // The offsets of row r of one group (b, g) = (group / G, group % G): in q, dq or y, dy [B, S, H, width], and in lse
  // [B, H, S].
  __device__ __forceinline__ int64_t query(int64_t group, int r, int width) const {
    return ((group / G * S + r / rep) * H + group % G * rep + r % rep) * width;
  }
  __device__ __forceinline__ int64_t lse(int64_t group, int r) const { return (group * rep + r % rep) * S + r / rep; }
  // The first block, of 4 each, of row r's probabilities in dropout's count over the whole sequence.
  __device__ __forceinline__ int64_t mask_row(int64_t group, int r) const {
    const int64_t head = group / G * all_heads + first_head + group % G * rep + r % rep;
    return (head * length + queries.at(token(r))) * ((length + 3) / 4);
  }
  // Key j in k, dk or v, dv [B, capacity, G, width].
  __device__ __forceinline__ int64_t key(int64_t group, int j, int width) const {
    return ((group / G * capacity + j) * G + group % G) * width;
  }
};

// The operands of one call.
template <class T>
struct AttentionCall {
  using A = Acc<T>;
  Heads heads;
  const T *q, *k, *v;
  const int32_t *ids, *key_ids;  // [B, S], [B, capacity]; null: rows of the batch are whole sequences
  A scale;
  bool packed;       // 16-byte loads are aligned
  bool by_document;  // tiles begin at documents' first tokens (Tiles)
  DropoutDraw dropout;
  int64_t first_group = 0;  // of the launch
  T* y = nullptr;
  A* lse = nullptr;  // null: not wanted
  const T* dy = nullptr;
  A* delta = nullptr;  // [rows of the launch's groups], laid out as lse
  T *dq = nullptr, *dk = nullptr, *dv = nullptr;

  explicit AttentionCall(const AttentionInputs& in)
      : heads(in),
        q(ptr<T>(in.q)),
        k(ptr<T>(in.k)),
        v(ptr<T>(in.v)),
        ids(in.hints.one_sequence_per_row ? nullptr : ptr<int32_t>(in.sequence_ids)),
        key_ids(ids && in.block.key_ids.defined() ? ptr<int32_t>(in.block.key_ids) : ids),
        scale(static_cast<A>(in.scale)),
        packed(packs<T>(q, heads.hd) && packs<T>(k, heads.hd) && packs<T>(v, heads.hd_v)) {
    // Dropout draws masks by the place in a row, for four keys at a time.
    by_document = ids && (in.hints.repeatable || in.hints.batch_invariant) && !in.dropout.on();
    if (in.dropout.on()) dropout = DropoutDraw(in.dropout);
    const PositionRuns& at = in.block.keys;
    assert(!in.dropout.on() || (at.first % 4 == 0 && (at.split >= heads.capacity || (at.split | at.second) % 4 == 0)));
  }

  __device__ __forceinline__ const int32_t* ids_of(int64_t group) const {
    return ids ? ids + group / heads.G * heads.S : nullptr;
  }
  __device__ __forceinline__ const int32_t* key_ids_of(int64_t group) const {
    return ids ? key_ids + group / heads.G * heads.capacity : nullptr;
  }
};

// The group and tile of a block: tiles with the most work come first, and the group varies fastest.
struct BlockTask {
  int64_t group;
  int tile;
};
template <class T>
__device__ __forceinline__ BlockTask block_task(const AttentionCall<T>& call, int64_t groups, int tiles,
                                                bool last_tile_first) {
  const int tile = static_cast<int>(blockIdx.x / groups);
  return {call.first_group + blockIdx.x % groups, last_tile_first ? tiles - 1 - tile : tile};
}

// The sequence ids of a range of tokens.
struct IdRange {
  int least, most;
  __device__ __forceinline__ bool holds(int id) const { return id >= least && id <= most; }
  __device__ __forceinline__ bool equals(const IdRange& other) const {
    return least == most && least == other.least && most == other.most;
  }
};

// Called by a whole warp for tokens [begin, end), begin < end.
__device__ __forceinline__ IdRange id_range(const int32_t* ids, int begin, int end) {
  if (!ids) return {0, 0};
  const int lane = threadIdx.x % 32;
  int least = ids[begin], most = least;
  for (int j = begin + lane; j < end; j += 32) least = min(least, ids[j]), most = max(most, ids[j]);
  return {__reduce_min_sync(0xffffffffu, least), __reduce_max_sync(0xffffffffu, most)};
}

// The keys that a query row may see. Rows after the last repeat it.
struct RowSight {
  int from, keys, id;  // by position it may see keys [from, keys)
  __device__ __forceinline__ bool sees(int key, const int32_t* key_ids) const {
    return key >= from && key < keys && (!key_ids || key_ids[key] == id);
  }
};
__device__ __forceinline__ RowSight row_sight(const Heads& heads, const int32_t* ids, int row) {
  const int r = min(row, heads.rows - 1);
  return {heads.first_key_of(r), heads.keys_of(r), ids ? ids[heads.token(r)] : 0};
}
// The ids of rows [first, last].
__device__ __forceinline__ IdRange row_ids(const Heads& heads, const int32_t* ids, int first, int last) {
  return id_range(ids, heads.token(first), heads.token(last) + 1);
}

// The tiles in which a block reads keys, or query rows. They begin at multiples of `size` or, by document, at multiples
// from a document's first token on, and end at its last one: then a document's sums are formed in the same order
// wherever it lies in a row, since what a tile has beyond the document adds exactly 0. All threads of a block call
// these.
struct Tiles {
  const int32_t* ids;  // of the tokens; null: one document
  bool by_document;
  int size, end;      // no tile begins at `end` or later
  int per_token = 1;  // rows of a token

  // The beginning of the tile that contains `at`.
  __device__ __forceinline__ int begin_of(int at) const {
    if (!by_document || at >= end) return at / size * size;
    const int first = document_of(at / per_token) * per_token;
    return first + (at - first) / size * size;
  }
  // The end of the tile that begins at `at`; what follows it in memory belongs to other tiles.
  __device__ __forceinline__ int end_of(int at) const {
    const int most = min(at + size, end);
    if (!by_document) return most;
    const int token = at / per_token, last = (most - 1) / per_token, lane = threadIdx.x % 32;
    for (int j = token; j <= last; j += 32) {
      const int other = j + lane;
      const unsigned others = __ballot_sync(0xffffffffu, other <= last && ids[other] != ids[token]);
      if (others) return (j + __ffs(static_cast<int>(others)) - 1) * per_token;
    }
    return most;
  }
  // The first tile from `at` on, which begins one, with an id in `wanted`; `end` or more if none has.
  __device__ __forceinline__ int next(int at, const IdRange& wanted) const {
    if (!ids || at >= end || wanted.holds(ids[at / per_token])) return at;
    constexpr int kAtOnce = 8;  // loads of a lane: as many tokens are skipped in the time of one
    const int last = (end - 1) / per_token, lane = threadIdx.x % 32;
    for (int token = at / per_token; token <= last; token += 32 * kAtOnce) {
      int id[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) id[i] = ids[min(token + 32 * i + lane, last)];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const unsigned found = __ballot_sync(0xffffffffu, wanted.holds(id[i]));
        if (!found) continue;
        const int row = min(token + 32 * i + __ffs(static_cast<int>(found)) - 1, last) * per_token;
        return max(at, by_document ? row : row / size * size);  // by document it is the first of one
      }
    }
    return end;
  }
  __device__ __forceinline__ int after(int at) const {
    return by_document ? end_of(at) : at + size;
  }
  __device__ __forceinline__ IdRange ids_of(int at) const {
    if (by_document) return {ids[at / per_token], ids[at / per_token]};
    return id_range(ids, at / per_token, (min(at + size, end) - 1) / per_token + 1);
  }

 private:
  // The first token of the document that contains `token`.
  __device__ __forceinline__ int document_of(int token) const {
    const int lane = threadIdx.x % 32;
    for (int j = token; j > 0; j -= 32) {
      const int before = j - 1 - lane;
      const unsigned others = __ballot_sync(0xffffffffu, before >= 0 && ids[before] != ids[token]);
      if (others) return j - __ffs(static_cast<int>(others)) + 1;
    }
    return 0;
  }
};

inline unsigned tiles_of(int count, int size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

}  // namespace witan::kernels::cuda
