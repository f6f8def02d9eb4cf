// The tiles of a grouped matrix product, computed on the device from the groups' counts. Persistent blocks number all
// tiles in the same way, and each takes every n-th, where n is the number of blocks (or clusters). Neighbouring numbers
// share an expert, rows and columns, so that tiles that run at the same time read little, and most of it from the L2
// cache.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "witan/tensor/ragged.h"

namespace witan::kernels::cuda {

// The dim of the product that runs over the group's rows: M (y = x w^T), or K, the sum's (dw = dy^T x).
enum class Grouped : uint8_t { m, sum };

struct GroupedProduct {
  const int64_t* begin;  // [experts], as in RowGroups; null: one expert, with all of M or K
  const int64_t* count;
  int experts;
  int M, N, K;   // of one expert's product; M or K is the group's own
  int walk = 8;  // cluster tiles of columns that are walked together over all of M
  int unit = 1;  // rows per unit of begin and count
};

inline GroupedProduct product_of(const RowGroups& groups, int64_t M, int64_t columns, int64_t K) {
  assert(std::max({M, columns, K}) <= INT32_MAX);
  return {groups.begin.data<int64_t>(), groups.count.data<int64_t>(), static_cast<int>(groups.experts()),
          static_cast<int>(M),          static_cast<int>(columns),    static_cast<int>(K)};
}

// An expert's rows, and the number of rows of cluster tiles before them.
struct Group {
  int first_cluster_tile, begin, count;
};

struct Tile {
  int expert;
  int row;   // in the pool: the row of the tile's first m, or of its first k
  int rows;  // of the group from there on; 0 or less for a cluster tile's second tile without rows
  int m, n;  // of the expert's product
};

__host__ __device__ constexpr int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

// Numbers cluster tiles of kClusterM by kClusterN, each the tile of one block or the tiles of a cluster.
template <Grouped kGrouped, int kClusterM, int kClusterN>
class Tiles {
 public:
  static int shared_bytes(int experts) { return (experts + 1) * static_cast<int>(sizeof(Group)); }

  // Called by all threads of the block; `shared` has shared_bytes().
  __device__ Tiles(const GroupedProduct& product, Group* shared)
      : product_(product), groups_(shared), across_(divide_up(product.N, kClusterN)) {
    for (int e = static_cast<int>(threadIdx.x); e < product.experts; e += static_cast<int>(blockDim.x)) {
      const bool all = product.begin == nullptr;
      groups_[e].begin = all ? 0 : static_cast<int>(product.begin[e]) * product.unit;
      groups_[e].count = !all                     ? static_cast<int>(product.count[e]) * product.unit
                         : kGrouped == Grouped::m ? product.M
                                                  : product.K;
    }
    __syncthreads();
    if (kGrouped == Grouped::m && threadIdx.x < 32) number_cluster_tiles(static_cast<int>(threadIdx.x));
    __syncthreads();
    cluster_tiles_ = kGrouped == Grouped::m ? groups_[product.experts].first_cluster_tile * across_
                                            : product.experts * divide_up(product.M, kClusterM) * across_;
  }

  __device__ int cluster_tiles() const { return cluster_tiles_; }

  __device__ Tile at(int cluster_tile) const {
    if constexpr (kGrouped == Grouped::m) {
      const int e = expert_of(cluster_tile / across_);
      const Group group = groups_[e];
      const auto [down, across] = walk(cluster_tile - group.first_cluster_tile * across_,
                                       groups_[e + 1].first_cluster_tile - group.first_cluster_tile);
      const int m = down * kClusterM;
      return {e, group.begin + m, group.count - m, m, across * kClusterN};
    } else {
      const int down_each = divide_up(product_.M, kClusterM), e = cluster_tile / (down_each * across_);
      const auto [down, across] = walk(cluster_tile - e * down_each * across_, down_each);
      return {e, groups_[e].begin, groups_[e].count, down * kClusterM, across * kClusterN};
    }
  }

 private:
  struct Place {
    int down, across;
  };

  // A prefix sum over the experts, computed by one warp.
  __device__ void number_cluster_tiles(int lane) {
    int before = 0;
    for (int base = 0; base < product_.experts; base += 32) {
      const int e = base + lane, own = e < product_.experts ? divide_up(groups_[e].count, kClusterM) : 0;
      int sum = own;
#pragma unroll
      for (int apart = 1; apart < 32; apart *= 2) {
        const int left = __shfl_up_sync(0xffffffffu, sum, apart);
        if (lane >= apart) sum += left;
      }
      if (e < product_.experts) groups_[e].first_cluster_tile = before + sum - own;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) groups_[product_.experts].first_cluster_tile = before;
  }

  // The last expert with first_cluster_tile <= cluster_row: it has rows, since a later expert begins after them.
  __device__ int expert_of(int cluster_row) const {
    int low = 0, high = product_.experts;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (groups_[middle].first_cluster_tile <= cluster_row)
        low = middle;
      else
        high = middle;
    }
    return low;
  }

  // Walks bands of product_.walk cluster tiles across, row by row in each.
  __device__ Place walk(int local, int down_all) const {
    const int band = local / (down_all * product_.walk), rest = local - band * down_all * product_.walk;
    const int width = min(product_.walk, across_ - band * product_.walk), down = rest / width;
    return {down, band * product_.walk + rest - down * width};
  }

  GroupedProduct product_;
  Group* groups_;
  int across_, cluster_tiles_ = 0;
};

}  // namespace witan::kernels::cuda
