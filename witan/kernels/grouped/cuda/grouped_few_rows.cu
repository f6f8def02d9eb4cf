#include "witan/kernels/gemm/cuda/few_rows_chain.cuh"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/kernels/grouped/cuda/grouped_gemm.h"
#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kWarps = 4;  // per block; few, since there are many blocks, of all experts

// h[i,:] = w[e] x[i,:] for the rows i of group e and, if h is [gate | up], y[i,:] = silu(gate) up s[i].
template <class T>
struct FewGroupedCall {
  T *h, *y;
  const T *x, *w;
  const float* s;        // [rows], or null
  const int64_t* index;  // [rows]: row i of x is row index[i] / divisor; or null
  const int64_t *begin, *count;
  int64_t divisor, h_stride, y_stride, x_stride, w_stride, expert_stride;
  int experts, weight_rows, K;

  __device__ __forceinline__ const T* row(int64_t i) const { return x + (index ? index[i] / divisor : i) * x_stride; }
};

// The `slot`-th of the experts that have rows, or -1. Each warp computes it by itself.
__device__ __forceinline__ int nth_visited(const int64_t* count, int experts, int slot) {
  constexpr int kAtOnce = 4;
  const unsigned lane = threadIdx.x % 32;
  int before = 0;
  for (int base = 0; base < experts; base += 32 * kAtOnce) {
    bool visited[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int e = base + 32 * i + static_cast<int>(lane);
      visited[i] = e < experts && count[e] > 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const unsigned all = __ballot_sync(kAll, visited[i]);
      const bool own = visited[i] && before + __popc(all & ((1u << lane) - 1)) == slot;
      if (const unsigned wanted = __ballot_sync(kAll, own)) return base + 32 * i + __ffs(static_cast<int>(wanted)) - 1;
      before += __popc(all);
    }
  }
  return -1;
}

// The plain epilogue of a block: stores the sums of 16 adjacent rows of the weight, rounded.
template <class T>
struct FewPlain {
  static constexpr int kApart = few::kWeightRows;  // rows of the weight from one block's first to the next's
  static constexpr int kElements = few::kWeightRows * few::kColumns;  // per tile

  static __host__ __device__ int weight_rows(const FewGroupedCall<T>& call) { return call.weight_rows; }
  // The i-th row of the weight that a lane with row `own` of each 8 reads; any valid row beyond the last.
  static __device__ __forceinline__ int weight_row_of(const FewGroupedCall<T>& call, int weight_row, int own, int i) {
    return min(weight_row + 8 * i + own, call.weight_rows - 1);
  }

  // Stores element i of a tile, whose `rows` rows begin at row `first` of the pool.
  template <class Sums>
  static __device__ __forceinline__ void store(const FewGroupedCall<T>& call, const Sums& sums, int tile, int i,
                                               int weight_row, int rows, int64_t first) {
    const int column = i / few::kWeightRows, r = i % few::kWeightRows;
    if (column >= rows || weight_row + r >= call.weight_rows) return;
    call.h[(first + column) * call.h_stride + weight_row + r] = convert<T>(sums.sum(r, tile, column));
  }
};

// The epilogue of 8 rows of gates and 8 rows of ups: stores both rounded, and SwiGLU of the rounded values, as
// swiglu_forward does.
template <class T>
struct FewSwiglu {
  static constexpr int kApart = few::kWeightRows / 2, kElements = kApart * few::kColumns;

  static __host__ __device__ int weight_rows(const FewGroupedCall<T>& call) { return call.weight_rows / 2; }
  static __device__ __forceinline__ int weight_row_of(const FewGroupedCall<T>& call, int weight_row, int own, int i) {
    const int F = call.weight_rows / 2;
    return min(weight_row + own, F - 1) + i * F;
  }

  template <class Sums>
  static __device__ __forceinline__ void store(const FewGroupedCall<T>& call, const Sums& sums, int tile, int i,
                                               int weight_row, int rows, int64_t first) {
    const int column = i / kApart, r = i % kApart, F = call.weight_rows / 2;
    if (column >= rows || weight_row + r >= F) return;
    const T gate = convert<T>(sums.sum(r, tile, column)), up = convert<T>(sums.sum(r + kApart, tile, column));
    const int64_t row = first + column;
    const float weight = call.s ? call.s[row] : 1.0f;
    T* const to = call.h + row * call.h_stride + weight_row + r;
    to[0] = gate;
    to[F] = up;
    call.y[row * call.y_stride + weight_row + r] =
        convert<T>(Silu::at(convert<float>(gate)).value * weight * convert<float>(up));
  }
};

