// A call of attention over a cache, as its kernels take it.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

// C: the element of caches, T or __nv_fp8_e4m3.
template <class T, class C = T>
struct CachedCall {
  using A = Acc<T>;
  T* y;
  A* lse;                // null: not wanted
  const T *q, *value_q;  // value_q null: logits are of keys alone
  const C *keys, *values;
  const float *key_scales, *value_scales;  // of caches in e4m3
  const int32_t *rows, *positions;
  int T_, H, G, rep, hd, hd_v, slots, window;
  A scale;
  bool packed;           // 16-byte loads are aligned; of e4m3 those of as many numbers as 16 bytes of T hold
  int parts, chunks;     // blocks per token and group: by keys, by query heads
  A *part_y, *part_lse;  // [T, H, parts, hd_v] and [T, H, parts], if there are several parts
};

}  // namespace witan::kernels::cuda
