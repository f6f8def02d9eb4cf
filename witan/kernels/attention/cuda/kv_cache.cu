#include "witan/kernels/attention/kv_cache.h"
#include "witan/kernels/common/cuda/copy.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A token's unit i goes to its slot.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    append_kernel(Unit* cache, const Unit* x, const int32_t* rows, const int32_t* positions, int64_t units, int width,
                  int slots) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < units; i += stride) {
    const int64_t t = i / width;
    cache[(static_cast<int64_t>(rows[t]) * slots + positions[t] % slots) * width + i % width] = x[i];
  }
}

}  // namespace

void append_to_cache(Stream& stream, const Tensor& cache, const Tensor& x, const CacheTokens& tokens) {
  const int64_t T = tokens.rows.elements();
  if (T == 0 || x.elements() == 0) return;
  with_copy_unit(cache, x, x.bytes() / T, [&]<class Unit>(int64_t width) {
    const int64_t units = T * width;
    append_kernel<<<blocks_for(stream, (units + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
        ptr<Unit>(cache), ptr<const Unit>(x), ptr<int32_t>(tokens.rows), ptr<int32_t>(tokens.positions), units,
        static_cast<int>(width), static_cast<int>(cache.size(1)));
  });
}

}  // namespace witan::kernels::cuda
