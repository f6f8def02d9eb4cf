// Blocks share a row, and a warp finds the best of theirs. A logit and its id are packed into one integer, which is
// larger for the larger logit and, if logits are equal, for the lower id, so that the maximum does not depend on the
// order.
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/common/cuda/early_launch.cuh"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kDepth = 4;  // packs that a thread loads together
using Key = unsigned long long;
constexpr Key kNoToken = 0, kNotFinite = ~Key{0};

__device__ __forceinline__ Key key_of(float logit, uint32_t id) {
  if (!(logit < INFINITY)) return kNotFinite;
  if (logit == -INFINITY) return kNoToken;
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);  // -0 equals 0
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(ordered) << 32 | ~id;
}

// Block (i, j) takes every gridDim.y-th piece of row i from the j-th on; keys [rows, gridDim.y].
template <class T, int N>
__global__ void __launch_bounds__(kThreads) part_kernel(Key* keys, const T* logits, int64_t V, int words) {
  constexpr int kApart = kThreads * N, kPiece = kDepth * kApart;
  __shared__ Key shared[kThreads / 32];
  wait_for_earlier();
  let_next_begin();
  const T* const row = logits + blockIdx.x * V;
  Key best = kNoToken;
  const int begin = static_cast<int>(blockIdx.y) * kPiece + static_cast<int>(threadIdx.x) * N;
  for (int first = begin; first < words; first += static_cast<int>(gridDim.y) * kPiece) {
    Pack<T, N> packs[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
      if (first + d * kApart < words) packs[d] = load_pack<T, N>(row + first + d * kApart);
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int id = first + d * kApart + n;
        if (id < words) best = max(best, key_of(convert<float>(packs[d].at[n]), static_cast<uint32_t>(id)));
      }
  }
  best = warp_max(best);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = warp_max(threadIdx.x < kThreads / 32 ? shared[threadIdx.x] : kNoToken);
  if (threadIdx.x == 0) keys[blockIdx.x * gridDim.y + blockIdx.y] = best;
}

// A warp per row.
__global__ void __launch_bounds__(kThreads) likeliest_kernel(int32_t* ids, const Key* keys, int rows, int parts) {
  wait_for_earlier();
  let_next_begin();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  Key best = kNoToken;
  for (int part = lane; part < parts; part += 32) best = max(best, keys[row * parts + part]);
  best = warp_max(best);
  if (lane == 0)
    ids[row] = best == kNoToken || best == kNotFinite ? -1 : static_cast<int32_t>(~static_cast<uint32_t>(best));
}

template <class T, int N>
void launch(Stream& stream, const Tensor& ids, const Tensor& logits, int words) {
  constexpr int64_t kPiece = int64_t{kDepth} * kThreads * N, kMostKeys = Stream::kScratchBytes / int64_t{sizeof(Key)};
  constexpr int64_t kRows = kThreads / 32;
  const int64_t rows = ids.elements();
  const int64_t parts = std::max<int64_t>(std::min((words + kPiece - 1) / kPiece, kMostKeys / rows), 1);
  assert(rows * parts <= kMostKeys);
  auto* const keys = reinterpret_cast<Key*>(stream.scratch(rows * parts * int64_t{sizeof(Key)}));
  launch_early(stream, part_kernel<T, N>, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(parts)), kThreads, 0,
               keys, ptr<T>(logits), logits.size(1), words);
  launch_early(stream, likeliest_kernel, dim3(static_cast<unsigned>((rows + kRows - 1) / kRows)), kThreads, 0,
               ptr<int32_t>(ids), keys, static_cast<int>(rows), static_cast<int>(parts));
}

}  // namespace

void likeliest_tokens(Stream& stream, const Tensor& ids, const Tensor& logits, int64_t words) {
  if (ids.elements() == 0) return;
  assert(words < INT32_MAX / 2);
  dispatch_device(logits.dtype(), [&]<class T>() {
    const auto count = static_cast<int>(words);
    if (packs<T>(logits.raw(), logits.size(1)))
      launch<T, kPack<T>>(stream, ids, logits, count);
    else
      launch<T, 1>(stream, ids, logits, count);
  });
}

}  // namespace witan::kernels::cuda
