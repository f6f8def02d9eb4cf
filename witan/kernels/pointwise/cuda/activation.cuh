// Row-wise activations. A block has several rows, whose elements its threads process in turn. If the gradient of the
// row's weight is wanted, which is a sum over the row, each warp has a row of its own. Rows outside the groups are
// neither read nor written. A Function is a rule of pointwise/rules.h.
#pragma once

#include "witan/kernels/common/cuda/row_groups.cuh"
#include "witan/kernels/pointwise/activation.h"
#include "witan/kernels/pointwise/rules.h"

namespace witan::kernels::cuda {

// The GPU's elementary functions for pointwise rules, in float32 accurate to a few ulps.
struct Math {
  // 1 / (1 + e^-x), which becomes 0 and 1 at the extremes.
  __device__ __forceinline__ static float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
  __device__ __forceinline__ static double sigmoid(double x) { return 1 / (1 + ::exp(-x)); }
  __device__ __forceinline__ static float exp(float x) { return __expf(x); }
  __device__ __forceinline__ static double exp(double x) { return ::exp(x); }
  __device__ __forceinline__ static float erf(float x) { return erff(x); }
  __device__ __forceinline__ static double erf(double x) { return ::erf(x); }
};
using rules::ValueAndSlope;
using Silu = rules::Silu<Math>;

inline constexpr int kActivationThreads = 256, kActivationWarps = kActivationThreads / 32;
inline constexpr int kForwardFlight = 4, kBackwardFlight = 2;  // packs of each input that a thread has in flight

// A lane's packs of a row that are in flight at once: 32 packs apart, from pack `first` on.
template <class T, int N, int P>
struct LanePacks {
  Pack<T, N> at[P];
  __device__ __forceinline__ void load(const T* row, int64_t first, int64_t packs) {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int64_t i = first + 32 * p;
      if (i < packs)
        at[p] = load_pack<T, N>(row + i * N);
      else
        at[p] = {};
    }
  }
  __device__ __forceinline__ void store(T* row, int64_t first, int64_t packs) const {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int64_t i = first + 32 * p;
      if (i < packs) store_pack<T, N>(row + i * N, at[p]);
    }
  }
};

// A block's rows, whose packs its threads process in turn, `flight` at a time. A block has enough rows to give each
// thread that many packs, so that short rows keep as many loads in flight as long ones.
struct BlockRows {
  static constexpr int kMost = 64;
  int64_t rows;  // over all blocks
  int each;      // per block
  uint32_t row_packs;

  BlockRows(Stream& stream, int64_t all_rows, int64_t packs, int flight) : rows(all_rows) {
    constexpr int64_t kBlocksPerMultiprocessor = 4;
    const int64_t spread = all_rows / (kBlocksPerMultiprocessor * multiprocessors(stream));
    const int64_t full = kActivationThreads * flight / packs;
    each = static_cast<int>(std::clamp<int64_t>(std::min(spread, full), 1, kMost));
    row_packs = static_cast<uint32_t>(packs);
  }
  unsigned blocks() const { return static_cast<unsigned>((rows + each - 1) / each); }

  __device__ __forceinline__ int64_t first() const { return static_cast<int64_t>(blockIdx.x) * each; }
  __device__ __forceinline__ uint32_t packs() const {
    return static_cast<uint32_t>(min(static_cast<int64_t>(each), rows - first())) * row_packs;
  }
};

// The place of one of a block's packs: its row, and the pack within the row.
struct PackPlace {
  uint32_t row, pack;
  bool exists;

  // `inside`: whether each of the block's rows is in a group.
  __device__ __forceinline__ PackPlace(const BlockRows& of, uint32_t i, const bool* inside)
      : row(i / of.row_packs), pack(i - row * of.row_packs), exists(i < of.packs() && inside[row]) {}
};

