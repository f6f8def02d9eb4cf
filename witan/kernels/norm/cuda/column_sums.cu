// Gradients of row-wise weights and biases, which are sums over all rows. Blocks write sums over strips of rows, and a
// second kernel adds those up. The shape alone determines the strips.
#include "witan/kernels/common/cuda/add_strips.cuh"
#include "witan/kernels/norm/norm.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// The term that a row adds to a column: dy x r, dy (x - mean) r, or dy.
template <class T>
struct RmsTerm {
  static constexpr bool kReadsInput = true;
  const T* x;
  const Acc<T>* r;
  struct Row {
    Acc<T> scale;
  };
  __device__ Row row(int64_t t) const { return {r[t]}; }
  __device__ static Acc<T> of(Acc<T> dy, Acc<T> in, Row row) { return dy * in * row.scale; }
};
template <class T>
struct LayerTerm {
  static constexpr bool kReadsInput = true;
  const T* x;
  const Acc<T>*mean, *r;
  struct Row {
    Acc<T> mean, scale;
  };
  __device__ Row row(int64_t t) const { return {mean[t], r[t]}; }
  __device__ static Acc<T> of(Acc<T> dy, Acc<T> in, Row row) { return dy * (in - row.mean) * row.scale; }
};
template <class T>
struct BiasTerm {
  static constexpr bool kReadsInput = false;
  const T* x = nullptr;
  struct Row {};
  __device__ Row row(int64_t) const { return {}; }
  __device__ static Acc<T> of(Acc<T> dy, Acc<T>, Row) { return dy; }
};

// partials[strip, d] = sum over the strip's rows. A warp reads 32 packs of a row; the block's warps take rows in turn.
template <int N, class T, class Term>
__global__ void __launch_bounds__(kThreads, 3)
    strip_sums_kernel(Acc<T>* partials, const T* dy, Term term, int64_t rows, int64_t D, int64_t strip_rows) {
  using A = Acc<T>;
  constexpr int kRows = 4;  // loaded at a time
  __shared__ A shared[kWarps][32 * N];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t panel = static_cast<int64_t>(blockIdx.x) * 32 * N, d = panel + lane * N;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * strip_rows, end = min(begin + strip_rows, rows);
  A sums[N] = {};
  if (d < D) {
    for (int64_t first = begin + warp; first < end; first += kWarps * kRows) {
      Pack<T, N> g[kRows], in[kRows] = {};
      typename Term::Row row[kRows];
#pragma unroll
      for (int k = 0; k < kRows; ++k) {  // no branches, so that all loads are issued at once
        const int64_t t = min(first + k * kWarps, end - 1);
        g[k] = load_pack<T, N>(dy + t * D + d);
        if constexpr (Term::kReadsInput) in[k] = load_pack<T, N>(term.x + t * D + d);
        row[k] = term.row(t);
      }
#pragma unroll
      for (int k = 0; k < kRows; ++k)
        if (first + k * kWarps >= end) g[k] = {};
#pragma unroll
      for (int k = 0; k < kRows; ++k)
#pragma unroll
        for (int j = 0; j < N; ++j) sums[j] += Term::of(convert<A>(g[k].at[j]), convert<A>(in[k].at[j]), row[k]);
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) shared[warp][lane * N + j] = sums[j];
  __syncthreads();
  for (int column = threadIdx.x; column < 32 * N; column += kThreads) {
    if (panel + column >= D) break;
    A sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += shared[i][column];
    partials[static_cast<int64_t>(blockIdx.y) * D + panel + column] = sum;
  }
}

template <class T, class Term>
void sum_columns(Stream& stream, const Tensor& to, Write write, const Tensor& dy, Term term) {
  using A = Acc<T>;
  constexpr int64_t kLeastRows = 64, kMostStrips = 512;
  const auto [rows, D] = dy.shape().as_rows();
  const int64_t fit = Stream::kScratchBytes / (D * static_cast<int64_t>(sizeof(A)));
  const int64_t most = std::clamp<int64_t>(fit, 1, kMostStrips);
  const int64_t strip_rows = std::max(kLeastRows, (rows + most - 1) / most);
  const int64_t strips = (rows + strip_rows - 1) / strip_rows;
  const Strips<A> partials(stream, strips, D);
  const T* const from = ptr<T>(dy);
  const auto launch = [&, T_ = rows, D = D]<int N>() {
    const dim3 grid(static_cast<unsigned>((D + 32 * N - 1) / (32 * N)), static_cast<unsigned>(strips));
    strip_sums_kernel<N><<<grid, kThreads, 0, native(stream)>>>(partials.strips, from, term, T_, D, strip_rows);
  };
  if (strips > 0) {
    if (packs<T>(from, D) && packs<T>(term.x, D))
      launch.template operator()<kPack<T>>();
    else
      launch.template operator()<1>();
  }
  add_strips(stream, to, write, partials);
}

}  // namespace

void rmsnorm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                             const Tensor& r) {
  dispatch_device(x.dtype(), [&]<class T>() {
    sum_columns<T>(stream, dw, write, dy, RmsTerm<T>{ptr<T>(x), ptr<Acc<T>>(r)});
  });
}

void layernorm_backward_weight(Stream& stream, const Tensor& dw, Write write, const Tensor& dy, const Tensor& x,
                               const Tensor& mean, const Tensor& r) {
  dispatch_device(x.dtype(), [&]<class T>() {
    sum_columns<T>(stream, dw, write, dy, LayerTerm<T>{ptr<T>(x), ptr<Acc<T>>(mean), ptr<Acc<T>>(r)});
  });
}

void bias_backward(Stream& stream, const Tensor& db, Write write, const Tensor& dy) {
  dispatch_device(dy.dtype(), [&]<class T>() { sum_columns<T>(stream, db, write, dy, BiasTerm<T>()); });
}

}  // namespace witan::kernels::cuda
