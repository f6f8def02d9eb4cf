// dw = dy^T x has few elements, each a sum over all tokens. Blocks sum strips of tokens, and a second kernel adds up
// the strips in order.
#include "witan/kernels/moe/cuda/wide_linear.cuh"

namespace witan::kernels::cuda {
namespace {

using namespace wide;

constexpr int kColumns = 128;  // columns of x per block, by 64 of dy; its warps are 2 x 4 of 32 x 32
constexpr int kStages = 3;     // of x: one is multiplied while two are copied
constexpr int kStageStride = kColumns + 8;
constexpr int kStageElements = kSide * kStageStride;
constexpr int kParts = 3;
constexpr int kSharedBytes = kStages * kStageElements * 2 + 2 * kParts * kPartBytes;
constexpr int64_t kBlocks = 128;  // about one per multiprocessor; more would write more partial sums

// dw [64, 128] of a block += dy [64, 64]^T x [64, 128]; small products are summed separately, as in the forward.
__device__ __forceinline__ void add_strip(Sums& large, Sums& small, const Bf16* dy, const Bf16* x) {
  const int warp = threadIdx.x / 32;
  dy += warp / 4 * 32 + mn_major_place_in_a<kStride>();
  x += warp % 4 * 32 + mn_major_place_in_b<kStageStride>();
#pragma unroll
  for (int k = 0; k < kSide; k += 16) {
    ColumnsB b;
    set(b[0], b[1], load_matrices_transposed(x + k * kStageStride));
    set(b[2], b[3], load_matrices_transposed(x + k * kStageStride + 16));
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const Bf16* const part = dy + p * kPartElements + k * kStride;
      RowsA a;
      set(a[0], load_matrices_transposed(part));
      set(a[1], load_matrices_transposed(part + 16));
      add_product(p == 0 ? large : small, a, b);
    }
  }
}

// Block (i, j, k) computes partials[i, 64 k .., 128 j ..], the sum over tokens [i strip, (i + 1) strip); strip % 64 =
// 0.
__global__ void __launch_bounds__(kThreads, 1)
    strip_kernel(float* partials, Matrix dy, const Bf16* x, int D, int64_t strip) {
  extern __shared__ __align__(16) Bf16 shared[];
  Bf16 *const stages = shared, *const parts = shared + kStages * kStageElements;
  const int64_t T = dy.rows, first = blockIdx.x * strip, end = min(T, first + strip);
  const int chunks = static_cast<int>((end - first + kSide - 1) / kSide);
  const int first_column = static_cast<int>(blockIdx.y) * kColumns, first_expert = static_cast<int>(blockIdx.z) * kSide;
  const auto begin_copy = [&](int chunk) {
    if (chunk < chunks)
      copy_rows<kSide, kColumns>(stages + chunk % kStages * kStageElements, x, T, D,
                                 first + static_cast<int64_t>(chunk) * kSide, first_column);
    commit_copies();
  };

  Chunk next;
  next.load(dy, first, first_expert);
  for (int chunk = 0; chunk < kStages - 1; ++chunk) begin_copy(chunk);
  Sums large = {}, small = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    Bf16* const own = parts + chunk % 2 * kParts * kPartElements;
    next.store<kParts, Order::as_they_are>(own);
    wait_copies<kStages - 2>();
    __syncthreads();  // the chunk is visible, and the stage of the previous one is free
    begin_copy(chunk + kStages - 1);
    if (chunk + 1 < chunks) next.load(dy, first + static_cast<int64_t>(chunk + 1) * kSide, first_expert);
    add_strip(large, small, own, stages + chunk % kStages * kStageElements);
  }

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, E = dy.columns;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t expert = first_expert + warp / 4 * 32 + m * 16 + half * 8 + lane / 4;
        const int64_t column = first_column + warp % 4 * 32 + n * 8 + lane % 4 * 2;
        if (expert >= E || column >= D) continue;
        const float *const l = large[m][n] + 2 * half, *const s = small[m][n] + 2 * half;
        store_pack<float, 2>(partials + (static_cast<int64_t>(blockIdx.x) * E + expert) * D + column,
                             {l[0] + s[0], l[1] + s[1]});
      }
}

// to[i] (=|+=) the sum over the strips of partials[strip, i]
template <class G>
__global__ void __launch_bounds__(kThreads)
    add_strips_kernel(G* to, bool adds, const float* partials, int64_t strips, int64_t elements) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  float sum = 0;
#pragma unroll 16
  for (int64_t strip = 0; strip < strips; ++strip) sum += partials[strip * elements + i];
  to[i] = convert<G>(adds ? convert<float>(to[i]) + sum : sum);
}

WideStrips sum_strips(Stream& stream, const Tensor& dy, const Tensor& x) {
  const int64_t T = x.size(0), D = x.size(1), E = dy.size(1);
  const unsigned across = tiles(D, kColumns), down = tiles(E, kSide);
  const int64_t chunks = tiles(T, kSide), most = std::max<int64_t>(1, kBlocks / (int64_t{across} * down));
  const int64_t strip = std::max<int64_t>(1, (chunks + most - 1) / most) * kSide, strips = tiles(T, strip);
  auto* const sums = reinterpret_cast<float*>(stream.scratch(strips * E * D * int64_t{sizeof(float)}));
  witan::cuda::check(cudaFuncSetAttribute(strip_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
                     "wide_linear's shared memory");
  strip_kernel<<<dim3(static_cast<unsigned>(strips), across, down), kThreads, kSharedBytes, native(stream)>>>(
      sums, wide::matrix(dy), ptr<Bf16>(x), static_cast<int>(D), strip);
  return {sums, strips};
}

}  // namespace

void wide_linear_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x) {
  assert(packs<Bf16>(x.raw(), x.size(1)) && packs<float>(dy.raw(), dy.size(1)));
  WideStrips of{};  // without tokens there are no strips
  if (x.size(0) > 0)
    of = takes_wide_backward_hopper(stream, x, dy.size(1)) ? wide_linear_strips_hopper(stream, dy, x)
                                                           : sum_strips(stream, dy, x);
  dispatch_device(dw.dtype(), [&]<class G>() {
    add_strips_kernel<<<tiles(dw.elements(), kThreads), kThreads, 0, native(stream)>>>(
        ptr<G>(dw), write == Write::accumulate, of.sums, of.strips, dw.elements());
  });
}

}  // namespace witan::kernels::cuda
