// A chunk of the gated delta rule in shared memory, for the forward and the backward.
#pragma once

#include "witan/kernels/linear_attention/cuda/chunk_tiles.cuh"

namespace witan::kernels::cuda {

template <class T>
struct DeltaRows {
  const T* qkv;
  const Acc<T>*g, *beta;
  const int32_t* ids;  // null: each row is one document
  int64_t S, channels, key_channels;
  int G, H, dk, dv;
  Acc<T> factor;  // of queries

  __device__ const int32_t* ids_of(int64_t b) const { return ids == nullptr ? nullptr : ids + b * S; }
  __device__ const T* query(int64_t t, int group) const { return qkv + t * channels + group * dk; }
  __device__ const T* value(int64_t t, int head) const { return qkv + t * channels + 2 * key_channels + head * dv; }
};

template <class T>
DeltaRows<T> delta_rows(const DeltaInputs& in) {
  const DeltaHeads& n = in.heads;
  const int64_t S = in.qkv.shape().dims() == 3 ? in.qkv.size(1) : in.qkv.size(0);
  return {ptr<T>(in.qkv),
          ptr<Acc<T>>(in.g),
          ptr<Acc<T>>(in.beta),
          ptr<int32_t>(in.sequence_ids),
          S,
          n.channels(),
          n.key_channels(),
          static_cast<int>(n.keys),
          static_cast<int>(n.values),
          static_cast<int>(n.key_dim),
          static_cast<int>(n.value_dim),
          static_cast<Acc<T>>(1 / std::sqrt(static_cast<double>(n.key_dim)))};
}

// Queries and keys, normalised, and the gates of a chunk. Rows have a stride of dk + 1. With decays of channels γ is a
// matrix, whose rows beyond the chunk are its last one, and `grown` and `left` are not kept.
template <class A, Decay kDecay>
struct ChunkShared {
  static constexpr bool kOfHead = kDecay == Decay::of_head;
  A *q, *k;         // [kL, dk + 1]
  A *gamma, *beta;  // [kL]; γ of channels [kL, dk + 1]
  A *grown, *left;  // [kL]: e^γ[i], and e^(γ[L - 1] - γ[i])
  int stride;       // dk + 1
  A* end;           // of this memory

  static __host__ __device__ int64_t elements(int dk) {
    return kOfHead ? 2 * kL * (dk + 1) + 4 * kL : 3 * kL * (dk + 1) + kL;
  }
  __device__ ChunkShared(A* memory, int dk)
      : q(memory),
        k(q + kL * (dk + 1)),
        gamma(k + kL * (dk + 1)),
        beta(gamma + (kOfHead ? kL : kL * (dk + 1))),
        grown(beta + kL),
        left(grown + kL),
        stride(dk + 1),
        end(kOfHead ? left + kL : grown) {}

