// Copies rows, one warp per row, in the widest accesses that rows and addresses allow.
#include "witan/kernels/common/cuda/early_launch.cuh"
#include "witan/kernels/moe/dispatch.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kFewTokens = 256;  // of generation: too few to fill a GPU with a warp for each

__device__ __forceinline__ int64_t first_row() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
}
__device__ __forceinline__ int64_t rows_at_once() {
  return static_cast<int64_t>(gridDim.x) * kWarps;
}

// Each lane has four accesses in flight.
template <class Unit>
__device__ __forceinline__ void copy_row(Unit* to, const Unit* from, int units) {
  constexpr int kFlight = 4;
  for (int first = threadIdx.x % 32; first < units; first += 32 * kFlight) {
    Unit held[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; ++i)
      if (first + 32 * i < units) held[i] = from[first + 32 * i];
#pragma unroll
    for (int i = 0; i < kFlight; ++i)
      if (first + 32 * i < units) to[first + 32 * i] = held[i];
  }
}

template <class Unit>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(Unit* y, const Unit* x, const int64_t* index, int64_t rows, int units, int64_t divisor) {
  for (int64_t row = first_row(); row < rows; row += rows_at_once()) {
    const int64_t from = index[row];
    if (from >= 0) {
      copy_row(y + row * units, x + from / divisor * units, units);
    } else {
      for (int i = threadIdx.x % 32; i < units; i += 32) y[row * units + i] = Unit{};
    }
  }
}

// For rows so short that a warp would have few units: one thread per unit.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    gather_narrow_kernel(Unit* y, const Unit* x, const int64_t* index, int64_t rows, int units, int64_t divisor) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * units; i += stride) {
    const int64_t row = units == 1 ? i : i / units, from = index[row];
    y[i] = from >= 0 ? x[from / divisor * units + (i - row * units)] : Unit{};
  }
}

enum class Move : uint8_t { gather, scatter };

template <class Unit, Move kMove>
__global__ void __launch_bounds__(kThreads)
    first_rows_kernel(Unit* y, const Unit* x, const int64_t* index, const int64_t* counts, int groups, int units) {
  __shared__ int64_t sums[kWarps];
  int64_t rows = 0;
  for (int i = threadIdx.x; i < groups; i += kThreads) rows += counts[i];
  rows = block_sum(rows, sums);
  for (int64_t row = first_row(); row < rows; row += rows_at_once()) {
    const int64_t other = index[row];
    const int64_t to = kMove == Move::gather ? row : other, from = kMove == Move::gather ? other : row;
    copy_row(y + to * units, x + from * units, units);
  }
}

// Calls body.operator()<Unit>(units per row).
template <class Body>
void dispatch_units(const Tensor& y, const Tensor& x, const Body& body) {
  const int64_t bytes = y.shape().last() * size_of(y.dtype());
  const uintptr_t bits =
      static_cast<uintptr_t>(bytes) | reinterpret_cast<uintptr_t>(x.raw()) | reinterpret_cast<uintptr_t>(y.raw());
  const auto with = [&]<class Unit>() {
    body.template operator()<Unit>(static_cast<int>(bytes / static_cast<int64_t>(sizeof(Unit))));
  };
  if (bits % sizeof(uint4) == 0) return with.template operator()<uint4>();
  if (bits % sizeof(uint32_t) == 0) return with.template operator()<uint32_t>();
  with.template operator()<uint16_t>();
}

unsigned blocks_of_rows(Stream& stream, int64_t rows, int per_sm) {
  return blocks_for(stream, (rows + kWarps - 1) / kWarps, per_sm);
}

template <Move kMove>
void move_first_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, const Tensor& counts) {
  if (x.elements() == 0 || y.elements() == 0) return;
  const int64_t most = kMove == Move::gather ? y.size(0) : x.size(0);
  dispatch_units(y, x, [&]<class Unit>(int units) {
    first_rows_kernel<Unit, kMove><<<blocks_of_rows(stream, most, 8), kThreads, 0, native(stream)>>>(
        ptr<Unit>(y), ptr<Unit>(x), ptr<int64_t>(index), ptr<int64_t>(counts), static_cast<int>(counts.elements()),
        units);
  });
}

