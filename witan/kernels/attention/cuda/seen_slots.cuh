// The slots of keys that a token sees (kernels/attention/sparse_attention.h), and dot products by warps.
#pragma once

#include "witan/kernels/attention/sparse_attention.h"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

// KeyRows on the device.
struct SlotView {
  explicit SlotView(const KeyRows& where)
      : row_of(ptr<const int32_t>(where.row_of)),
        positions(ptr<const int32_t>(where.positions)),
        ids(ptr<const int32_t>(where.ids)),
        first(where.first),
        slots(static_cast<int>(where.slots)) {}

  __device__ int64_t row(int64_t t) const { return row_of ? row_of[t] : (first + t) / slots; }
  __device__ int last(int64_t t) const { return positions ? positions[t] : static_cast<int>((first + t) % slots); }
  // Whether a token whose last slot is `last` sees slot j of its row.
  __device__ bool sees(int64_t row, int last, int j) const {
    return j <= last && (ids == nullptr || ids[row * slots + j] == ids[row * slots + last]);
  }

  // The first slot of the document that slot `last` of a row lies in. Called by whole warps.
  __device__ int document_begin(int64_t row, int last) const {
    if (ids == nullptr) return 0;
    const int32_t* const of = ids + row * slots;
    for (int j = last; j > 0; j -= 32) {
      const int before = j - 1 - static_cast<int>(threadIdx.x % 32);
      const unsigned others = __ballot_sync(0xffffffffu, before >= 0 && of[before] != of[last]);
      if (others != 0) return j - __ffs(static_cast<int>(others)) + 1;
    }
    return 0;
  }

  const int32_t *row_of, *positions, *ids;
  int64_t first;
  int slots;
};

// a . b of d channels, which all lanes of the warp get.
template <class T>
__device__ __forceinline__ Acc<T> warp_dot(const T* a, const T* b, int d) {
  using A = Acc<T>;
  A sum = 0;
  for (int c = threadIdx.x % 32; c < d; c += 32) sum += convert<A>(a[c]) * convert<A>(b[c]);
  return warp_sum(sum);
}

// Whether slot j is among ascending slots that end with -1.
__device__ __forceinline__ bool has_slot(const int32_t* chosen, int K, int j) {
  int low = 0, high = K;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (static_cast<uint32_t>(chosen[middle]) < static_cast<uint32_t>(j))  // -1 is the largest
      low = middle + 1;
    else
      high = middle;
  }
  return low < K && chosen[low] == j;
}

}  // namespace witan::kernels::cuda
