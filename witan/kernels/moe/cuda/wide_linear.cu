#include "witan/kernels/gemm/cuda/gemm.h"
#include "witan/kernels/moe/cuda/wide_linear.cuh"

namespace witan::kernels::cuda {
namespace {

using namespace wide;

constexpr int kRows = 128;  // rows of x per block; its warps are 4 x 2 of 32 x 32
constexpr int kStages = 4;  // of x: one is multiplied while three are copied
constexpr int kStageElements = kRows * kStride;
constexpr int kParts = 3;
constexpr int kForwardBytes = kStages * kStageElements * 2 + 2 * kParts * kPartBytes;

// y [128, 64] of a block += x [128, 64] w [64, 64]^T. The large and the small products are summed separately: a sum
// much larger than its addends would lose their last bits.
__device__ __forceinline__ void add_forward(Sums& large, Sums& small, const Bf16* x, const Bf16* w) {
  const int warp = threadIdx.x / 32;
  x += warp / 2 * 32 * kStride + k_major_place_in_a<kStride>();
  w += warp % 2 * 32 * kStride + k_major_place_in_b<kStride>();
#pragma unroll
  for (int k = 0; k < kSide; k += 16) {
    RowsA a;
    set(a[0], load_matrices(x + k));
    set(a[1], load_matrices(x + 16 * kStride + k));
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const Bf16* const part = w + p * kPartElements + k;
      ColumnsB b;
      set(b[0], b[1], load_matrices(part));
      set(b[2], b[3], load_matrices(part + 16 * kStride));
      add_product(p == 0 ? large : small, a, b);
    }
  }
}

// Block (i, j) computes y[128 i .., 64 j ..].
__global__ void __launch_bounds__(kThreads, 1) forward_kernel(float* y, const Bf16* x, Matrix w, int64_t T) {
  extern __shared__ __align__(16) Bf16 shared[];
  Bf16 *const stages = shared, *const parts = shared + kStages * kStageElements;
  const int D = w.columns, chunks = (D + kSide - 1) / kSide;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  const int first_column = static_cast<int>(blockIdx.y) * kSide;
  const auto begin_copy = [&](int chunk) {
    if (chunk < chunks)
      copy_rows<kRows, kSide>(stages + chunk % kStages * kStageElements, x, T, D, first_row, chunk * kSide);
    commit_copies();
  };

  Chunk next;
  next.load(w, first_column, 0);
  for (int chunk = 0; chunk < kStages - 1; ++chunk) begin_copy(chunk);
  Sums large = {}, small = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    Bf16* const own = parts + chunk % 2 * kParts * kPartElements;
    next.store<kParts, Order::as_they_are>(own);
    wait_copies<kStages - 2>();
    __syncthreads();  // the chunk is visible, and the stage of the previous one is free
    begin_copy(chunk + kStages - 1);
    next.load(w, first_column, (chunk + 1) * kSide);
    add_forward(large, small, stages + chunk % kStages * kStageElements, own);
  }

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t E = w.rows;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t row = first_row + warp / 2 * 32 + m * 16 + half * 8 + lane / 4;
        const int64_t column = first_column + warp % 2 * 32 + n * 8 + lane % 4 * 2;
        if (row >= T || column >= E) continue;
        const float *const l = large[m][n] + 2 * half, *const s = small[m][n] + 2 * half;
        store_pack<float, 2>(y + row * E + column, {l[0] + s[0], l[1] + s[1]});
      }
}

constexpr int kInputParts = 2;  // of dy and of w
constexpr int kInputBytes = 2 * kInputParts * kPartBytes;

// A warp's rows of dy [128, 64] in the instruction's layout.
using Gradients = RowsA[kInputParts][kSide / 16];

