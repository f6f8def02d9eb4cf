#include "witan/kernels/gemm/cuda/few_rows.cuh"
#include "witan/kernels/gemm/cuda/few_rows_chain.cuh"
#include "witan/kernels/gemm/cuda/gemm.h"
#include "witan/kernels/gemm/product_scopes.h"

namespace witan::kernels::cuda {
namespace {

// y [rows, weight_rows] = x w^T, plus a bias if there is one.
template <class X, class W, class Y>
struct FewRowsCall {
  Y* y;
  const X* x;
  const W* w;
  const Y* bias;
  int64_t y_stride, x_stride, w_stride;
  int rows, weight_rows, K;
};

// Block i computes the 16 rows of the weight from 16 i on.
template <class T, int kTiles, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, few::kBlocks<kWarps>) few_rows_kernel(const FewRowsCall<T, T, T> call) {
  extern __shared__ uint4 ring[];
  __shared__ few::WarpSums<kTiles, kWarps> sums;
  const int own = static_cast<int>(threadIdx.x) % 32 / 4, weight_row = static_cast<int>(blockIdx.x) * few::kWeightRows;
  few::Operands<T, kTiles> of;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    of.weight_rows[i] = call.w + min(weight_row + 8 * i + own, call.weight_rows - 1) * call.w_stride;
  few::begin_weights<T, kTiles, kWarps>(ring, of, call.K);
  wait_for_earlier();
  let_next_begin();
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int row = tile * few::kColumns + own;
    of.columns[tile] = row < call.rows ? call.x + row * call.x_stride : nullptr;
  }
  few::add_up<T, kTiles, kWarps>(sums, ring, of, call.K, true);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * few::kColumns * few::kWeightRows; i += kWarps * 32) {
    const int row = i / few::kWeightRows, r = i % few::kWeightRows;
    if (row >= call.rows || weight_row + r >= call.weight_rows) continue;
    float sum = sums.sum(r, row / few::kColumns, row % few::kColumns);
    if (call.bias) sum += convert<float>(call.bias[weight_row + r]);
    call.y[row * call.y_stride + weight_row + r] = convert<T>(sum);
  }
}

// Many small blocks, some of which multiply while others wait, or few blocks, each large enough to have as many copies
// in flight. The choice does not depend on the number of rows, so that it changes no bits.
template <class Body>
void with_warps(Stream& stream, int64_t K, int64_t blocks, const Body& body) {
  const int64_t processors = multiprocessors(stream);
  if (K <= 1024 || blocks > 2 * processors) return body.template operator()<4>();
  if (blocks > processors) return body.template operator()<8>();
  body.template operator()<16>();
}

template <class T>
void launch_halves(Stream& stream, const FewRowsCall<T, T, T>& call) {
  const auto blocks = static_cast<unsigned>((call.weight_rows + few::kWeightRows - 1) / few::kWeightRows);
  with_warps(stream, call.K, blocks, [&]<int kWarps>() {
    if (call.rows <= few::kColumns)
      few::launch<1, kWarps>(stream, few_rows_kernel<T, 1, kWarps>, blocks, call);
    else
      few::launch<2, kWarps>(stream, few_rows_kernel<T, 2, kWarps>, blocks, call);
  });
}

