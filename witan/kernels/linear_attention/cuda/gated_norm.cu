// RMSNorm with a gate. A warp has a row; rows of few packs stay in its registers, and the backward then sums the
// weight's gradient in the same pass.
#include "witan/kernels/linear_attention/cuda/documents.cuh"
#include "witan/kernels/linear_attention/gated_delta.h"
#include "witan/kernels/pointwise/cuda/activation.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kNormThreads = 256, kNormWarps = kNormThreads / 32;
constexpr int kNormPacks = 2;  // at most, of a lane
template <class T>
constexpr int kNormPack = sizeof(T) == 8 ? 2 : 4;  // elements

// A lane's part of a row.
template <class T>
struct NormRow {
  static constexpr int N = kNormPack<T>;
  Acc<T> at[kNormPacks][N];
  __device__ static int64_t column(int pack) { return (pack * 32 + static_cast<int64_t>(threadIdx.x) % 32) * N; }
  // 0 beyond the row's D elements
  template <class Stored>
  __device__ void load(const Stored* row, int64_t D) {
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      Pack<Stored, N> pack = {};
      if (column(p) < D) pack = load_pack<Stored, N>(row + column(p));
#pragma unroll
      for (int n = 0; n < N; ++n) at[p][n] = convert<Acc<T>>(pack.at[n]);
    }
  }
  __device__ void store(T* row, int64_t D) const {
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p) {
      Pack<T, N> pack;
#pragma unroll
      for (int n = 0; n < N; ++n) pack.at[n] = convert<T>(at[p][n]);
      if (column(p) < D) store_pack(row + column(p), pack);
    }
  }
  template <class Body>
  __device__ void each(const Body& body) {
#pragma unroll
    for (int p = 0; p < kNormPacks; ++p)
#pragma unroll
      for (int n = 0; n < N; ++n) body(at[p][n], p, n);
  }
};

template <class T>
__global__ void __launch_bounds__(kNormThreads)
    gated_rmsnorm_pack_forward_kernel(T* y, Acc<T>* r, const T* x, const T* z, const Acc<T>* w, int64_t rows, int64_t D,
                                      Acc<T> eps) {
  using A = Acc<T>;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kNormWarps + threadIdx.x / 32;
  if (t >= rows) return;
  NormRow<T> in, gate, weight;
  in.load(x + t * D, D);
  gate.load(z + t * D, D);
  weight.load(w, D);
  A squares = 0;
  in.each([&](A& value, int, int) { squares += value * value; });
  const A scale = A(1) / sqrt(warp_sum(squares) / static_cast<A>(D) + eps);
  if (threadIdx.x % 32 == 0) r[t] = scale;
  in.each([&](A& value, int p, int n) { value = value * scale * weight.at[p][n] * Silu::at(gate.at[p][n]).value; });
  in.store(y + t * D, D);
}