// Block (i, j) multiplies the i-th rows of the weight of the j-th expert that has rows. The expert's rows are taken 8
// or 16 at a time; the weight is read again for each further set.
template <class T, template <class> class Out, int kTiles>
__global__ void __launch_bounds__(kWarps * 32, few::kBlocks<kWarps>)
    few_rows_grouped_kernel(const FewGroupedCall<T> call) {
  using Store = Out<T>;
  extern __shared__ uint4 ring[];
  __shared__ few::WarpSums<kTiles, kWarps> sums;
  // Rows that are not gathered are the result of the previous kernel. It waited for the routing before it let this one
  // begin, so that the experts are known, and their weights can be read, while it still runs.
  const bool routed = call.index == nullptr;
  if (!routed) wait_for_earlier();
  const int expert = nth_visited(call.count, call.experts, static_cast<int>(blockIdx.y));
  if (expert < 0) {
    wait_for_earlier();
    return;
  }
  const int64_t begin = call.begin[expert];
  const int rows = static_cast<int>(call.count[expert]), own = static_cast<int>(threadIdx.x) % 32 / 4;
  const int weight_row = static_cast<int>(blockIdx.x) * Store::kApart;
  few::Operands<T, kTiles> of;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    of.weight_rows[i] =
        call.w + expert * call.expert_stride + Store::weight_row_of(call, weight_row, own, i) * call.w_stride;
  if (routed) few::begin_weights<T, kTiles, kWarps>(ring, of, call.K);
  wait_for_earlier();
  let_next_begin();
  for (int first = 0; first < rows; first += kTiles * few::kColumns) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = first + tile * few::kColumns + own;
      of.columns[tile] = row < rows ? call.row(begin + row) : nullptr;
    }
    if (first > 0) __syncthreads();
    few::add_up<T, kTiles, kWarps>(sums, ring, of, call.K, routed && first == 0);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTiles * Store::kElements; i += kWarps * 32) {
      const int tile = i / Store::kElements, at = first + tile * few::kColumns;
      Store::store(call, sums, tile, i % Store::kElements, weight_row, rows - at, begin + at);
    }
  }
}

// Multiplies with the bits of kernels for many rows: each warp of block (i, j) has rows of the weight to itself, and
// takes 8 rows of the expert at a time.
template <class T, template <class> class Out>
__global__ void __launch_bounds__(kWarps * 32, 2)
    few_rows_grouped_chain_kernel(const FewGroupedCall<T> call, const few::ChainMemory memory) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Store = Out<T>;
  extern __shared__ uint4 ring[];
  __shared__ few::WarpSums<1, 1> sums[kWarps];
  const bool routed = call.index == nullptr;
  few::Chain<T> chain(ring, memory);
  if (!routed) wait_for_earlier();
  const int expert = nth_visited(call.count, call.experts, static_cast<int>(blockIdx.y));
  if (expert < 0) {
    wait_for_earlier();
    return;
  }
  const int64_t begin = call.begin[expert];
  const int rows = static_cast<int>(call.count[expert]), warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int weight_row = (static_cast<int>(blockIdx.x) * memory.warps + warp) * Store::kApart;
  const bool has_rows = weight_row < Store::weight_rows(call);
  const T* const weight = call.w + expert * call.expert_stride +
                          Store::weight_row_of(call, weight_row, lane % 8, lane / 8 % 2) * call.w_stride;
  if (has_rows) chain.begin(weight, (rows + few::kColumns - 1) / few::kColumns);
  wait_for_earlier();
  let_next_begin();
  for (int first = 0; first < rows; first += few::kColumns) {
    if (first > 0) __syncthreads();
    chain.copy_columns(min(few::kColumns, rows - first), [&](int row) { return call.row(begin + first + row); });
    if (!has_rows) continue;
    chain.add_up(sums[warp]);
    for (int i = lane; i < Store::kElements; i += 32)
      Store::store(call, sums[warp], 0, i, weight_row, rows - first, begin + first);
    __syncwarp();
  }
#endif
}