// Each lane has kColumns packs of N elements of kDepth rows in flight. blockIdx.y selects some of the columns.
template <class T, int N, int kDepth>
__global__ void __launch_bounds__(kThreads)
    sum_assignments_kernel(T* y, const T* x, const int64_t* slot, int64_t tokens, int K, int D) {
  using A = Acc<T>;
  constexpr int kColumns = 2;
  let_next_begin();
  wait_for_earlier();
  for (int64_t token = first_row(); token < tokens; token += rows_at_once()) {
    const int64_t* slots = slot + token * K;
    const int lane = static_cast<int>(threadIdx.x) % 32, apart = kColumns * 32 * N;
    for (int first = static_cast<int>(blockIdx.y) * apart + lane * N; first < D;
         first += static_cast<int>(gridDim.y) * apart) {
      A sums[kColumns][N] = {};
      for (int k = 0; k < K; k += kDepth) {
        Pack<T, N> held[kDepth][kColumns];
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
          const int64_t row = k + i < K ? slots[k + i] : -1;
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            const int column = first + c * 32 * N;
            held[i][c] = row >= 0 && column < D ? load_pack<T, N>(x + row * D + column) : Pack<T, N>{};
          }
        }
#pragma unroll
        for (int i = 0; i < kDepth; ++i)
#pragma unroll
          for (int c = 0; c < kColumns; ++c)
#pragma unroll
            for (int n = 0; n < N; ++n) sums[c][n] += convert<A>(held[i][c].at[n]);  // missing rows are held as zeros
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = first + c * 32 * N;
        Pack<T, N> out;
#pragma unroll
        for (int n = 0; n < N; ++n) out.at[n] = convert<T>(sums[c][n]);
        if (column < D) store_pack(y + token * D + column, out);
      }
    }
  }
}

}  // namespace

void gather_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, int64_t divisor) {
  if (y.elements() == 0) return;
  constexpr int kNarrow = 8;  // units
  dispatch_units(y, x, [&]<class Unit>(int units) {
    const bool narrow = units <= kNarrow;
    const unsigned blocks = narrow ? blocks_for(stream, (y.size(0) * units + kThreads - 1) / kThreads, 16)
                                   : blocks_of_rows(stream, y.size(0), 64);
    (narrow ? gather_narrow_kernel<Unit> : gather_kernel<Unit>)<<<blocks, kThreads, 0, native(stream)>>>(
        ptr<Unit>(y), ptr<Unit>(x), ptr<int64_t>(index), y.size(0), units, divisor);
  });
}

void gather_first_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, const Tensor& counts) {
  move_first_rows<Move::gather>(stream, y, x, index, counts);
}

void scatter_first_rows(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& index, const Tensor& counts) {
  move_first_rows<Move::scatter>(stream, y, x, index, counts);
}

void sum_assignments(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& slot) {
  if (y.elements() == 0) return;
  const auto [T, D_] = y.shape().as_rows();
  const int64_t tokens = T;
  const int D = static_cast<int>(D_), K = static_cast<int>(slot.elements() / tokens);
  dispatch_device(y.dtype(), [&]<class E>() {
    const auto launch = [&](auto* kernel) {
      // Few tokens are divided by columns, so that no warp loads one part of a row after the other.
      const unsigned across = tokens <= kFewTokens ? static_cast<unsigned>((D + 511) / 512) : 1;
      launch_early(stream, kernel, dim3(blocks_of_rows(stream, tokens, 64), across), kThreads, 0, ptr<E>(y), ptr<E>(x),
                   ptr<int64_t>(slot), tokens, K, D);
    };
    if (!packs<E>(y.raw(), D) || !packs<E>(x.raw(), D)) return launch(&sum_assignments_kernel<E, 1, 4>);
    launch(K == 1                 ? &sum_assignments_kernel<E, kPack<E>, 1>
           : tokens <= kFewTokens ? &sum_assignments_kernel<E, kPack<E>, 8>
                                  : &sum_assignments_kernel<E, kPack<E>, 4>);
  });
}

}  // namespace witan::kernels::cuda
