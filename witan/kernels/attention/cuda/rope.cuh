// Rotary position embeddings in kernels: packs of pairs, whose channels are adjacent or `pairs` apart, and frequencies.
#pragma once

#include <algorithm>
#include <vector>

#include "witan/kernels/attention/rope.h"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

// Loads the pairs first .. first + P - 1 of a row whose `pairs` pairs rotate. P = 1 needs no alignment.
template <class T, int P>
__device__ __forceinline__ void load_pairs(T (&a)[P], T (&b)[P], const T* row, int first, int pairs, bool interleaved) {
  if constexpr (P == 1) {  // any alignment
    a[0] = row[interleaved ? 2 * first : first];
    b[0] = row[interleaved ? 2 * first + 1 : first + pairs];
  } else if (interleaved) {
    const auto both = load_pack<T, 2 * P>(row + 2 * first);
#pragma unroll
    for (int i = 0; i < P; ++i) a[i] = both.at[2 * i], b[i] = both.at[2 * i + 1];
  } else {
    const auto low = load_pack<T, P>(row + first), high = load_pack<T, P>(row + first + pairs);
#pragma unroll
    for (int i = 0; i < P; ++i) a[i] = low.at[i], b[i] = high.at[i];
  }
}

template <class T, int P>
__device__ __forceinline__ void store_pairs(T* row, const T (&a)[P], const T (&b)[P], int first, int pairs,
                                            bool interleaved) {
  if constexpr (P == 1) {
    row[interleaved ? 2 * first : first] = a[0];
    row[interleaved ? 2 * first + 1 : first + pairs] = b[0];
  } else if (interleaved) {
    Pack<T, 2 * P> both;
#pragma unroll
    for (int i = 0; i < P; ++i) both.at[2 * i] = a[i], both.at[2 * i + 1] = b[i];
    store_pack(row + 2 * first, both);
  } else {
    Pack<T, P> low, high;
#pragma unroll
    for (int i = 0; i < P; ++i) low.at[i] = a[i], high.at[i] = b[i];
    store_pack(row + first, low);
    store_pack(row + first + pairs, high);
  }
}

// The frequencies of up to kMost pairs from `first` on, each times `unit`, as a kernel argument. The host computes them
// for all devices.
struct Frequencies {
  static constexpr int kMost = 256;
  double at[kMost] = {};

  explicit Frequencies(const std::vector<double>& all, int first, double unit = 1) {
    const int count = std::min(static_cast<int>(all.size()) - first, kMost);
    for (int i = 0; i < count; ++i) at[i] = all[static_cast<size_t>(first + i)] * unit;
  }
};

}  // namespace witan::kernels::cuda