// partials[block, d]: the terms of dw of a block's rows, `strip` of them.
template <class T>
__global__ void __launch_bounds__(kNormThreads)
    gated_rmsnorm_pack_backward_kernel(T* dx, T* dz, Acc<T>* partials, const T* dy, const T* x, const T* z,
                                       const Acc<T>* w, const Acc<T>* r, int64_t rows, int64_t D, int64_t strip) {
  using A = Acc<T>;
  __shared__ A shared[kNormWarps][kNormPacks * 32 * kNormPack<T>];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t begin = blockIdx.x * strip, end = begin + strip < rows ? begin + strip : rows;
  NormRow<T> weight, dw;
  weight.load(w, D);
  dw.each([](A& sum, int, int) { sum = 0; });
  for (int64_t t = begin + warp; t < end; t += kNormWarps) {
    NormRow<T> gradient, in, gate;
    gradient.load(dy + t * D, D);
    in.load(x + t * D, D);
    gate.load(z + t * D, D);
    const A scale = r[t];
    A dot = 0;
    in.each([&](A& n, int p, int i) {
      n *= scale;
      const A h = gradient.at[p][i] * Silu::at(gate.at[p][i]).value;
      dw.at[p][i] += h * n;
      dot += weight.at[p][i] * h * n;
    });
    const A pull = warp_sum(dot) / static_cast<A>(D);
    in.each([&](A& n, int p, int i) {
      const auto open = Silu::at(gate.at[p][i]);
      const A weighted = weight.at[p][i] * gradient.at[p][i];
      gate.at[p][i] = weighted * n * open.slope;
      n = scale * (weighted * open.value - n * pull);
    });
    in.store(dx + t * D, D);
    gate.store(dz + t * D, D);
  }
  if (partials == nullptr) return;
  dw.each([&](A& sum, int p, int n) { shared[warp][NormRow<T>::column(p) + n] = sum; });
  __syncthreads();
  for (int64_t d = threadIdx.x; d < D; d += kNormThreads) {
    A sum = 0;
    for (int i = 0; i < kNormWarps; ++i) sum += shared[i][d];
    partials[blockIdx.x * D + d] = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kNormThreads)
    gated_rmsnorm_forward_kernel(T* y, Acc<T>* r, const T* x, const T* z, const Acc<T>* w, int64_t rows, int64_t D,
                                 Acc<T> eps) {
  using A = Acc<T>;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kNormWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (t >= rows) return;
  A squares = 0;
  for (int64_t d = lane; d < D; d += 32) squares += convert<A>(x[t * D + d]) * convert<A>(x[t * D + d]);
  const A scale = A(1) / sqrt(warp_sum(squares) / static_cast<A>(D) + eps);
  if (lane == 0) r[t] = scale;
  for (int64_t d = lane; d < D; d += 32)
    y[t * D + d] = convert<T>(convert<A>(x[t * D + d]) * scale * w[d] * Silu::at(convert<A>(z[t * D + d])).value);
}

template <class T>
__global__ void __launch_bounds__(kNormThreads)
    gated_rmsnorm_backward_kernel(T* dx, T* dz, const T* dy, const T* x, const T* z, const Acc<T>* w, const Acc<T>* r,
                                  int64_t rows, int64_t D) {
  using A = Acc<T>;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kNormWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (t >= rows) return;
  const A scale = r[t];
  A dot = 0;
  for (int64_t d = lane; d < D; d += 32) {
    const int64_t at = t * D + d;
    dot += w[d] * convert<A>(dy[at]) * Silu::at(convert<A>(z[at])).value * convert<A>(x[at]) * scale;
  }
  const A pull = warp_sum(dot) / static_cast<A>(D);
  for (int64_t d = lane; d < D; d += 32) {
    const int64_t at = t * D + d;
    const auto open = Silu::at(convert<A>(z[at]));
    const A n = convert<A>(x[at]) * scale, weighted = w[d] * convert<A>(dy[at]);
    dx[at] = convert<T>(scale * (weighted * open.value - n * pull));
    dz[at] = convert<T>(weighted * n * open.slope);
  }
}

template <class T>
struct GatedWeightTerm {
  const T *dy, *x, *z;
  const Acc<T>* r;
  int64_t D;
  __device__ Acc<T> operator()(int64_t t, int64_t d) const {
    using A = Acc<T>;
    const int64_t at = t * D + d;
    return convert<A>(dy[at]) * Silu::at(convert<A>(z[at])).value * convert<A>(x[at]) * r[t];
  }
};

unsigned norm_blocks(int64_t rows) {
  return static_cast<unsigned>((rows + kNormWarps - 1) / kNormWarps);
}

// Whether rows of D elements fit a warp's registers, and all of these and the weight move in packs.
template <class T>
bool rows_in_registers(int64_t D, const Tensor& w, std::initializer_list<const Tensor*> all) {
  return D <= kNormPacks * 32 * kNormPack<T> && packs<Acc<T>>(w.raw(), D, kNormPack<T>) &&
         std::ranges::all_of(all, [&](const Tensor* x) { return packs<T>(x->raw(), D, kNormPack<T>); });
}

template <class T>
void backward_in_registers(Stream& stream, const GatedNormGradients& to, const Tensor& dy, const Tensor& x,
                           const Tensor& z, const Tensor& w, const Tensor& r) {
  constexpr int64_t kLeastStrip = 64, kMostStrips = 1024;
  const auto [rows, D] = x.shape().as_rows();
  const int64_t strip = std::max(kLeastStrip, (rows + kMostStrips - 1) / kMostStrips);
  const auto blocks = static_cast<unsigned>((rows + strip - 1) / strip);
  const auto run = [&, rows_ = rows, D_ = D](Acc<T>* partials) {
    gated_rmsnorm_pack_backward_kernel<T>
        <<<blocks, kNormThreads, 0, native(stream)>>>(ptr<T>(to.dx), ptr<T>(to.dz), partials, ptr<T>(dy), ptr<T>(x),
                                                      ptr<T>(z), ptr<Acc<T>>(w), ptr<Acc<T>>(r), rows_, D_, strip);
  };
  if (!to.dw.defined()) return run(nullptr);
  const Strips<Acc<T>> partials(stream, blocks, D);
  run(partials.strips);
  add_strips(stream, to.dw, to.write, partials);
}

}  // namespace

void gated_rmsnorm_forward(Stream& stream, const Tensor& y, const Tensor& r, const Tensor& x, const Tensor& z,
                           const Tensor& w, double eps) {
  const auto [rows, D] = x.shape().as_rows();
  if (rows == 0) return;
  dispatch_device(x.dtype(), [&, T_ = rows, D = D]<class T>() {
    if (rows_in_registers<T>(D, w, {&y, &x, &z})) {
      gated_rmsnorm_pack_forward_kernel<T><<<norm_blocks(T_), kNormThreads, 0, native(stream)>>>(
          ptr<T>(y), ptr<Acc<T>>(r), ptr<T>(x), ptr<T>(z), ptr<Acc<T>>(w), T_, D, static_cast<Acc<T>>(eps));
      return;
    }
    gated_rmsnorm_forward_kernel<T><<<norm_blocks(T_), kNormThreads, 0, native(stream)>>>(
        ptr<T>(y), ptr<Acc<T>>(r), ptr<T>(x), ptr<T>(z), ptr<Acc<T>>(w), T_, D, static_cast<Acc<T>>(eps));
  });
}

void gated_rmsnorm_backward(Stream& stream, const GatedNormGradients& to, const Tensor& dy, const Tensor& x,
                            const Tensor& z, const Tensor& w, const Tensor& r) {
  const auto [rows, D] = x.shape().as_rows();
  dispatch_device(x.dtype(), [&, T_ = rows, D = D]<class T>() {
    if (T_ > 0 && rows_in_registers<T>(D, w, {&to.dx, &to.dz, &dy, &x, &z}))
      return backward_in_registers<T>(stream, to, dy, x, z, w, r);
    if (T_ > 0)
      gated_rmsnorm_backward_kernel<T><<<norm_blocks(T_), kNormThreads, 0, native(stream)>>>(
          ptr<T>(to.dx), ptr<T>(to.dz), ptr<T>(dy), ptr<T>(x), ptr<T>(z), ptr<Acc<T>>(w), ptr<Acc<T>>(r), T_, D);
    if (to.dw.defined())
      sum_terms<Acc<T>>(stream, to.dw, to.write, T_,
                        GatedWeightTerm<T>{ptr<T>(dy), ptr<T>(x), ptr<T>(z), ptr<Acc<T>>(r), D});
  });
}

}  // namespace witan::kernels::cuda