__device__ __forceinline__ void load_gradients(Gradients& to, const Matrix& dy, int64_t first_row, int first_column) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kSide / 16; ++k)
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // rows g and g + 8 of columns 2 t, then of columns 2 t + 8
        const int64_t row = first_row + warp / 2 * 32 + m * 16 + i % 2 * 8 + lane / 4;
        const int column = first_column + k * 16 + i / 2 * 8 + lane % 4 * 2;
        Pack<float, 2> pair = {};
        if (row < dy.rows && column < dy.columns) pair = load_pack<float, 2>(dy.data + row * dy.columns + column);
        uint32_t parts[kInputParts];
        split(parts, pair.at[0], pair.at[1]);
#pragma unroll
        for (int p = 0; p < kInputParts; ++p) to[p][k][m].at[i] = parts[p];
      }
}

// dx [128, 64] of a block += dy [128, 64] w [64, 64]; the product of the two second parts is too small to matter.
__device__ __forceinline__ void add_input(Sums& sums, const Gradients& dy, const Bf16* w) {
  w += threadIdx.x / 32 % 2 * 32 + mn_major_place_in_b<kStride>();
#pragma unroll
  for (int k = 0; k < kSide / 16; ++k)
#pragma unroll
    for (int p = 0; p < kInputParts; ++p) {
      const Bf16* const part = w + p * kPartElements + k * 16 * kStride;
      ColumnsB b;
      set(b[0], b[1], load_matrices_transposed(part));
      set(b[2], b[3], load_matrices_transposed(part + 16));
      add_product(sums, dy[0][k], b);
      if (p == 0) add_product(sums, dy[1][k], b);
    }
}

template <bool kAdds>
__device__ __forceinline__ void store_input(Bf16* dx, const Sums& sums, int64_t T, int D, int64_t first_row,
                                            int first_column) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = first_column + warp % 2 * 32 + lane % 4 * 8;  // Order::lanes_adjacent
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first_row + warp / 2 * 32 + m * 16 + half * 8 + lane / 4;
      if (row >= T || column >= D) continue;
      Bf16* const to = dx + row * D + column;
      const Pack<Bf16, 8> before = kAdds ? load_pack<Bf16, 8>(to) : Pack<Bf16, 8>{};
      Pack<uint32_t, 4> out;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        float first = sums[m][n][2 * half], second = sums[m][n][2 * half + 1];
        if constexpr (kAdds) {
          first += __bfloat162float(before.at[2 * n]);
          second += __bfloat162float(before.at[2 * n + 1]);
        }
        out.at[n] = pack_pair<Bf16>(first, second);
      }
      store_pack<uint32_t, 4>(reinterpret_cast<uint32_t*>(to), out);
    }
}

constexpr int kMostHeld = 2;  // chunks of experts whose gradients fit in registers: 64 per thread and chunk

// Block (i, j) computes dx[128 i .., :] in the j-th of gridDim.y ranges of columns. Gradients of up to kHeld x 64
// experts stay in registers; if there are more, they are read again for every 64 columns.
template <bool kAdds, int kHeld>
__global__ void __launch_bounds__(kThreads, 1) backward_input_kernel(Bf16* dx, Matrix dy, Matrix w) {
  extern __shared__ __align__(16) Bf16 shared[];
  const int D = w.columns, steps = kHeld > 0 ? kHeld : (dy.columns + kSide - 1) / kSide;  // of each sum
  const int all = (D + kSide - 1) / kSide, own = (all + static_cast<int>(gridDim.y) - 1) / static_cast<int>(gridDim.y);
  const int first_column = static_cast<int>(blockIdx.y) * own * kSide, end = min(D, first_column + own * kSide);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  Chunk next;
  next.load(w, 0, first_column);
  Gradients gradients[std::max(kHeld, 1)];
#pragma unroll
  for (int step = 0; step < kHeld; ++step) load_gradients(gradients[step], dy, first_row, step * kSide);
  int chunk = 0;
  Sums sums = {};
  const auto add = [&](const Gradients& of, int step, int column) {
    Bf16* const place = shared + chunk++ % 2 * kInputParts * kPartElements;
    next.store<kInputParts, Order::lanes_adjacent>(place);
    __syncthreads();  // also frees the previous chunk's place, which is filled next
    const bool last = step + 1 == steps;
    next.load(w, last ? 0 : (step + 1) * kSide, last ? column + kSide : column);
    add_input(sums, of, place);
  };
  for (int column = first_column; column < end; column += kSide) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int step = 0; step < kHeld; ++step) add(gradients[step], step, column);
    } else {
      for (int step = 0; step < steps; ++step) {
        load_gradients(gradients[0], dy, first_row, step * kSide);
        add(gradients[0], step, column);
      }
    }
    store_input<kAdds>(dx, sums, dy.rows, D, first_row, column);
