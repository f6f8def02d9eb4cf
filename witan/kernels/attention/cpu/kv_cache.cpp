#include "witan/kernels/attention/kv_cache.h"

#include <cassert>
#include <cstring>

namespace witan::kernels::cpu {

void append_to_cache(Stream&, const Tensor& cache, const Tensor& x, const CacheTokens& tokens) {
  const int64_t T = tokens.rows.elements(), slots = cache.size(1);
  if (T == 0 || x.elements() == 0) return;
  const int64_t bytes = x.bytes() / T;
  for (int64_t t = 0; t < T; ++t) {
    const int64_t row = tokens.rows.data<int32_t>()[t], slot = tokens.positions.data<int32_t>()[t] % slots;
    assert(row >= 0 && row < cache.size(0) && slot >= 0);
    std::memcpy(cache.raw() + (row * slots + slot) * bytes, x.raw() + t * bytes, static_cast<size_t>(bytes));
  }
}

}  // namespace witan::kernels::cpu