// Like few_rows_kernel, with the bits of kernels for many rows: warp i of all blocks computes 16 rows from 16 i on.
template <class T, int kTiles>
__global__ void __launch_bounds__(few::kMostChainWarps * 32)
    few_rows_chain_kernel(const FewRowsCall<T, T, T> call, const few::ChainMemory memory) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint4 ring[];
  __shared__ few::WarpSums<kTiles, 1> sums[few::kMostChainWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int weight_row = (static_cast<int>(blockIdx.x) * memory.warps + warp) * few::kWeightRows;
  const bool has_rows = weight_row < call.weight_rows;
  few::Chain<T> chain(ring, memory);
  if (has_rows)
    chain.begin(call.w + min(weight_row + lane % few::kWeightRows, call.weight_rows - 1) * call.w_stride, 1);
  wait_for_earlier();
  let_next_begin();
  chain.copy_columns(call.rows, [&](int row) { return call.x + row * call.x_stride; });
  if (!has_rows) return;
  chain.add_up(sums[warp]);
  for (int i = lane; i < kTiles * few::kColumns * few::kWeightRows; i += 32) {
    const int row = i / few::kWeightRows, r = i % few::kWeightRows;
    if (row >= call.rows || weight_row + r >= call.weight_rows) continue;
    float sum = sums[warp].sum(r, row / few::kColumns, row % few::kColumns);
    if (call.bias) sum += convert<float>(call.bias[weight_row + r]);
    call.y[row * call.y_stride + weight_row + r] = convert<T>(sum);
  }
#endif
}

// One block per multiprocessor if all warps find a place then, otherwise two, of which one begins while the other
// multiplies.
template <class T>
few::ChainMemory chain_memory(Stream& stream, const FewRowsCall<T, T, T>& call) {
  constexpr int kWarpsOfMany = 4;
  const int tiles = (call.weight_rows + few::kWeightRows - 1) / few::kWeightRows;
  const int each = (tiles + multiprocessors(stream) - 1) / multiprocessors(stream);
  const bool one = each <= few::kMostChainWarps;
  const int rows = (call.rows + few::kColumns - 1) / few::kColumns * few::kColumns;
  few::ChainMemory memory{one ? each : kWarpsOfMany, 0, rows, call.K};
  few::fit(stream, memory, one ? 1 : 2, int64_t{sizeof(few::WarpSums<2, 1>)} * few::kMostChainWarps);
  return memory;
}

template <class T>
void launch_chains(Stream& stream, const FewRowsCall<T, T, T>& call) {
  const few::ChainMemory memory = chain_memory(stream, call);
  const int each = memory.warps * few::kWeightRows;
  const auto blocks = static_cast<unsigned>((call.weight_rows + each - 1) / each);
  if (call.rows <= few::kColumns)
    few::launch_chain(stream, few_rows_chain_kernel<T, 1>, blocks, call, memory);
  else
    few::launch_chain(stream, few_rows_chain_kernel<T, 2>, blocks, call, memory);
}

constexpr int kThreads = 256, kWideRows = 2;  // rows per block with a float32 weight
constexpr int kMostWideRows = 16;

// Block (i, j) computes two rows of the weight from 2 i on, and kRows rows of x from kRows j on. All threads share each
// sum, in float32.
template <class X, int kRows>
__global__ void __launch_bounds__(kThreads) few_wide_rows_kernel(const FewRowsCall<X, float, float> call) {
  constexpr int N = kPack<float>, kSums = kWideRows * kRows, kWarps = kThreads / 32;
  __shared__ float shared[kWarps][kSums];
  const int weight_row = static_cast<int>(blockIdx.x) * kWideRows, first = static_cast<int>(blockIdx.y) * kRows;
  const int rows = call.rows - first;
  const X* const x_rows = call.x + first * call.x_stride;
  const auto load_weights = [&](Pack<float, N>(&w)[kWideRows], int step) {
#pragma unroll
    for (int i = 0; i < kWideRows; ++i) {
      w[i] = {};
      if (step < call.K && weight_row + i < call.weight_rows)
        w[i] = load_pack<float, N>(call.w + (weight_row + i) * call.w_stride + step);
    }
  };
  let_next_begin();
  Pack<float, N> w[kWideRows], next[kWideRows];
  load_weights(next, static_cast<int>(threadIdx.x) * N);
  wait_for_earlier();
  float sums[kWideRows][kRows] = {};
  for (int step = static_cast<int>(threadIdx.x) * N; step < call.K; step += kThreads * N) {
#pragma unroll
    for (int i = 0; i < kWideRows; ++i) w[i] = next[i];
    load_weights(next, step + kThreads * N);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows) continue;
      const auto x = load_pack<X, N>(x_rows + row * call.x_stride + step);
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < kWideRows; ++i) sums[i][row] += convert<float>(x.at[n]) * w[i].at[n];
    }
  }