  // e^(γ[i] - γ[j]), e^γ[i] and e^(γ[L - 1] - γ[i]) of channel d
  __device__ A between(int i, int j, int d) const {
    return kOfHead ? delta_exp(gamma[i] - gamma[j]) : delta_exp(gamma[i * stride + d] - gamma[j * stride + d]);
  }
  __device__ A grown_of(int i, int d) const { return kOfHead ? grown[i] : delta_exp(gamma[i * stride + d]); }
  __device__ A left_of(int i, int d) const { return kOfHead ? left[i] : between(kL - 1, i, d); }
  // A decay is a factor of a sum of products with rows x of queries or keys, or of channels one of their elements.
  __device__ A grown_row(const A* x, int i, int d) const {
    return kOfHead ? x[i * stride + d] : x[i * stride + d] * grown_of(i, d);
  }
  __device__ A left_row(const A* x, int i, int d) const {
    return kOfHead ? x[i * stride + d] : x[i * stride + d] * left_of(i, d);
  }
  __device__ A grown_sum(int i) const { return kOfHead ? grown[i] : A(1); }
  __device__ A left_sum(int i) const { return kOfHead ? left[i] : A(1); }
};

// Loads L tokens from token `first` of all rows' tokens on. Ends with a barrier.
template <class T, class A, Decay kDecay>
__device__ void load_chunk(const ChunkShared<A, kDecay>& to, const DeltaRows<T>& in, int64_t first, int L, int head) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stride = in.dk + 1, group = head / (in.H / in.G);
  for (int i = warp; i < 2 * L; i += kDeltaWarps) {
    const bool is_key = i >= L;
    const int token = is_key ? i - L : i;
    const T* const from = in.query(first + token, group) + (is_key ? in.key_channels : 0);
    A* const row = (is_key ? to.k : to.q) + token * stride;
    A squares = 0;
    for (int d = lane; d < in.dk; d += 32) {
      const A x = convert<A>(from[d]);
      row[d] = x;
      squares += x * x;
    }
    const A r = A(1) / sqrt(warp_sum(squares) + static_cast<A>(kDeltaNormEps)) * (is_key ? A(1) : in.factor);
    for (int d = lane; d < in.dk; d += 32) row[d] *= r;
  }
  if constexpr (kDecay == Decay::of_channels) {
    for (int d = threadIdx.x; d < in.dk; d += kDeltaThreads) {
      A sum = 0;
      for (int i = 0; i < kL; ++i) {
        if (i < L) sum += in.g[((first + i) * in.H + head) * in.dk + d];
        to.gamma[i * stride + d] = sum;
      }
    }
    if (threadIdx.x < L) to.beta[threadIdx.x] = in.beta[(first + threadIdx.x) * in.H + head];
    __syncthreads();
    return;
  }
  if (threadIdx.x == 0) {
    A sum = 0;
    for (int i = 0; i < L; ++i) {
      sum += in.g[(first + i) * in.H + head];
      to.gamma[i] = sum;
      to.beta[i] = in.beta[(first + i) * in.H + head];
    }
  }
  __syncthreads();
  if (threadIdx.x < L) {
    to.grown[threadIdx.x] = delta_exp(to.gamma[threadIdx.x]);
    to.left[threadIdx.x] = to.between(L - 1, threadIdx.x, 0);
  }
  __syncthreads();
}

// sum[i, j] += Σ_d e^(γ[i,d] - γ[j,d]) x[i,d] k[j,d] for j <= i; other sums have no use.
template <class A>
__device__ void add_decayed(LinkTile<A>& tile, const ChunkShared<A, Decay::of_channels>& chunk, const A* x, int L,
                            int dk) {
  int at[kTileRows], to[kTileRows];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    at[r] = min(LinkTile<A>::row(r), L - 1);
    to[r] = min(LinkTile<A>::column(r), L - 1);
  }
  for (int d = 0; d < dk; ++d)
#pragma unroll
    for (int r = 0; r < kTileRows; ++r)
#pragma unroll
      for (int c = 0; c <= r; ++c)
        tile.sum[r][c] +=
            chunk.between(at[r], to[c], d) * x[at[r] * chunk.stride + d] * chunk.k[to[c] * chunk.stride + d];
}

// links[i, j] = e^(γ[i] - γ[j]) x[i].k[j] for j < i, or j <= i if `own`, and 0 for other j; [L, kLinkStride]
template <class A, Decay kDecay>
__device__ void find_links(A* links, const ChunkShared<A, kDecay>& chunk, const A* x, int L, int dk, bool own) {
  LinkTile<A> tile;
  const auto clamped = [&](int j) { return j < L ? j : L - 1; };
  if constexpr (kDecay == Decay::of_channels) {
    add_decayed(tile, chunk, x, L, dk);
    tile.each(L, [&](int i, int j, A sum) { links[i * kLinkStride + j] = j < i || (j == i && own) ? sum : A(0); });
    return;
  }
  tile.add(
      L, dk, [&](int i, int d) { return x[i * (dk + 1) + d]; },
      [&](int d, int j) { return chunk.k[clamped(j) * (dk + 1) + d]; });
  tile.each(L, [&](int i, int j, A sum) {
    const bool linked = j < i || (j == i && own);
    links[i * kLinkStride + j] = linked ? sum * chunk.between(i, j, 0) : A(0);
  });
}

