// A block has 32 value channels of a head of a row, whose state stays in shared memory from chunk to chunk.
#include "witan/kernels/linear_attention/cuda/delta_tiles.cuh"
#include "witan/kernels/linear_attention/cuda/gated_delta.cuh"

namespace witan::kernels::cuda {
namespace {

// S <- e^γ[L-1] S + Σ_j e^(γ[L-1] - γ[j]) k[j] u[j]
template <class A, Decay kDecay>
__device__ void advance_state(A* S, const A* u, const ChunkShared<A, kDecay>& chunk, int L, int dk) {
  for (int first = 0; first < dk; first += kL) {
    SliceTile<A> added;
    added.add(
        min(kL, dk - first), L,
        [&](int d, int j) { return chunk.k[j * chunk.stride + first + d] * chunk.left_of(j, first + d); },
        [&](int j, int e) { return u[j * kSliceStride + e]; });
    added.each(min(kL, dk - first), [&](int d, int e, A sum) {
      A& state = S[(first + d) * kSliceStride + e];
      state = chunk.grown_of(L - 1, first + d) * state + sum;
    });
  }
}

template <class T, class A, Decay kDecay>
__device__ void write_outputs(T* o, const A* S, const A* u, const A* links, const ChunkShared<A, kDecay>& chunk,
                              const DeltaRows<T>& in, int64_t first, int L, int head, int slice) {
  SliceTile<A> tile;
  tile.add(
      L, in.dk, [&](int i, int d) { return chunk.grown_row(chunk.q, i, d); },
      [&](int d, int e) { return S[d * kSliceStride + e]; });
  tile.each(L, [&](int i, int, A& sum) { sum *= chunk.grown_sum(i); });
  tile.add(
      L, L, [&](int i, int j) { return links[i * kLinkStride + j]; },
      [&](int j, int e) { return u[j * kSliceStride + e]; });
  tile.each(L, [&](int i, int e, A sum) {
    if (slice + e < in.dv) o[((first + i) * in.H + head) * in.dv + slice + e] = convert<T>(sum);
  });
}

// o, and the state after the last token; with kStates instead the states before chunks that are not their document's
// first, in their slots.
template <bool kStates, Decay kDecay, class T>
__global__ void __launch_bounds__(kDeltaThreads)
    gated_delta_forward_kernel(T* o, Acc<T>* last, Acc<T>* states, const Acc<T>* before, DeltaRows<T> in) {
  using A = Acc<T>;
  extern __shared__ unsigned char memory[];
  __shared__ int length;
  const ChunkShared<A, kDecay> chunk(reinterpret_cast<A*>(memory), in.dk);
  A *const links = chunk.end, *const S = links + kL * kLinkStride, *const u = S + in.dk * kSliceStride;
  const int slice = blockIdx.x * kSlice, head = blockIdx.y;
  const int64_t b = blockIdx.z, slots = (in.S + kL - 1) / kL;
  const auto state_of = [&](A* of, int64_t number, int d, int e) -> A& {
    return of[((number * in.H + head) * in.dk + d) * in.dv + slice + e];
  };
  int L = 0;
  for (int64_t begin = 0; begin < in.S; begin += L) {
    L = chunk_length(in, b, begin, &length);
    const bool begins = begins_document(in, b, begin);
    for (int at = threadIdx.x; at < in.dk * kSlice; at += kDeltaThreads) {
      const int d = at / kSlice, e = at % kSlice;
      if (begins)
        S[d * kSliceStride + e] = begin == 0 && before != nullptr && slice + e < in.dv
                                      ? before[((b * in.H + head) * in.dk + d) * in.dv + slice + e]
                                      : A(0);
      else if (kStates && slice + e < in.dv)
        state_of(states, b * slots + begin / kL, d, e) = S[d * kSliceStride + e];
    }
    const int64_t first = b * in.S + begin;
    load_chunk(chunk, in, first, L, head);
    find_residuals(u, chunk, in, S, first, L, head, slice);
    find_links(links, chunk, chunk.k, L, in.dk, false);
    __syncthreads();
    solve_chunk(u, u, links, chunk, L);
    if constexpr (!kStates) {
      find_links(links, chunk, chunk.q, L, in.dk, true);
      __syncthreads();
      write_outputs(o, S, u, links, chunk, in, first, L, head, slice);
      __syncthreads();
    }
    advance_state(S, u, chunk, L, in.dk);
    __syncthreads();
  }
  if constexpr (!kStates) {
    if (last == nullptr) return;
    for (int at = threadIdx.x; at < in.dk * kSlice; at += kDeltaThreads) {
      const int d = at / kSlice, e = at % kSlice;
      if (slice + e < in.dv) state_of(last, b, d, e) = S[d * kSliceStride + e];
    }
  }
}

template <bool kStates, Decay kDecay, class T>
void launch_forward(Stream& stream, T* o, Acc<T>* last, Acc<T>* states, const DeltaInputs& in) {
  const DeltaRows<T> rows = delta_rows<T>(in);
  const int64_t elements = ChunkShared<Acc<T>, kDecay>::elements(rows.dk) + kL * kLinkStride +
                           (rows.dk + kL) * static_cast<int64_t>(kSliceStride);
  const dim3 grid(static_cast<unsigned>((rows.dv + kSlice - 1) / kSlice), static_cast<unsigned>(rows.H),
                  static_cast<unsigned>(in.qkv.size(0)));
  launch_chunks<Acc<T>>(stream, "gated_delta_forward", "linear_key_head_dim", elements, grid,
                        gated_delta_forward_kernel<kStates, kDecay, T>, o, last, states, ptr<const Acc<T>>(in.first),
                        rows);
}

// A block has a head of a run of one token or more, a thread a value channel of its state.
template <class T, Decay kDecay>
__global__ void __launch_bounds__(kDeltaThreads)
    gated_delta_decode_kernel(T* o, Acc<T>* states, DeltaRows<T> in, const int32_t* rows, const int32_t* positions) {
  using A = Acc<T>;
  extern __shared__ unsigned char memory[];
  const ChunkShared<A, kDecay> chunk(reinterpret_cast<A*>(memory), in.dk);
  const int head = blockIdx.y;
  const int64_t t = blockIdx.x;
  if (t > 0 && rows[t - 1] == rows[t]) return;  // within a run, which its first token's block computes
  A* const S = states + (static_cast<int64_t>(rows[t]) * in.H + head) * in.dk * in.dv;
  for (int64_t token = t; token < in.S && rows[token] == rows[t]; ++token) {
    load_chunk(chunk, in, token, 1, head);
    if constexpr (kDecay == Decay::of_channels) {
      for (int d = threadIdx.x; d < in.dk; d += kDeltaThreads) chunk.gamma[d] = delta_exp(chunk.gamma[d]);
      __syncthreads();
    }
    const A of_head = chunk.grown_sum(0), strength = chunk.beta[0];
    const auto decay = [&](int d) { return kDecay == Decay::of_head ? of_head : chunk.gamma[d]; };
    const bool begins = positions[token] == 0;
    for (int e = threadIdx.x; e < in.dv; e += kDeltaThreads) {
      A held = 0, out = 0;
      if (!begins)
        for (int d = 0; d < in.dk; ++d)
          held += kDecay == Decay::of_head ? chunk.k[d] * S[d * in.dv + e] : decay(d) * chunk.k[d] * S[d * in.dv + e];
      const A u = strength * (convert<A>(in.value(token, head)[e]) - of_head * held);
      for (int d = 0; d < in.dk; ++d) {
        const A s = (begins ? A(0) : decay(d) * S[d * in.dv + e]) + chunk.k[d] * u;
        S[d * in.dv + e] = s;
        out += chunk.q[d] * s;
      }
      o[(token * in.H + head) * in.dv + e] = convert<T>(out);
    }
    __syncthreads();
  }
}

}  // namespace

void gated_delta_forward(Stream& stream, const Tensor& o, const Tensor& last, const DeltaInputs& in,
                         const DeltaMemory& memory) {
  if (o.elements() == 0) return;
  if (memory.inverse.defined()) {
    delta_prepare(stream, in, memory);
    return delta_walk(stream, o, last, in, memory);
  }
  dispatch_delta(in, [&]<class T, Decay kDecay>() {
    launch_forward<false, kDecay, T>(stream, ptr<T>(o), ptr<Acc<T>>(last), nullptr, in);
  });
}

void delta_chunk_states(Stream& stream, const Tensor& states, const DeltaInputs& in) {
  dispatch_delta(in, [&]<class T, Decay kDecay>() {
    launch_forward<true, kDecay, T>(stream, nullptr, nullptr, ptr<Acc<T>>(states), in);
  });
}

void gated_delta_decode(Stream& stream, const Tensor& o, const Tensor& states, const DeltaInputs& in,
                        const CacheTokens& tokens, const DeltaChunk& /*chunk*/) {
  if (o.elements() == 0) return;
  dispatch_delta(in, [&]<class T, Decay kDecay>() {
    const DeltaRows<T> rows = delta_rows<T>(in);
    const dim3 grid(static_cast<unsigned>(rows.S), static_cast<unsigned>(rows.H));
    launch_chunks<Acc<T>>(stream, "gated_delta_decode", "linear_key_head_dim",
                          ChunkShared<Acc<T>, kDecay>::elements(rows.dk), grid, gated_delta_decode_kernel<T, kDecay>,
                          ptr<T>(o), ptr<Acc<T>>(states), rows, ptr<int32_t>(tokens.rows),
                          ptr<int32_t>(tokens.positions));
  });
}

}  // namespace witan::kernels::cuda
