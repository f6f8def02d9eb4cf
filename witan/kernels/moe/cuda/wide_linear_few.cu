// wide_linear() for few rows with the bits of the kernels for many: both sums of an element, of the large and of the
// small products, are chains in the order of K, 16 at a time. The copy engine brings whole rows of the weight; each
// warp splits them in registers. Which four of 16 elements of K a lane holds changes no bit, so that they are adjacent.
#include "witan/kernels/common/cuda/early_launch.cuh"
#include "witan/kernels/common/cuda/hopper.cuh"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/kernels/moe/cuda/wide_linear.cuh"

namespace witan::kernels::cuda {
namespace {

using wide::Bf16;

constexpr int kWeightRows = 16, kRows = 8;  // of the weight per block, of x per warp
constexpr int kApart = 16;                  // elements that keep rows of the weight in different banks

struct FewWide {
  float* y;
  const Bf16* x;
  const float* w;
  int rows, experts, K;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kAhead = 8;  // pieces of 16 of K of which x is read ahead

// Pieces k, k + 16, … of a lane's row of x; zeros beyond K.
__device__ __forceinline__ void load_ahead(uint2 (&to)[kAhead], const Bf16* x, int k, int K) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    to[i] = {};
    if (k + i * 16 < K) to[i] = *reinterpret_cast<const uint2*>(x + k + i * 16);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// Block i computes y[:, 16 i ..]; its warp j, y[8 j .., :].
__global__ void __launch_bounds__(FewRows::kMostWide / kRows * 32) few_wide_chain_kernel(const FewWide call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(16) float weights[];
  __shared__ uint64_t landed;
  const int lane = static_cast<int>(threadIdx.x) % 32, first_row = static_cast<int>(threadIdx.x) / 32 * kRows;
  const int expert = static_cast<int>(blockIdx.x) * kWeightRows, pitch = call.K + kApart;
  let_next_begin();
  if (threadIdx.x == 0) {
    barrier_init(&landed, 1);
    barrier_init_done();
    const auto bytes = static_cast<uint32_t>(call.K * static_cast<int>(sizeof(float)));
    barrier_arrive_and_expect(&landed, kWeightRows * bytes);
    for (int row = 0; row < kWeightRows; ++row)
      bulk_load(weights + row * pitch, call.w + static_cast<int64_t>(min(expert + row, call.experts - 1)) * call.K,
                bytes, &landed);
  }
  __syncthreads();
  wait_for_earlier();
  const Bf16* const x = call.x + static_cast<int64_t>(min(first_row + lane / 4, call.rows - 1)) * call.K + lane % 4 * 4;
  const float* const own = weights + lane / 4 * pitch + lane % 4 * 4;
  uint2 next[kAhead];
  load_ahead(next, x, 0, call.K);
  barrier_wait(&landed, 0);
  float large[4] = {}, small[4] = {};
  for (int first = 0; first < call.K; first += kAhead * 16) {
    uint2 now[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) now[i] = next[i];
    load_ahead(next, x, first + kAhead * 16, call.K);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int k = first + i * 16;
      if (k >= call.K) break;
      const auto low = load_pack<float, 4>(own + k), high = load_pack<float, 4>(own + 8 * pitch + k);
      uint32_t parts[4][3];
      wide::split(parts[0], low.at[0], low.at[1]);
      wide::split(parts[1], high.at[0], high.at[1]);
      wide::split(parts[2], low.at[2], low.at[3]);
      wide::split(parts[3], high.at[2], high.at[3]);
      const FragmentB b{{now[i].x, now[i].y}};
      const auto part = [&](int p) { return FragmentA{{parts[0][p], parts[1][p], parts[2][p], parts[3][p]}}; };
      multiply_add<Bf16>(large, part(0), b);
      multiply_add<Bf16>(small, part(1), b);
      multiply_add<Bf16>(small, part(2), b);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + lane % 4 * 2 + i % 2, e = expert + lane / 4 + i / 2 * 8;
    if (row < call.rows && e < call.experts) call.y[static_cast<int64_t>(row) * call.experts + e] = large[i] + small[i];
  }
#endif
}

}  // namespace

bool few_wide_linear(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w) {
  const int64_t T = x.size(0), D = x.size(1), E = w.size(0),
                shared = kWeightRows * (D + kApart) * int64_t{sizeof(float)};
  const bool few = RowProducts::on() && FewRows::on() && T > 0 && T <= FewRows::kMostWide && D > 0 && D % 16 == 0;
  if (!few || !is_hopper(stream) || E > INT32_MAX || !packs<float>(w.raw(), 4) ||
      shared + 1024 > witan::cuda::properties(stream.device().index).shared_per_block)
    return false;
  witan::cuda::check(cudaFuncSetAttribute(few_wide_chain_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shared)),
                     "asking for shared memory");
  const auto blocks = static_cast<unsigned>((E + kWeightRows - 1) / kWeightRows);
  const int warps = static_cast<int>((T + kRows - 1) / kRows);
  launch_early(stream, few_wide_chain_kernel, blocks, warps * 32, shared,
               FewWide{ptr<float>(y), ptr<Bf16>(x), ptr<float>(w), static_cast<int>(T), static_cast<int>(E),
                       static_cast<int>(D)});
  return true;
}

}  // namespace witan::kernels::cuda