// x[i, e] = v[i, e] - e^γ[i] Σ_d k[i, d] S[d, e] of the slice's channels; 0 beyond them
template <class T, class A, Decay kDecay>
__device__ void find_residuals(A* x, const ChunkShared<A, kDecay>& chunk, const DeltaRows<T>& in, const A* S,
                               int64_t first, int L, int head, int slice) {
  SliceTile<A> held;
  held.add(
      L, in.dk, [&](int i, int d) { return chunk.grown_row(chunk.k, i, d); },
      [&](int d, int e) { return S[d * kSliceStride + e]; });
  held.each(L, [&](int i, int e, A sum) {
    const A value = slice + e < in.dv ? convert<A>(in.value(first + i, head)[slice + e]) : A(0);
    x[i * kSliceStride + e] = value - chunk.grown_sum(i) * sum;
  });
}

// A thread's column and rows in a substitution: a lane has a column, a warp every eighth row.
template <class A>
struct SolvedRows {
  static constexpr int kRows = kL / kDeltaWarps;
  A at[kRows];
  __device__ static int row(int r) { return static_cast<int>(threadIdx.x) / 32 + kDeltaWarps * r; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ void load(const A* from, int L) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) at[r] = row(r) < L ? from[row(r) * kSliceStride + column()] : A(0);
  }
};

// u = (1 + A)^-1 β x, with A = β links. x and u are [L, kSliceStride]. Called by all threads, with a barrier before it;
// ends with one.
template <class A, Decay kDecay>
__device__ void solve_chunk(A* u, const A* x, const A* links, const ChunkShared<A, kDecay>& chunk, int L) {
  SolvedRows<A> rows;
  rows.load(x, L);
  const int e = SolvedRows<A>::column();
  for (int j = 0; j < L; ++j) {
#pragma unroll
    for (int r = 0; r < SolvedRows<A>::kRows; ++r)
      if (SolvedRows<A>::row(r) == j) u[j * kSliceStride + e] = chunk.beta[j] * rows.at[r];
    __syncthreads();
    const A solved = u[j * kSliceStride + e];
#pragma unroll
    for (int r = 0; r < SolvedRows<A>::kRows; ++r) {
      const int i = SolvedRows<A>::row(r);
      if (i > j && i < L) rows.at[r] -= links[i * kLinkStride + j] * solved;
    }
  }
  __syncthreads();
}

// du <- (1 + A)^-T du, in the same way.
template <class A, Decay kDecay>
__device__ void solve_chunk_transposed(A* du, const A* links, const ChunkShared<A, kDecay>& chunk, int L) {
  SolvedRows<A> rows;
  rows.load(du, L);
  const int e = SolvedRows<A>::column();
  for (int k = L - 1; k >= 0; --k) {
#pragma unroll
    for (int r = 0; r < SolvedRows<A>::kRows; ++r)
      if (SolvedRows<A>::row(r) == k) du[k * kSliceStride + e] = rows.at[r];
    __syncthreads();
    const A solved = chunk.beta[k] * du[k * kSliceStride + e];
#pragma unroll
    for (int r = 0; r < SolvedRows<A>::kRows; ++r) {
      const int i = SolvedRows<A>::row(r);
      if (i < k) rows.at[r] -= links[k * kLinkStride + i] * solved;
    }
  }
  __syncthreads();
}

// Calls body.operator()<T, Decay>() for the inputs' dtype and decays.
template <class Body>
void dispatch_delta(const DeltaInputs& in, const Body& body) {
  dispatch_device(in.qkv.dtype(), [&]<class T>() {
    if (in.decay() == Decay::of_head)
      body.template operator()<T, Decay::of_head>();
    else
      body.template operator()<T, Decay::of_channels>();
  });
}

// The states before chunks that are not their document's first, DeltaMemory::states.
void delta_chunk_states(Stream& stream, const Tensor& states, const DeltaInputs& in);

}  // namespace witan::kernels::cuda
