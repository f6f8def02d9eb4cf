// Packing: operands are copied into the order in which the inner kernel reads them, converted to the type it computes
// in.
#pragma once

#include <algorithm>

#include "witan/kernels/cpu/gemm_vector.h"

namespace witan::kernels::cpu {

// How packing sees an operand: lines of kWidth lanes, one line per step k of the sum. Lane j of line k is
// data[k * stride + j] or, lanes_apart, data[k + j * stride].
template <class S>
struct Lines {
  const S* data;
  int64_t stride;
  bool lanes_apart;
};

// to[k][j] = lane j of line k, for k < depth, j < lanes; further lanes are zeros.
template <int kWidth, class T, class S>
void pack_slowly(T* to, const Lines<S>& from, int64_t depth, int64_t lanes) {
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t j = 0; j < kWidth; ++j)
      to[k * kWidth + j] =
          j < lanes ? T(from.lanes_apart ? from.data[k + j * from.stride] : from.data[k * from.stride + j]) : T(0);
}

template <int kWidth, class T, class S>
void pack_adjacent(T* to, const S* from, int64_t stride, int64_t depth) {
  for (int64_t k = 0; k < depth; ++k)
    for (int j = 0; j < kWidth; j += kLanes<T>) {
      Vector<T> lanes;
      load(lanes, from + k * stride + j);
      store(to + k * kWidth + j, lanes);
    }
}

// Square blocks are transposed in registers; lines beyond the last whole block are left to the caller.
template <int kWidth, class T, class S>
int64_t pack_apart(T* to, const S* from, int64_t stride, int64_t depth, int64_t lanes) {
  constexpr int L = kLanes<T>;
  const int64_t whole = depth - depth % L;
  for (int64_t k = 0; k < whole; k += L)
    for (int j = 0; j < kWidth; j += L) {
      Vector<T> block[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) {
        block[i] = Vector<T>{};
        if (j + i < lanes) load(block[i], from + k + (j + i) * stride);
      }
      transpose<T>(block);
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) store(to + (k + i) * kWidth + j, block[i]);
    }
  return whole;
}

// `lanes` are wanted; `readable` of them exist in memory, so that whole vectors may be read where they are no fewer.
template <int kWidth, class T, class S>
void pack(T* to, const Lines<S>& from, int64_t depth, int64_t lanes, int64_t readable) {
  if (from.lanes_apart) {
    const int64_t done = pack_apart<kWidth>(to, from.data, from.stride, depth, lanes);
    pack_slowly<kWidth>(to + done * kWidth, Lines<S>{from.data + done, from.stride, true}, depth - done, lanes);
  } else if (readable >= kWidth) {
    pack_adjacent<kWidth>(to, from.data, from.stride, depth);
  } else {
    pack_slowly<kWidth>(to, from, depth, lanes);
  }
}

}  // namespace witan::kernels::cpu