// The blocks are so many across the rows of the weight, and one for each expert that may have rows.
template <class T>
dim3 blocks_of(const FewGroupedCall<T>& call, int64_t capacity, int rows, int each) {
  return {static_cast<unsigned>((rows + each - 1) / each),
          static_cast<unsigned>(std::min<int64_t>(capacity, call.experts))};
}

template <class T>
few::ChainMemory chain_memory(Stream& stream, const FewGroupedCall<T>& call) {
  few::ChainMemory memory{kWarps, 0, few::kColumns, call.K};
  few::fit(stream, memory, 2, int64_t{sizeof(few::WarpSums<1, 1>)} * kWarps);
  return memory;
}

// Returns false if the bits of kernels for many rows are required, and the kernel that has them does not take the call.
// `chains`: whether the kernels for many rows are Hopper's, which add in chains.
template <class T, template <class> class Out>
bool launch(Stream& stream, const FewGroupedCall<T>& call, int64_t capacity, bool chains) {
  const int rows = Out<T>::weight_rows(call);
  if (RowProducts::on()) {
    const few::ChainMemory memory = chain_memory(stream, call);
    if (!chains || call.K % few::kChainUnit != 0 || !few::is_ring(memory)) return false;
    few::launch_chain(stream, few_rows_grouped_chain_kernel<T, Out>,
                      blocks_of(call, capacity, rows, memory.warps * Out<T>::kApart), call, memory);
    return true;
  }
  const dim3 blocks = blocks_of(call, capacity, rows, Out<T>::kApart);
  if (capacity <= few::kColumns)
    few::launch<1, kWarps>(stream, few_rows_grouped_kernel<T, Out, 1>, blocks, call);
  else
    few::launch<2, kWarps>(stream, few_rows_grouped_kernel<T, Out, 2>, blocks, call);
  return true;
}

bool takes(Stream& stream, const Tensor& h, const Tensor& x, const RowGroups& groups, const Tensor& w) {
  constexpr int64_t kMostVisited = 65535;  // the limit of a grid's y
  const bool few = FewRows::on() && few::has_room(stream) && h.elements() > 0 && x.elements() > 0 &&
                   h.size(0) <= FewRows::kMostPerExpert * groups.experts() && groups.experts() <= kMostVisited;
  return few && size_of(x.dtype()) == 2 && std::max(w.size(1), w.size(2)) <= INT32_MAX && few::in_pieces(x) &&
         few::in_pieces(w);
}

template <class T>
FewGroupedCall<T> call_of(const Tensor& h, const Tensor& x, const RowGroups& groups, const Tensor& w,
                          const RowIndex& x_rows) {
  FewGroupedCall<T> call{};
  call.h = ptr<T>(h), call.x = ptr<T>(x), call.w = ptr<T>(w);
  call.begin = ptr<int64_t>(groups.begin), call.count = ptr<int64_t>(groups.count);
  call.index = ptr<const int64_t>(x_rows.index), call.divisor = x_rows.divisor;
  call.h_stride = h.stride(0), call.x_stride = x.stride(0), call.w_stride = w.stride(1);
  call.expert_stride = w.stride(0), call.experts = static_cast<int>(groups.experts());
  call.weight_rows = static_cast<int>(w.size(1)), call.K = static_cast<int>(w.size(2));
  return call;
}

}  // namespace

bool few_rows_grouped(Stream& stream, const Tensor& y, const Tensor& x, const RowGroups& groups, const Tensor& w,
                      const RowIndex& x_rows) {
  if (!takes(stream, y, x, groups, w)) return false;
  return dispatch_half(x.dtype(), [&]<class T>() {
    return launch<T, FewPlain>(stream, call_of<T>(y, x, groups, w, x_rows), y.size(0),
                               takes_grouped(stream, groups, y, x, w));
  });
}

bool few_rows_grouped_swiglu(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& x, const RowGroups& groups,
                             const Tensor& w, const Tensor& s, const RowIndex& x_rows) {
  if (!takes(stream, h, x, groups, w)) return false;
  return dispatch_half(x.dtype(), [&]<class T>() {
    FewGroupedCall<T> call = call_of<T>(h, x, groups, w, x_rows);
    call.y = ptr<T>(y), call.y_stride = y.stride(0), call.s = ptr<const float>(s);
    return launch<T, FewSwiglu>(stream, call, h.size(0), takes_grouped(stream, groups, h, x, w));
  });
}

}  // namespace witan::kernels::cuda