#pragma unroll
  for (int i = 0; i < kWideRows; ++i)
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float sum = warp_sum(sums[i][row]);
      if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32][row * kWideRows + i] = sum;
    }
  __syncthreads();
  if (threadIdx.x >= kSums) return;
  const int row = static_cast<int>(threadIdx.x) / kWideRows, i = static_cast<int>(threadIdx.x) % kWideRows;
  if (row >= rows || weight_row + i >= call.weight_rows) return;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += shared[warp][threadIdx.x];
  if (call.bias) sum += call.bias[weight_row + i];
  call.y[(first + row) * call.y_stride + weight_row + i] = sum;
}

template <class X>
void launch_wide(Stream& stream, const FewRowsCall<X, float, float>& call) {
  const auto across = static_cast<unsigned>((call.weight_rows + kWideRows - 1) / kWideRows);
  const auto with = [&]<int kRows>() {
    const dim3 blocks(across, static_cast<unsigned>((call.rows + kRows - 1) / kRows));
    launch_early(stream, few_wide_rows_kernel<X, kRows>, blocks, kThreads, 0, call);
  };
  if (call.rows == 1) return with.template operator()<1>();
  if (call.rows <= 4) return with.template operator()<4>();
  with.template operator()<kMostWideRows>();
}

// Whether shapes and addresses suit the kernels; M, N, K > 0.
bool takes(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w, int64_t most) {
  const bool few = FewRows::on() && few::has_room(stream) && y.elements() > 0 && x.elements() > 0 && x.size(0) <= most;
  return few && std::max(w.size(0), w.size(1)) <= INT32_MAX && few::in_pieces(x) && few::in_pieces(w);
}

template <class X, class W, class Y>
FewRowsCall<X, W, Y> call_of(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) {
  return {ptr<Y>(y),
          ptr<X>(x),
          ptr<W>(w),
          ptr<Y>(bias),
          y.stride(0),
          x.stride(0),
          w.stride(0),
          static_cast<int>(x.size(0)),
          static_cast<int>(w.size(0)),
          static_cast<int>(w.size(1))};
}

}  // namespace

bool few_rows_gemm(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a,
                   const Tensor& b, Transpose transpose_b, const Tensor& bias) {
  if (transpose_a == Transpose::yes || transpose_b == Transpose::no || write != Write::overwrite) return false;
  if (a.dtype() != c.dtype() || a.dtype() == DType::f64) return false;
  if (!takes(stream, c, a, b, FewRows::kMost)) return false;
  if (RowProducts::on()) {
    const bool chains = size_of(a.dtype()) == 2 && is_hopper(stream) && a.size(1) % few::kChainUnit == 0;
    if (!chains || !adds_in_chains(stream, c, a, transpose_a, b, transpose_b, bias)) return false;
    return dispatch_half(a.dtype(), [&]<class T>() {
      const auto call = call_of<T, T, T>(c, a, b, bias);
      if (!few::is_ring(chain_memory(stream, call))) return false;
      launch_chains(stream, call);
      return true;
    });
  }
  if (c.size(1) > FewRows::kMostColumns) return false;
  if (a.dtype() == DType::f32)
    launch_wide(stream, call_of<float, float, float>(c, a, b, bias));
  else
    dispatch_half(a.dtype(), [&]<class T>() { launch_halves(stream, call_of<T, T, T>(c, a, b, bias)); });
  return true;
}

bool few_rows_wide_linear(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& w) {
  if (RowProducts::on() || x.dtype() != DType::bf16 || w.dtype() != DType::f32 ||
      !takes(stream, y, x, w, FewRows::kMostWide))
    return false;
  launch_wide(stream, call_of<__nv_bfloat16, float, float>(y, x, w, {}));
  return true;
}

}  // namespace witan::kernels::cuda