// y = f(gate) up(up) s, or f(h) s without kGated;  h [T, 2F] or [T, F]
template <class Function, bool kGated, int N, class T>
__global__ void __launch_bounds__(kActivationThreads)
    activation_forward_kernel(Function of, T* y, const T* h, const Acc<T>* s, DeviceRowGroups groups, BlockRows block) {
  using A = Acc<T>;
  constexpr int P = kForwardFlight;
  __shared__ bool inside[BlockRows::kMost];
  const int64_t first = block.first(), F = static_cast<int64_t>(block.row_packs) * N, width = F * (kGated ? 2 : 1);
  groups.mark(inside, first, block.each);
  for (uint32_t i = threadIdx.x; i < block.packs(); i += kActivationThreads * P) {
    Pack<T, N> gate[P], up[P];
    A weight[P];
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const PackPlace at(block, i + kActivationThreads * p, inside);
      if (!at.exists) continue;
      const T* const from = h + (first + at.row) * width + static_cast<int64_t>(at.pack) * N;
      gate[p] = load_pack<T, N>(from);
      if constexpr (kGated) up[p] = load_pack<T, N>(from + F);
      weight[p] = s ? s[first + at.row] : A(1);
    }
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const PackPlace at(block, i + kActivationThreads * p, inside);
      if (!at.exists) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        A value = of.at(convert<A>(gate[p].at[j])).value * weight[p];
        if constexpr (kGated) value *= of.up(convert<A>(up[p].at[j])).value;
        gate[p].at[j] = convert<T>(value);
      }
      store_pack(y + (first + at.row) * F + static_cast<int64_t>(at.pack) * N, gate[p]);
    }
  }
}

// Differentiates a pack: replaces gate and up by dgate = dy s up f'(gate) and dup = dy s f(gate), or h by dh = dy s
// f'(h). Returns the pack's part of ds, the sum of dy f(gate) up or of dy f(h).
template <bool kGated, class Function, class T, int N, class A>
__device__ __forceinline__ A differentiate(const Function& of, Pack<T, N>& gate, Pack<T, N>& up, const Pack<T, N>& dy,
                                           A weight, A dot) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const auto [value, slope] = of.at(convert<A>(gate.at[j]));
    const A dout = convert<A>(dy.at[j]);
    if constexpr (kGated) {
      const auto [u, du] = of.up(convert<A>(up.at[j]));
      dot += dout * value * u;
      gate.at[j] = convert<T>(dout * weight * u * slope);
      up.at[j] = convert<T>(dout * weight * value * du);
    } else {
      dot += dout * value;
      gate.at[j] = convert<T>(dout * weight * slope);
    }
  }
  return dot;
}

// The backward without ds. dh may be h, and dy the half of dh that holds up's gradients, because a thread reads its
// elements before it writes them. Rows of dy are dy_stride apart.
template <class Function, bool kGated, int N, class T>
__global__ void __launch_bounds__(kActivationThreads)
    activation_backward_kernel(Function of, T* dh, const T* dy, int64_t dy_stride, const T* h, const Acc<T>* s,
                               DeviceRowGroups groups, BlockRows block) {
  using A = Acc<T>;
  constexpr int P = kBackwardFlight;
  __shared__ bool inside[BlockRows::kMost];
  const int64_t first = block.first(), F = static_cast<int64_t>(block.row_packs) * N, width = F * (kGated ? 2 : 1);
  groups.mark(inside, first, block.each);
  for (uint32_t i = threadIdx.x; i < block.packs(); i += kActivationThreads * P) {
    Pack<T, N> g[P], gate[P], up[P];
    A weight[P];
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const PackPlace at(block, i + kActivationThreads * p, inside);
      if (!at.exists) continue;
      const int64_t row = first + at.row, column = static_cast<int64_t>(at.pack) * N;
      g[p] = load_pack<T, N>(dy + row * dy_stride + column);
      gate[p] = load_pack<T, N>(h + row * width + column);
      if constexpr (kGated) up[p] = load_pack<T, N>(h + row * width + F + column);
      weight[p] = s ? s[row] : A(1);
    }
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const PackPlace at(block, i + kActivationThreads * p, inside);
      if (!at.exists) continue;
      differentiate<kGated>(of, gate[p], up[p], g[p], weight[p], A(0));
      T* const to = dh + (first + at.row) * width + static_cast<int64_t>(at.pack) * N;
      store_pack(to, gate[p]);
      if constexpr (kGated) store_pack(to + F, up[p]);
    }
  }
}

