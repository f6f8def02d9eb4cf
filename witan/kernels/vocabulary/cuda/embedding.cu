// The gradient of an embedding table: tokens are sorted by row, and each row of the table is written once, by one warp.
// Tokens of rows that the table lacks are sorted after all others, as if they named row V.
//
// A row's tokens are summed in blocks of 64. Full blocks are summed first, by thread blocks of their own, so that an id
// that most tokens have does not keep a single warp busy for long; the warp that writes the row sums the remaining
// tokens.

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "witan/kernels/common/cuda/copy.cuh"
#include "witan/kernels/pointwise/cuda/map.cuh"
#include "witan/kernels/vocabulary/vocabulary.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kBlock = 64;  // tokens summed together

// Tokens sorted by their rows, and the first token of each row.
struct Sorted {
  const uint32_t* rows;   // [T], ascending; V: no row of the table
  const int32_t* tokens;  // [T], ascending within a row
  const int32_t* begin;   // [V + 1]
  int64_t T, V;
};

__global__ void __launch_bounds__(kThreads)
    number_tokens_kernel(int32_t* tokens, uint32_t* rows, const int32_t* ids, uint32_t begin, int64_t T, uint32_t V) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t >= T) return;
  tokens[t] = static_cast<int32_t>(t);
  rows[t] = min(static_cast<uint32_t>(ids[t]) - begin, V);  // ids before `begin` wrap around to large numbers
}

// begin[v] = the number of sorted rows less than v.
__global__ void __launch_bounds__(kThreads)
    find_begins_kernel(int32_t* begin, const uint32_t* rows, int64_t T, int64_t V) {
  const int64_t v = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (v > V) return;
  int64_t low = 0, high = T;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (rows[middle] < v)
      low = middle + 1;
    else
      high = middle;
  }
  begin[v] = static_cast<int32_t>(low);
}

// partials[j] = the sum of the full block that begins among the sorted tokens [64 j, 64 j + 64); at most one does. It
// covers columns [0, columns) of rows that are D apart.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    sum_full_blocks_kernel(Acc<T>* partials, const T* dy, Sorted sorted, int64_t D, int64_t columns) {
  using A = Acc<T>;
  constexpr int kInFlight = 8;
  __shared__ int32_t tokens[kBlock];
  __shared__ int64_t begin;
  if (threadIdx.x == 0) begin = -1;
  __syncthreads();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (threadIdx.x < kBlock && i < sorted.T) {
    const uint32_t v = sorted.rows[i];
    if (v < sorted.V && (i - sorted.begin[v]) % kBlock == 0 && i + kBlock <= sorted.begin[v + 1]) begin = i;
  }
  __syncthreads();
  if (begin < 0) return;
  if (threadIdx.x < kBlock) tokens[threadIdx.x] = sorted.tokens[begin + threadIdx.x];
  __syncthreads();
  for (int64_t d = static_cast<int64_t>(threadIdx.x) * N; d < columns; d += kThreads * N) {
    Pack<A, N> sums = {};
    for (int first = 0; first < kBlock; first += kInFlight) {
      Pack<T, N> in[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) in[k] = load_pack<T, N>(dy + tokens[first + k] * D + d);
#pragma unroll
      for (int k = 0; k < kInFlight; ++k)
#pragma unroll
        for (int j = 0; j < N; ++j) sums.at[j] += convert<A>(in[k].at[j]);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) partials[blockIdx.x * columns + d + j] = sums.at[j];
  }
}

// A lane's packs of one row: P packs of N elements each, 32 packs apart.
template <int N>
inline constexpr int kRowPacks = std::min(4, 16 / N);

