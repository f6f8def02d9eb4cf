#include "witan/kernels/kv_cache.h"

#include <cstring>

namespace witan::kernels::cpu {

void append_to_cache(Stream&, const Tensor& cache, const Tensor& x, int64_t past) {
  const int64_t batch = x.size(0);
  const int64_t row_bytes = batch == 0 ? 0 : x.bytes() / batch, cache_bytes = batch == 0 ? 0 : cache.bytes() / batch;
  const int64_t skipped = x.size(1) == 0 ? 0 : row_bytes / x.size(1) * past;
  for (int64_t b = 0; b < batch; ++b)
    std::memcpy(cache.raw() + b * cache_bytes + skipped, x.raw() + b * row_bytes, static_cast<size_t>(row_bytes));
}

}  // namespace witan::kernels::cpu
