// Elementwise updates on a GPU, in global or shared memory: a rule (kernels/optimizer/update_rules.h) is applied to
// every element of a table's rows.
#pragma once

#include <type_traits>
#include <utility>

#include "witan/kernels/common/cuda/table.cuh"
#include "witan/kernels/common/cuda/update.cuh"
#include "witan/kernels/optimizer/optimizer_table.h"
#include "witan/kernels/optimizer/update_rules.h"

namespace witan::kernels::cuda {

// S: the types of the state tensors.
template <class T, class G, class... S>
struct Operands {
  using A = Acc<T>;
  static constexpr int kStates = sizeof...(S);
  Weights<T> weights;
  const G* gradient;
  void* state[kStates + 1];

  Operands() = default;
  __device__ Operands(const UpdateRow& row, int64_t first)
      : weights{reinterpret_cast<T*>(row.value) + first, reinterpret_cast<Remainder<T>*>(row.remainder) + first},
        gradient(reinterpret_cast<const G*>(row.gradient) + first) {
    [[maybe_unused]] int n = 0;
    ((state[n] = reinterpret_cast<S*>(row.state[n]) + first, ++n), ...);
  }

  // Calls body(n, address) for each state tensor.
  template <class Body>
  __device__ __forceinline__ void for_state(const Body& body) const {
    [[maybe_unused]] int n = 0;
    ((body(n, static_cast<S*>(state[n])), ++n), ...);
  }
  __device__ bool aligned() const {
    bool all = weights.aligned() && unit_aligned<A>(gradient);
    for_state([&](int, const auto* address) { all = all && unit_aligned<A>(address); });
    return all;
  }
};

template <int N, int kStates, class A>
struct Values {
  A g[N], p[N], state[kStates + 1][N];
};

template <class Access, int N, int kStates, class A, class T, class G, class... S>
__device__ __forceinline__ void load(Values<N, kStates, A>& values, const Operands<T, G, S...>& from, int i) {
  take<Access>(values.g, from.gradient + i);
  from.weights.template load<Access>(values.p, i);
  from.for_state([&](int n, const auto* address) { take<Access>(values.state[n], address + i); });
}

template <class Access, int N, int kStates, class A, class T, class G, class... S, class Rule>
__device__ __forceinline__ void update(Values<N, kStates, A>& values, const Operands<T, G, S...>& to, int i,
                                       const Rule& rule) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    A own[kStates + 1];
#pragma unroll
    for (int s = 0; s < kStates; ++s) own[s] = values.state[s][n];
    rule(values.g[n], values.p[n], own);
#pragma unroll
    for (int s = 0; s < kStates; ++s) values.state[s][n] = own[s];
  }
  to.weights.template store<Access>(values.p, i);
  to.for_state([&](int n, auto* address) { put<Access>(address + i, values.state[n]); });
}

// Updates the first `count` elements with a block of kThreads threads, each of which reads kFlight units before it
// writes any.
template <class Access, int kThreads, int kFlight, class T, class G, class... S, class Rule>
__device__ __forceinline__ void update_all(const Operands<T, G, S...>& operands, int count, const Rule& rule) {
  using A = Acc<T>;
  constexpr int N = kUnit<A>, kStates = sizeof...(S);
  const int units = operands.aligned() ? count / N : 0;
  for (int u = threadIdx.x; u < units; u += kFlight * kThreads) {
    Values<N, kStates, A> values[kFlight];
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
      if (u + f * kThreads < units) load<Access>(values[f], operands, (u + f * kThreads) * N);
#pragma unroll
    for (int f = 0; f < kFlight; ++f)
      if (u + f * kThreads < units) update<Access>(values[f], operands, (u + f * kThreads) * N, rule);
  }
  for (int i = units * N + threadIdx.x; i < count; i += kThreads) {
    Values<1, kStates, A> values;
    load<Access>(values, operands, i);
    update<Access>(values, operands, i, rule);
  }
}

// Finds the row of the block's next chunk, and looks it up only if it is not the previous row.
__device__ __forceinline__ void find_row(UpdateRow& row, const UpdateRow* table, int rows, int64_t chunk) {
  if (chunk >= row.first_chunk + update_chunks_of(row.elements)) row = row_of_chunk(table, rows, chunk);
}

}  // namespace witan::kernels::cuda