#pragma unroll
    for (auto& row : sums)
#pragma unroll
      for (auto& four : row)
#pragma unroll
        for (float& sum : four) sum = 0;
  }
}

// The number of ranges into which columns are divided: the one with which blocks finish most evenly, given one block
// per multiprocessor at a time.
int ranges_of_columns(int64_t blocks, int64_t multiprocessors, int64_t columns) {
  constexpr int64_t kMost = 8;
  int64_t best = 1;
  const auto time = [&](int64_t ranges) {  // in columns
    return tiles(blocks * ranges, multiprocessors) * int64_t{tiles(tiles(columns, kSide), ranges)};
  };
  for (int64_t ranges = 2; ranges <= kMost; ++ranges)
    if (time(ranges) < time(best)) best = ranges;
  return static_cast<int>(best);
}

template <class Kernel>
void allow_shared(Kernel* kernel, int bytes) {
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                     "wide_linear's shared memory");
}

}  // namespace

void wide_linear(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w) {
  if (y.elements() == 0 || few_rows_wide_linear(stream, y, x, w)) return;
  assert(packs<Bf16>(x.raw(), x.size(1)) && packs<float>(y.raw(), y.size(1)));
  if (few_wide_linear(stream, y, x, w)) return;
  if (takes_wide_hopper(stream, x, w.size(0))) return wide_linear_hopper(stream, y, x, w);
  allow_shared(forward_kernel, kForwardBytes);
  const dim3 grid(tiles(x.size(0), kRows), tiles(w.size(0), kSide));
  forward_kernel<<<grid, kThreads, kForwardBytes, native(stream)>>>(ptr<float>(y), ptr<Bf16>(x), matrix(w), x.size(0));
}

void wide_linear_backward_input(Stream& stream, const Tensor& dx, Write write, const Tensor& dy, const Tensor& w) {
  if (dx.elements() == 0) return;
  assert(packs<Bf16>(dx.raw(), dx.size(1)) && packs<float>(dy.raw(), dy.size(1)));
  if (takes_wide_backward_hopper(stream, dx, w.size(0)))
    return wide_linear_backward_input_hopper(stream, dx, write, dy, w);
  const unsigned blocks = tiles(dx.size(0), kRows);
  const dim3 grid(blocks, static_cast<unsigned>(ranges_of_columns(blocks, multiprocessors(stream), dx.size(1))));
  const auto launch = [&]<bool kAdds, int kHeld>() {
    allow_shared(backward_input_kernel<kAdds, kHeld>, kInputBytes);
    backward_input_kernel<kAdds, kHeld>
        <<<grid, kThreads, kInputBytes, native(stream)>>>(ptr<Bf16>(dx), matrix(dy), matrix(w));
  };
  const auto launch_held = [&]<int kHeld>() {
    write == Write::accumulate ? launch.template operator()<true, kHeld>() : launch.template operator()<false, kHeld>();
  };
  switch (tiles(dy.size(1), kSide)) {
    case 1:
      return launch_held.template operator()<1>();
    case kMostHeld:
      return launch_held.template operator()<kMostHeld>();
    default:
      return launch_held.template operator()<0>();
  }
}

}  // namespace witan::kernels::cuda
