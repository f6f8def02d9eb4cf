// One block per row. A logit and its id are packed into one integer, which is larger for the larger logit and, if
// logits are equal, for the lower id, so that the maximum does not depend on the order.
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
using Key = unsigned long long;
constexpr Key kNoToken = 0, kNotFinite = ~Key{0};

__device__ __forceinline__ Key key_of(float logit, uint32_t id) {
  if (!(logit < INFINITY)) return kNotFinite;
  if (logit == -INFINITY) return kNoToken;
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);  // -0 equals 0
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(ordered) << 32 | ~id;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) likeliest_kernel(int32_t* ids, const T* logits, int64_t V, int words) {
  constexpr int kDepth = 4;  // loads in flight together
  __shared__ Key keys[kThreads / 32];
  const T* const row = logits + blockIdx.x * V;
  Key best = kNoToken;
  for (int first = static_cast<int>(threadIdx.x) * N; first < words; first += kDepth * kThreads * N) {
    Pack<T, N> packs[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
      if (first + d * kThreads * N < words) packs[d] = load_pack<T, N>(row + first + d * kThreads * N);
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int id = first + d * kThreads * N + n;
        if (id < words) best = max(best, key_of(convert<float>(packs[d].at[n]), static_cast<uint32_t>(id)));
      }
  }
  best = warp_max(best);
  if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = warp_max(keys[threadIdx.x]);
  if (threadIdx.x == 0)
    ids[blockIdx.x] = best == kNoToken || best == kNotFinite ? -1 : static_cast<int32_t>(~static_cast<uint32_t>(best));
}

}  // namespace

void likeliest_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, int64_t words) {
  if (ids.elements() == 0) return;
  const auto rows = static_cast<unsigned>(ids.elements());
  const int64_t V = logits.size(1);
  assert(words < INT32_MAX - int64_t{4} * kThreads * 16);
  dispatch_device(logits.dtype(), [&]<class T>() {
    const auto count = static_cast<int>(words);
    if (packs<T>(logits.raw(), V))
      likeliest_kernel<T, kPack<T>><<<rows, kThreads, 0, native(stream)>>>(ptr<int32_t>(ids), ptr<T>(logits), V, count);
    else
      likeliest_kernel<T, 1><<<rows, kThreads, 0, native(stream)>>>(ptr<int32_t>(ids), ptr<T>(logits), V, count);
  });
}

}  // namespace witan::kernels::cuda