// Sums the sorted tokens [begin, end), fewer than 64, into a lane's packs of a row; called by all lanes.
template <int N, class T>
__device__ __forceinline__ void sum_tokens(Acc<T> (&sums)[kRowPacks<N>][N], const T* dy, const int32_t* tokens,
                                           int64_t begin, int64_t end, int64_t D, int64_t d, int64_t columns) {
  constexpr int P = kRowPacks<N>, kInFlight = 4;
  static_assert(kBlock == 64);
  const int lane = threadIdx.x % 32, count = static_cast<int>(end - begin);
  // All indices are loaded first, so that rows do not wait for them one after the other.
  const int32_t low = lane < count ? tokens[begin + lane] : 0, high = lane + 32 < count ? tokens[begin + 32 + lane] : 0;
  for (int first = 0; first < count; first += kInFlight) {
    Pack<T, N> in[kInFlight][P];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int i = first + k;
      const T* const row = dy + __shfl_sync(0xffffffffu, first < 32 ? low : high, i % 32) * D + d;
#pragma unroll
      for (int p = 0; p < P; ++p) {
        in[k][p] = {};
        if (i < count && d + p * 32 * N < columns) in[k][p] = load_pack<T, N>(row + p * 32 * N);
      }
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k)
#pragma unroll
      for (int p = 0; p < P; ++p)
#pragma unroll
        for (int j = 0; j < N; ++j) sums[p][j] += convert<Acc<T>>(in[k][p].at[j]);
  }
}

// dw[v] (=|+=) the sum over the sorted tokens [begin, end), by a warp: the full blocks, then the remaining tokens.
template <int N, class G, class T>
__device__ __forceinline__ void write_row(G* row, bool adds, const Acc<T>* partials, const T* dy, const int32_t* tokens,
                                          int64_t begin, int64_t end, int64_t D, int64_t columns) {
  using A = Acc<T>;
  constexpr int P = kRowPacks<N>;
  const int64_t rest = begin + (end - begin) / kBlock * kBlock;
  for (int64_t first = 0; first < columns; first += 32 * N * P) {
    const int64_t d = first + threadIdx.x % 32 * N;
    A left[P][N] = {};
    sum_tokens<N>(left, dy, tokens, rest, end, D, d, columns);
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int64_t column = d + p * 32 * N;
      if (column >= columns) continue;
      Pack<A, N> sums = {};
#pragma unroll 4
      for (int64_t i = begin; i < rest; i += kBlock)
#pragma unroll
        for (int j = 0; j < N; ++j) sums.at[j] += partials[i / kBlock * columns + column + j];
      Pack<G, N> out = {};
      if (adds) out = load_pack<G, N>(row + column);
#pragma unroll
      for (int j = 0; j < N; ++j) out.at[j] = convert<G>(convert<A>(out.at[j]) + (sums.at[j] + left[p][j]));
      store_pack<G, N>(row + column, out);
    }
  }
}

constexpr int kMostRows = 8;  // per warp: most rows of a large table only become zero

template <int N, class G, class T>
__global__ void __launch_bounds__(kThreads, 3) write_rows_kernel(G* dw, bool adds, const Acc<T>* partials, const T* dy,
                                                                 Sorted sorted, int rows, int64_t D, int64_t columns) {
  const int lane = threadIdx.x % 32;
  // A warp takes rows far apart, since neighbouring ids are often frequent together.
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t apart = static_cast<int64_t>(gridDim.x) * kWarps, mine = first + lane * apart;
  int32_t begins = 0, ends = 0;
  if (lane < rows && mine < sorted.V) begins = sorted.begin[mine], ends = sorted.begin[mine + 1];
  for (int k = 0; k < rows && first + k * apart < sorted.V; ++k) {
    const int32_t begin = __shfl_sync(0xffffffffu, begins, k), end = __shfl_sync(0xffffffffu, ends, k);
    G* const row = dw + (first + k * apart) * D;
    if (begin < end) {
      write_row<N, G, T>(row, adds, partials, dy, sorted.tokens, begin, end, D, columns);
    } else if (!adds) {
      for (int64_t d = lane * N; d < columns; d += 32 * N) store_pack<G, N>(row + d, Pack<G, N>{});
    }
  }
}

