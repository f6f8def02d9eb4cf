// What the update of AdamW is made of on a GPU, wherever its operands lie.
#pragma once

#include <type_traits>

#include "witan/kernels/cuda/common/table.cuh"
#include "witan/kernels/cuda/optimizer/update.cuh"
#include "witan/kernels/optimizer_table.h"

namespace witan::kernels::cuda {

struct Betas {
  double beta1, beta2, eps;
  int64_t rate;  // where the step has the learning rate
};

template <class A>
struct Scalars {
  A scale, beta1, beta2, to_m, to_v, unbias_m, unbias_v, eps, lr, decay;
};

template <class A>
__device__ Scalars<A> scalars_of(const double* step, const Betas& betas) {
  const double update = step[step_value::update];
  return {.scale = A(step[step_value::gradient_scale]),
          .beta1 = A(betas.beta1),
          .beta2 = A(betas.beta2),
          .to_m = A(1 - betas.beta1),
          .to_v = A(1 - betas.beta2),
          .unbias_m = A(1 / (1 - pow(betas.beta1, update))),
          .unbias_v = A(1 / (1 - pow(betas.beta2, update))),
          .eps = A(betas.eps),
          .lr = A(step[betas.rate]),
          .decay = 0};
}

template <class T, class G>
struct Operands {
  using A = Acc<T>;
  Weights<T> weights;
  A *m, *v;
  const G* gradient;

  Operands() = default;
  __device__ Operands(const AdamWRow& row, int64_t first)
      : weights{reinterpret_cast<T*>(row.value) + first, reinterpret_cast<uint16_t*>(row.remainder) + first},
        m(reinterpret_cast<A*>(row.m) + first),
        v(reinterpret_cast<A*>(row.v) + first),
        gradient(reinterpret_cast<const G*>(row.gradient) + first) {}
  __device__ bool aligned() const {
    return weights.aligned() && unit_aligned<A>(m) && unit_aligned<A>(v) && unit_aligned<A>(gradient);
  }
};

template <int N, class A>
struct Values {
  A g[N], p[N], m[N], v[N];
};

template <class Access, int N, class T, class G, class A>
__device__ __forceinline__ void load(Values<N, A>& values, const Operands<T, G>& from, int i) {
  take<Access>(values.g, from.gradient + i);
  from.weights.template load<Access>(values.p, i);
  take<Access>(values.m, from.m + i);
  take<Access>(values.v, from.v + i);
}

template <class Access, int N, class T, class G, class A>
__device__ __forceinline__ void update(Values<N, A>& values, const Operands<T, G>& to, int i, const Scalars<A>& s) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const A g = s.scale * values.g[n];
    const A m = s.beta1 * values.m[n] + s.to_m * g;
    const A v = s.beta2 * values.v[n] + s.to_v * g * g;
    values.p[n] -= s.lr * (m * s.unbias_m / (sqrt(v * s.unbias_v) + s.eps) + s.decay * values.p[n]);
    values.m[n] = m;
    values.v[n] = v;
  }
  to.weights.template store<Access>(values.p, i);
  put<Access>(to.m + i, values.m);
  put<Access>(to.v + i, values.v);
}

// The first `count` elements by a block of kThreads. Units are read kFlight at a time before any is written.
template <class Access, int kThreads, int kFlight, class T, class G, class A>
__device__ __forceinline__ void update_all(const Operands<T, G>& operands, int count, const Scalars<A>& scalars) {
  constexpr int N = kUnit<A>;
  const int units = operands.aligned() ? count / N : 0;
  for (int u = threadIdx.x; u < units; u += kFlight * kThreads) {
    Values<N, A> values[kFlight];
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
      if (u + f * kThreads < units) load<Access>(values[f], operands, (u + f * kThreads) * N);
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
      if (u + f * kThreads < units) update<Access>(values[f], operands, (u + f * kThreads) * N, scalars);
  }
  for (int i = units * N + threadIdx.x; i < count; i += kThreads) {
    Values<1, A> values;
    load<Access>(values, operands, i);
    update<Access>(values, operands, i, scalars);
  }
}

// The row of the block's next chunk, which is looked up where it is not the row before.
__device__ __forceinline__ void find_row(AdamWRow& row, const AdamWRow* table, int rows, int64_t chunk) {
  if (chunk >= row.first_chunk + update_chunks_of(row.elements)) row = row_of_chunk(table, rows, chunk);
}

}  // namespace witan::kernels::cuda
