// Finds the tensor that a chunk belongs to, in a table of rows of increasing first_chunk.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

// Returns the last row that begins at or before the chunk; rows without chunks begin where the next one does. Each warp
// searches by itself, 32 rows at a time.
template <class Row>
__device__ __forceinline__ Row row_of_chunk(const Row* rows, int count, int64_t chunk) {
  const int lane = threadIdx.x % 32;
  int first = 0;
  while (count > 1) {
    const int apart = (count + 31) / 32, at = lane * apart;
    const bool before = at < count && rows[first + at].first_chunk <= chunk;
    const int last = 31 - __clz(__ballot_sync(0xffffffffu, before));  // the first row always begins before
    first += last * apart;
    count = min(apart, count - last * apart);
  }
  return rows[first];
}

}  // namespace witan::kernels::cuda
