#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/gemm/cuda/gemm.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// SplitMix64's finaliser: every bit of the value changes half of the result's.
__device__ __forceinline__ unsigned long long mix(unsigned long long value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ value >> 27) * 0x94d049bb133111ebull;
  return value ^ value >> 31;
}

// The sum of the mixed elements. Sums of integers do not depend on their order.
template <class Bits>
__global__ void __launch_bounds__(kThreads)
    fingerprint_kernel(unsigned long long* out, const Bits* matrix, int64_t rows, int64_t columns, int64_t stride) {
  unsigned long long sum = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
    for (int64_t column = threadIdx.x; column < columns; column += kThreads) {
      const auto index = static_cast<unsigned long long>(row * columns + column);
      sum += mix(mix(index + 1) ^ static_cast<unsigned long long>(matrix[row * stride + column]));
    }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}

}  // namespace

uint64_t fingerprint(Stream& stream, const Tensor& matrix) {
  unsigned long long sum = 0;
  std::byte* const out = stream.scratch(sizeof sum);
  stream.queue()->zero(out, sizeof sum);
  const auto launch = [&]<class Bits>() {
    fingerprint_kernel<<<blocks_for(stream, matrix.size(0)), kThreads, 0, native(stream)>>>(
        reinterpret_cast<unsigned long long*>(out), reinterpret_cast<const Bits*>(matrix.raw()), matrix.size(0),
        matrix.size(1), std::max(matrix.stride(0), matrix.size(1)));
  };
  const auto size = size_of(matrix.dtype());
  size == 2   ? launch.template operator()<uint16_t>()
  : size == 4 ? launch.template operator()<uint32_t>()
              : launch.template operator()<uint64_t>();
  stream.queue()->check("fingerprint");
  stream.queue()->read(&sum, out, sizeof sum);
  return sum;
}

}  // namespace witan::kernels::cuda
