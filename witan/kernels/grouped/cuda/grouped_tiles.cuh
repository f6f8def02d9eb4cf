// The tiles of a grouped matrix product, found on the device from the groups' counts: persistent blocks agree on a
// numbering of all tiles and take every so many-th each. Neighbouring numbers share an expert, rows and columns, so
// that what runs at a time reads little and finds it in the L2 cache.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "witan/tensor/ragged.h"

namespace witan::kernels::cuda {

// Which side of the product has the group's rows: the lines of a (y = x w^T), or the sum (dw = dy^T x).
enum class Grouped : uint8_t { lines, sum };

struct GroupedProduct {
  const int64_t* begin;  // [experts], as in RowGroups; null: one expert, with all lines or steps
  const int64_t* count;
  int experts;
  int lines, columns, steps;  // of one expert's product; lines or steps are the group's own
  int walk = 8;               // spans of columns that are walked through together for all lines
  int unit = 1;               // what begin and count are multiples of
};

inline GroupedProduct product_of(const RowGroups& groups, int64_t lines, int64_t columns, int64_t steps) {
  assert(std::max({lines, columns, steps}) <= INT32_MAX);
  return {groups.begin.data<int64_t>(), groups.count.data<int64_t>(), static_cast<int>(groups.experts()),
          static_cast<int>(lines),      static_cast<int>(columns),    static_cast<int>(steps)};
}

// An expert's rows, and how many spans of rows lie before them.
struct Group {
  int first_span, begin, count;
};

struct Tile {
  int expert;
  int row;           // in the pool: of the tile's first line, or of the sum's first step
  int rows;          // of the group from there on; 0 or less where a span's second tile has none
  int line, column;  // of the expert's product
};

__host__ __device__ constexpr int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

// Numbers spans of kSpanLines by kSpanColumns, each a tile or the tiles of a cluster.
template <Grouped kGrouped, int kSpanLines, int kSpanColumns>
class Tiles {
 public:
  static int shared_bytes(int experts) { return (experts + 1) * static_cast<int>(sizeof(Group)); }

  // By all threads of the block, `shared` of shared_bytes().
  __device__ Tiles(const GroupedProduct& product, Group* shared)
      : product_(product), groups_(shared), across_(divide_up(product.columns, kSpanColumns)) {
    for (int e = static_cast<int>(threadIdx.x); e < product.experts; e += static_cast<int>(blockDim.x)) {
      const bool all = product.begin == nullptr;
      groups_[e].begin = all ? 0 : static_cast<int>(product.begin[e]) * product.unit;
      groups_[e].count = !all                         ? static_cast<int>(product.count[e]) * product.unit
                         : kGrouped == Grouped::lines ? product.lines
                                                      : product.steps;
    }
    __syncthreads();
    if (kGrouped == Grouped::lines && threadIdx.x < 32) number_spans(static_cast<int>(threadIdx.x));
    __syncthreads();
    spans_ = kGrouped == Grouped::lines ? groups_[product.experts].first_span * across_
                                        : product.experts * divide_up(product.lines, kSpanLines) * across_;
  }

  __device__ int spans() const { return spans_; }

  __device__ Tile at(int span) const {
    if constexpr (kGrouped == Grouped::lines) {
      const int e = expert_of(span / across_);
      const Group group = groups_[e];
      const auto [down, across] = walk(span - group.first_span * across_, groups_[e + 1].first_span - group.first_span);
      const int line = down * kSpanLines;
      return {e, group.begin + line, group.count - line, line, across * kSpanColumns};
    } else {
      const int down_each = divide_up(product_.lines, kSpanLines), e = span / (down_each * across_);
      const auto [down, across] = walk(span - e * down_each * across_, down_each);
      return {e, groups_[e].begin, groups_[e].count, down * kSpanLines, across * kSpanColumns};
    }
  }

 private:
  struct Place {
    int down, across;
  };

  // A prefix sum over the experts, by one warp.
  __device__ void number_spans(int lane) {
    int before = 0;
    for (int base = 0; base < product_.experts; base += 32) {
      const int e = base + lane, own = e < product_.experts ? divide_up(groups_[e].count, kSpanLines) : 0;
      int sum = own;
#pragma unroll
      for (int apart = 1; apart < 32; apart *= 2) {
        const int left = __shfl_up_sync(0xffffffffu, sum, apart);
        if (lane >= apart) sum += left;
      }
      if (e < product_.experts) groups_[e].first_span = before + sum - own;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) groups_[product_.experts].first_span = before;
  }

  // The last expert with first_span <= span_of_rows: it has rows, since a later one begins behind them.
  __device__ int expert_of(int span_of_rows) const {
    int low = 0, high = product_.experts;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (groups_[middle].first_span <= span_of_rows)
        low = middle;
      else
        high = middle;
    }
    return low;
  }

  // Columns in bands of product_.walk spans; in a band row by row.
  __device__ Place walk(int local, int down_all) const {
    const int band = local / (down_all * product_.walk), rest = local - band * down_all * product_.walk;
    const int width = min(product_.walk, across_ - band * product_.walk), down = rest / width;
    return {down, band * product_.walk + rest - down * width};
  }

  GroupedProduct product_;
  Group* groups_;
  int across_, spans_ = 0;
};

}  // namespace witan::kernels::cuda
