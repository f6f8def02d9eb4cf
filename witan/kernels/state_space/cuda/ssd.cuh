// A chunk of Mamba-2's recurrence in shared memory, for the forward and the backward.
#pragma once

#include "witan/kernels/linear_attention/cuda/chunk_tiles.cuh"
#include "witan/kernels/state_space/ssd.h"

namespace witan::kernels::cuda {

static_assert(kSsdChunk == kL);

template <class T>
struct SsdRows {
  const T* xbc;
  const Acc<T>*dt, *a, *D;
  const int32_t* ids;  // null: each row is one document
  int64_t S, channels, inner, of_groups;
  int H, G, P, N;

  __device__ const int32_t* ids_of(int64_t b) const { return ids == nullptr ? nullptr : ids + b * S; }
  __device__ const T* input(int64_t t, int head) const { return xbc + t * channels + head * P; }
  // B of a head; its C lies of_groups further on.
  __device__ const T* vectors(int64_t t, int head) const {
    return xbc + t * channels + inner + static_cast<int64_t>(head / (H / G)) * N;
  }
};

template <class T>
SsdRows<T> ssd_rows(const SsdInputs& in) {
  const SsdHeads& n = in.heads;
  const int64_t S = in.xbc.shape().dims() == 3 ? in.xbc.size(1) : in.xbc.size(0);
  return {ptr<T>(in.xbc),
          ptr<Acc<T>>(in.dt),
          ptr<Acc<T>>(in.a),
          ptr<Acc<T>>(in.D),
          ptr<int32_t>(in.sequence_ids),
          S,
          n.channels(),
          n.inner(),
          n.of_groups(),
          static_cast<int>(n.heads),
          static_cast<int>(n.groups),
          static_cast<int>(n.head_dim),
          static_cast<int>(n.state_dim)};
}

// B, C and the gates of a chunk's tokens. Rows have a stride of N + 1.
template <class A>
struct SsdShared {
  A *B, *C;         // [kL, N + 1]
  A *gamma, *dt;    // [kL]
  A *grown, *left;  // [kL]: e^γ[i], and e^(γ[L - 1] - γ[i])

  static __host__ __device__ int64_t elements(int N) { return 2 * kL * (N + 1) + 4 * kL; }
  __device__ SsdShared(A* memory, int N)
      : B(memory), C(B + kL * (N + 1)), gamma(C + kL * (N + 1)), dt(gamma + kL), grown(dt + kL), left(grown + kL) {}

  // e^(γ[i] - γ[j])
  __device__ A between(int i, int j) const { return delta_exp(gamma[i] - gamma[j]); }
};

// Loads L tokens from token `first` of all rows' tokens on. Ends with a barrier.
template <class T, class A>
__device__ void load_ssd_chunk(const SsdShared<A>& to, const SsdRows<T>& in, int64_t first, int L, int head) {
  for (int at = threadIdx.x; at < L * in.N; at += kDeltaThreads) {
    const int i = at / in.N, n = at % in.N;
    const T* const from = in.vectors(first + i, head) + n;
    to.B[i * (in.N + 1) + n] = convert<A>(from[0]);
    to.C[i * (in.N + 1) + n] = convert<A>(from[in.of_groups]);
  }
  if (threadIdx.x == 0) {
    A sum = 0;
    for (int i = 0; i < L; ++i) {
      sum += in.a[(first + i) * in.H + head];
      to.gamma[i] = sum;
      to.dt[i] = in.dt[(first + i) * in.H + head];
    }
  }
  __syncthreads();
  if (threadIdx.x < L) {
    to.grown[threadIdx.x] = delta_exp(to.gamma[threadIdx.x]);
    to.left[threadIdx.x] = to.between(L - 1, threadIdx.x);
  }
  __syncthreads();
}

// links[i, j] = e^(γ[i] - γ[j]) C[i].B[j] for j <= i, and 0 for other j; [L, kLinkStride]
template <class A>
__device__ void find_ssd_links(A* links, const SsdShared<A>& chunk, int L, int N) {
  LinkTile<A> tile;
  const auto clamped = [&](int j) { return j < L ? j : L - 1; };
  tile.add(
      L, N, [&](int i, int n) { return chunk.C[i * (N + 1) + n]; },
      [&](int n, int j) { return chunk.B[clamped(j) * (N + 1) + n]; });
  tile.each(L, [&](int i, int j, A sum) { links[i * kLinkStride + j] = j <= i ? sum * chunk.between(i, j) : A(0); });
}

// Loads channels [slice, slice + kSlice) of a head of L tokens to [L, kSliceStride]; 0 beyond its P channels. `row(i)`
// is the head's first channel of token i.
template <class T, class A, class Row>
__device__ void load_ssd_slice(A* to, int L, int slice, int P, const Row& row) {
  for (int at = threadIdx.x; at < L * kSlice; at += kDeltaThreads) {
    const int i = at / kSlice, e = at % kSlice;
    to[i * kSliceStride + e] = slice + e < P ? convert<A>(row(i)[slice + e]) : A(0);
  }
}

// The states before chunks that are not their document's first (SsdGradients::states).
void ssd_chunk_states(Stream& stream, const Tensor& states, const SsdInputs& in);

}  // namespace witan::kernels::cuda