// The backward with ds: a warp per row sums the row's part of ds.
template <class Function, bool kGated, int N, class T>
__global__ void __launch_bounds__(kActivationThreads)
    activation_backward_sums_kernel(Function of, T* dh, Acc<T>* ds, const T* dy, int64_t dy_stride, const T* h,
                                    const Acc<T>* s, DeviceRowGroups groups, int64_t rows, int64_t F) {
  using A = Acc<T>;
  constexpr int P = kBackwardFlight;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kActivationWarps + threadIdx.x / 32;
  if (t >= rows || !groups.contain(t)) return;
  const A weight = s ? s[t] : A(1);
  const int64_t begin = t * F * (kGated ? 2 : 1), packs = F / N;
  A dot = 0;
  for (int64_t first = threadIdx.x % 32; first < packs; first += 32 * P) {
    LanePacks<T, N, P> g, gate, up;
    g.load(dy + t * dy_stride, first, packs);
    gate.load(h + begin, first, packs);
    if constexpr (kGated) up.load(h + begin + F, first, packs);
#pragma unroll
    for (int p = 0; p < P; ++p) dot = differentiate<kGated>(of, gate.at[p], up.at[p], g.at[p], weight, dot);
    gate.store(dh + begin, first, packs);
    if constexpr (kGated) up.store(dh + begin + F, first, packs);
  }
  dot = warp_sum(dot);
  if (threadIdx.x % 32 == 0) ds[t] = dot;
}

// Calls body.template operator()<T, N>() with the packs of N that rows of F elements at these addresses allow.
template <class Body, class... Tensors>
void with_activation_packs(DType dtype, int64_t rows, int64_t F, const Body& body, const Tensors&... tensors) {
  if (rows == 0 || F == 0) return;
  dispatch_device(dtype, [&]<class T>() {
    if ((packs<T>(ptr<T>(tensors), F) && ...))
      body.template operator()<T, kPack<T>>();
    else
      body.template operator()<T, 1>();
  });
}

template <class Function, bool kGated>
void activation_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                        Function of = {}) {
  const int64_t rows = y.shape().as_rows().first, F = y.shape().last();
  with_activation_packs(
      y.dtype(), rows, F,
      [&]<class T, int N>() {
        const BlockRows block(stream, rows, F / N, kForwardFlight);
        activation_forward_kernel<Function, kGated, N><<<block.blocks(), kActivationThreads, 0, native(stream)>>>(
            of, ptr<T>(y), ptr<const T>(h), ptr<const Acc<T>>(s), DeviceRowGroups(groups), block);
      },
      y, h);
}

template <class Function, bool kGated>
void activation_backward(Stream& stream, const Tensor& dh, const Tensor& ds, const Tensor& dy, const Tensor& h,
                         const Tensor& s, const RowGroups& groups, Function of = {}) {
  const int64_t rows = dy.shape().as_rows().first, F = dy.shape().last();
  const int64_t dy_stride = dy.shape().dims() == 2 ? dy.stride(0) : F;  // F or, in a half of dh, 2F
  with_activation_packs(
      dy.dtype(), rows, F,
      [&]<class T, int N>() {
        const BlockRows block(stream, rows, F / N, kBackwardFlight);
        const auto warps = static_cast<unsigned>((rows + kActivationWarps - 1) / kActivationWarps);
        if (ds.defined())
          activation_backward_sums_kernel<Function, kGated, N><<<warps, kActivationThreads, 0, native(stream)>>>(
              of, ptr<T>(dh), ptr<Acc<T>>(ds), ptr<const T>(dy), dy_stride, ptr<const T>(h), ptr<const Acc<T>>(s),
              DeviceRowGroups(groups), rows, F);
        else
          activation_backward_kernel<Function, kGated, N><<<block.blocks(), kActivationThreads, 0, native(stream)>>>(
              of, ptr<T>(dh), ptr<const T>(dy), dy_stride, ptr<const T>(h), ptr<const Acc<T>>(s),
              DeviceRowGroups(groups), block);
      },
      dh, dy, h);
}

}  // namespace witan::kernels::cuda
