// Activations row by row: a warp has a row of its own, so that the sum over the row, a weight's gradient, needs no
// barrier, and a row outside the groups costs one look.
//
// A Function's at(x) is {value, slope}, and a gate's up(x) that of its other half; what a caller does not use is
// optimised away.
#pragma once

#include "witan/kernels/activation.h"
#include "witan/kernels/cuda/common/row_groups.cuh"

namespace witan::kernels::cuda {

template <class A>
struct ValueAndSlope {
  A value, slope;
};

// 1 / (1 + e^-x), to a few units in the last place; at the ends 0 and 1.
__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}
__device__ __forceinline__ double sigmoid(double x) {
  return 1 / (1 + exp(-x));
}

// A gate's other half as it is.
struct PlainUp {
  template <class A>
  __device__ __forceinline__ static ValueAndSlope<A> up(A x) {
    return {x, A(1)};
  }
};

// silu = x sigmoid,  silu' = sigmoid (1 + x (1 - sigmoid))
struct Silu : PlainUp {
  template <class A>
  __device__ __forceinline__ static ValueAndSlope<A> at(A x) {
    const A open = sigmoid(x);
    return {x * open, open * (A(1) + x * (A(1) - open))};
  }
};

inline constexpr int kActivationThreads = 256, kActivationRows = kActivationThreads / 32;

// A lane's packs of a row that are in flight at once: those from pack `first` on, 32 apart.
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

// y = f(gate) up(up) s, or f(h) s without kGated;  h [T, 2F] or [T, F]
template <class Function, bool kGated, int N, class T>
__global__ void __launch_bounds__(kActivationThreads)
    activation_forward_kernel(Function of, T* y, const T* h, const Acc<T>* s, DeviceRowGroups groups, int64_t rows,
                              int64_t F) {
  using A = Acc<T>;
  constexpr int P = 4;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kActivationRows + threadIdx.x / 32;
  if (t >= rows || !groups.contain(t)) return;
  const A weight = s ? s[t] : A(1);
  const T *gate_row = h + t * F * (kGated ? 2 : 1), *up_row = gate_row + F;
  const int64_t packs = F / N;
  for (int64_t first = threadIdx.x % 32; first < packs; first += 32 * P) {
    LanePacks<T, N, P> gate, up;
    gate.load(gate_row, first, packs);
    if constexpr (kGated) up.load(up_row, first, packs);
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll
      for (int j = 0; j < N; ++j) {
        A value = of.at(convert<A>(gate.at[p].at[j])).value * weight;
        if constexpr (kGated) value *= of.up(convert<A>(up.at[p].at[j])).value;
        gate.at[p].at[j] = convert<T>(value);
      }
    gate.store(y + t * F, first, packs);
  }
}

// dgate = dy s up f'(gate), dup = dy s f(gate), ds = sum of dy f(gate) up; without kGated dh = dy s f'(h), ds = sum of
// dy f(h). dh may be h, and dy the half of dh that has the gradients of the ups: a lane reads its elements before it
// writes them. Rows of dy are dy_stride apart.
template <class Function, bool kGated, int N, class T>
__global__ void __launch_bounds__(kActivationThreads)
    activation_backward_kernel(Function of, T* dh, Acc<T>* ds, const T* dy, int64_t dy_stride, const T* h,
                               const Acc<T>* s, DeviceRowGroups groups, int64_t rows, int64_t F) {
  using A = Acc<T>;
  constexpr int P = 2;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kActivationRows + threadIdx.x / 32;
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
    for (int p = 0; p < P; ++p)
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const auto [value, slope] = of.at(convert<A>(gate.at[p].at[j]));
        const A dout = convert<A>(g.at[p].at[j]);
        if constexpr (kGated) {
          const auto [u, du] = of.up(convert<A>(up.at[p].at[j]));
          dot += dout * value * u;
          gate.at[p].at[j] = convert<T>(dout * weight * u * slope);
          up.at[p].at[j] = convert<T>(dout * weight * value * du);
        } else {
          dot += dout * value;
          gate.at[p].at[j] = convert<T>(dout * weight * slope);
        }
      }
    gate.store(dh + begin, first, packs);
    if constexpr (kGated) up.store(dh + begin + F, first, packs);
  }
  dot = warp_sum(dot);
  if (ds && threadIdx.x % 32 == 0) ds[t] = dot;
}

// Calls body.template operator()<T, N>(blocks) for rows of F elements at these addresses.
template <class Body, class... Tensors>
void with_activation_packs(DType dtype, int64_t rows, int64_t F, const Body& body, const Tensors&... tensors) {
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows + kActivationRows - 1) / kActivationRows);
  dispatch_device(dtype, [&]<class T>() {
    if ((packs<T>(ptr<T>(tensors), F) && ...))
      body.template operator()<T, kPack<T>>(blocks);
    else
      body.template operator()<T, 1>(blocks);
  });
}

template <class Function, bool kGated>
void activation_forward(Stream& stream, const Tensor& y, const Tensor& h, const Tensor& s, const RowGroups& groups,
                        Function of = {}) {
  const int64_t rows = y.shape().as_rows().first, F = y.shape().last();
  with_activation_packs(
      y.dtype(), rows, F,
      [&]<class T, int N>(unsigned blocks) {
        activation_forward_kernel<Function, kGated, N><<<blocks, kActivationThreads, 0, native(stream)>>>(
            of, ptr<T>(y), ptr<const T>(h), ptr<const Acc<T>>(s), DeviceRowGroups(groups), rows, F);
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
      [&]<class T, int N>(unsigned blocks) {
        activation_backward_kernel<Function, kGated, N><<<blocks, kActivationThreads, 0, native(stream)>>>(
            of, ptr<T>(dh), ptr<Acc<T>>(ds), ptr<const T>(dy), dy_stride, ptr<const T>(h), ptr<const Acc<T>>(s),
            DeviceRowGroups(groups), rows, F);
      },
      dh, dy, h);
}

}  // namespace witan::kernels::cuda