int64_t aligned(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Sorts the tokens by row, stably, and finds where each row's tokens begin. Uses the beginning of scratch, and returns
// its size in `used`.
Sorted sort_tokens(Stream& stream, const Tensor& order, const Tensor& ids, int64_t first_id, int64_t V, int64_t& used) {
  const int64_t T = ids.elements();
  const int bits = std::bit_width(static_cast<uint64_t>(V));
  int32_t* const begin = ptr<int32_t>(order);
  int32_t* const tokens = begin + V + 1;
  const auto sort = [&](void* memory, size_t& bytes, const uint32_t* rows, uint32_t* sorted, const int32_t* numbers) {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, rows, sorted, numbers, tokens, static_cast<int>(T), 0, bits,
                                           native(stream));
  };
  size_t bytes = 0;
  witan::cuda::check(sort(nullptr, bytes, nullptr, nullptr, nullptr), "sorting tokens by id");
  const int64_t numbers_bytes = aligned(T * 4);
  used = 3 * numbers_bytes + aligned(static_cast<int64_t>(bytes));
  std::byte* const scratch = stream.scratch(used);
  auto* const rows = reinterpret_cast<uint32_t*>(scratch);
  auto* const sorted = reinterpret_cast<uint32_t*>(scratch + numbers_bytes);
  auto* const numbers = reinterpret_cast<int32_t*>(scratch + 2 * numbers_bytes);
  if (T > 0) {
    number_tokens_kernel<<<static_cast<unsigned>((T + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
        numbers, rows, ptr<const int32_t>(ids), static_cast<uint32_t>(first_id), T, static_cast<uint32_t>(V));
    witan::cuda::check(sort(scratch + 3 * numbers_bytes, bytes, rows, sorted, numbers), "sorting tokens by id");
  }
  find_begins_kernel<<<static_cast<unsigned>(V / kThreads + 1), kThreads, 0, native(stream)>>>(begin, sorted, T, V);
  return {sorted, tokens, begin, T, V};
}

// Processes as many columns at a time as `partials` has room for.
template <int N, class G, class T>
void write_table(Stream& stream, const Tensor& dw, bool adds, const Tensor& dy, const Sorted& sorted, int64_t used) {
  using A = Acc<T>;
  const int64_t D = dw.size(1), blocks = (sorted.T + kBlock - 1) / kBlock, size = static_cast<int64_t>(sizeof(A));
  const int64_t room = (Stream::kScratchBytes - used) / (std::max<int64_t>(blocks, 1) * size) / 32 * 32;
  assert(room > 0);
  const int64_t most = std::min(D, room);
  A* const partials = reinterpret_cast<A*>(stream.scratch(used + blocks * most * size) + used);
  const int rows = static_cast<int>(std::clamp<int64_t>(sorted.V / 16384, 1, kMostRows));
  const int64_t per_block = static_cast<int64_t>(kWarps) * rows;
  const auto grid = static_cast<unsigned>((sorted.V + per_block - 1) / per_block);
  for (int64_t first = 0; first < D; first += most) {
    const int64_t columns = std::min(most, D - first);
    const T* const from = ptr<const T>(dy) + first;
    if (blocks > 0)
      sum_full_blocks_kernel<N>
          <<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(partials, from, sorted, D, columns);
    write_rows_kernel<N>
        <<<grid, kThreads, 0, native(stream)>>>(ptr<G>(dw) + first, adds, partials, from, sorted, rows, D, columns);
  }
}

}  // namespace

void embedding_backward(Stream& stream, const Tensor& dw, Write write, const Tensor& order, const Tensor& dy,
                        const Tensor& ids, int64_t begin) {
  if (dw.elements() == 0) return;
  int64_t used = 0;
  const Sorted sorted = sort_tokens(stream, order, ids, begin, dw.size(0), used);
  const bool adds = write == Write::accumulate;
  dispatch_with_gradient(dy.dtype(), dw.dtype(), [&]<class T, class G>() {
    constexpr int N = kCommonPack<G, T>;
    if (packs<G>(dw.raw(), dw.size(1), N) && packs<T>(dy.raw(), dw.size(1), N))
      write_table<N, G, T>(stream, dw, adds, dy, sorted, used);
    else
      write_table<1, G, T>(stream, dw, adds, dy, sorted, used);
  });
}

namespace {

template <class Index>
struct Looked {
  Index row;
  const int32_t* ids;
  uint32_t begin, rows;
  __device__ int64_t operator()(Index i) const {
    const Index t = i / row;
    const uint32_t of_table = static_cast<uint32_t>(ids[t]) - begin;  // ids before `begin` wrap around to large numbers
    return of_table < rows ? static_cast<int64_t>(of_table * static_cast<uint64_t>(row) + (i - t * row)) : -1;
  }
};

}  // namespace

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& w, int64_t begin) {
  copy_rows(stream, y, w, w.size(1) * size_of(w.dtype()), [&]<class Index>(int64_t row) {
    return Looked<Index>{static_cast<Index>(row), ptr<const int32_t>(ids), static_cast<uint32_t>(begin),
                         static_cast<uint32_t>(w.size(0))};
  });
}

}  // namespace witan::kernels::cuda
