// RowGroups as kernel arguments.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/tensor/ragged.h"

namespace witan::kernels::cuda {

struct DeviceRowGroups {
  const int64_t* begin = nullptr;  // null: every row is in a group
  const int64_t* count = nullptr;
  int64_t groups = 0;

  explicit DeviceRowGroups(const RowGroups& host)
      : begin(ptr<const int64_t>(host.begin)),
        count(ptr<const int64_t>(host.count)),
        groups(host.begin.defined() ? host.experts() : 0) {}

  // Whether row t lies in a group. Called by a whole warp for the same row.
  __device__ __forceinline__ bool contain(int64_t t) const {
    if (!begin) return true;
    bool found = false;
#pragma unroll 2
    for (int64_t e = threadIdx.x % 32; e < groups; e += 32) {
      const int64_t first = begin[e], rows = count[e];
      found |= first <= t & t < first + rows;  // no branch, so that both loads are issued at once
    }
    return __any_sync(0xffffffffu, found);
  }

  // Sets inside[i] to whether row first + i lies in a group, for i < rows. Called by the whole block; contains
  // barriers.
  __device__ __forceinline__ void mark(bool* inside, int64_t first, int rows) const {
    for (int i = static_cast<int>(threadIdx.x); i < rows; i += static_cast<int>(blockDim.x)) inside[i] = !begin;
    __syncthreads();
    if (!begin) return;
    for (int64_t e = threadIdx.x; e < groups; e += blockDim.x) {
      const int64_t from = begin[e] - first, to = from + count[e];
      for (int64_t i = max(from, int64_t{0}); i < min(to, static_cast<int64_t>(rows)); ++i) inside[i] = true;
    }
    __syncthreads();
  }

  // The group of row t, or -1. Called by a whole warp for the same row; there must be groups.
  __device__ __forceinline__ int of(int64_t t) const {
    int found = -1;
    for (int64_t e = threadIdx.x % 32; e < groups; e += 32) {
      const int64_t first = begin[e], rows = count[e];
      if (first <= t & t < first + rows) found = static_cast<int>(e);
    }
    return warp_max(found);
  }
};

}  // namespace witan::kernels::cuda
