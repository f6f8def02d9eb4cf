#include "witan/kernels/cuda/common/common.cuh"
#include "witan/kernels/kv_cache.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Rows of `width` units to addresses `pitch` units apart.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(Unit* to, const Unit* from, int64_t units, int64_t width, int64_t pitch) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < units; i += stride)
    to[i / width * pitch + i % width] = from[i];
}

template <class Unit>
void copy_rows(Stream& stream, std::byte* to, const Tensor& x, int64_t pitch_bytes) {
  const int64_t units = x.bytes() / static_cast<int64_t>(sizeof(Unit));
  copy_rows_kernel<<<blocks_for(stream, (units + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
      reinterpret_cast<Unit*>(to), reinterpret_cast<const Unit*>(x.raw()), units, units / x.size(0),
      pitch_bytes / static_cast<int64_t>(sizeof(Unit)));
}

}  // namespace

void append_to_cache(Stream& stream, const Tensor& cache, const Tensor& x, int64_t past) {
  if (x.elements() == 0) return;
  const int64_t width = x.bytes() / x.size(0), pitch = cache.bytes() / x.size(0);
  std::byte* to = cache.raw() + width / x.size(1) * past;
  if (packs<std::byte>(to, width, 16) && packs<std::byte>(x.raw(), pitch, 16))
    copy_rows<uint4>(stream, to, x, pitch);
  else
    copy_rows<uint16_t>(stream, to, x, pitch);
}

}  // namespace witan::kernels::cuda
