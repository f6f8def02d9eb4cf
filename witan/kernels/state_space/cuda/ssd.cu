// A block has 32 channels of a head of a row, whose state stays in shared memory from chunk to chunk.
#include "witan/kernels/state_space/cuda/ssd.cuh"
#include "witan/kernels/state_space/cuda/ssd_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

// S <- e^γ[L-1] S + Σ_j e^(γ[L-1] - γ[j]) dt[j] B[j] x[j]
template <class A>
__device__ void advance_ssd_state(A* S, const A* x, const SsdShared<A>& chunk, int L, int N) {
  for (int first = 0; first < N; first += kL) {
    SliceTile<A> added;
    added.add(
        min(kL, N - first), L,
        [&](int n, int j) { return chunk.B[j * (N + 1) + first + n] * chunk.left[j] * chunk.dt[j]; },
        [&](int j, int e) { return x[j * kSliceStride + e]; });
    added.each(min(kL, N - first), [&](int n, int e, A sum) {
      A& state = S[(first + n) * kSliceStride + e];
      state = chunk.grown[L - 1] * state + sum;
    });
  }
}

template <class T, class A>
__device__ void write_ssd_outputs(T* y, const A* S, const A* x, const A* links, const SsdShared<A>& chunk,
                                  const SsdRows<T>& in, int64_t first, int L, int head, int slice) {
  SliceTile<A> tile;
  tile.add(
      L, in.N, [&](int i, int n) { return chunk.C[i * (in.N + 1) + n]; },
      [&](int n, int e) { return S[n * kSliceStride + e]; });
  tile.each(L, [&](int i, int, A& sum) { sum *= chunk.grown[i]; });
  tile.add(
      L, L, [&](int i, int j) { return links[i * kLinkStride + j] * chunk.dt[j]; },
      [&](int j, int e) { return x[j * kSliceStride + e]; });
  const A skip = in.D[head];
  tile.each(L, [&](int i, int e, A sum) {
    if (slice + e < in.P)
      y[((first + i) * in.H + head) * in.P + slice + e] = convert<T>(sum + skip * x[i * kSliceStride + e]);
  });
}

// y, and the state after the last token; with kStates instead the states before chunks that are not their document's
// first, in their slots.
template <bool kStates, class T>
__global__ void __launch_bounds__(kDeltaThreads)
    ssd_forward_kernel(T* y, Acc<T>* last, Acc<T>* states, const Acc<T>* before, SsdRows<T> in) {
  using A = Acc<T>;
  extern __shared__ unsigned char memory[];
  __shared__ int length;
  const SsdShared<A> chunk(reinterpret_cast<A*>(memory), in.N);
  A *const links = chunk.left + kL, *const S = links + kL * kLinkStride, *const x = S + in.N * kSliceStride;
  const int slice = blockIdx.x * kSlice, head = blockIdx.y;
  const int64_t b = blockIdx.z, slots = (in.S + kL - 1) / kL;
  const auto state_of = [&](A* of, int64_t number, int n, int e) -> A& {
    return of[((number * in.H + head) * in.N + n) * in.P + slice + e];
  };
  int L = 0;
  for (int64_t begin = 0; begin < in.S; begin += L) {
    L = chunk_length(in, b, begin, &length);
    const bool begins = begins_document(in, b, begin);
    for (int at = threadIdx.x; at < in.N * kSlice; at += kDeltaThreads) {
      const int n = at / kSlice, e = at % kSlice;
      if (begins)
        S[n * kSliceStride + e] = begin == 0 && before != nullptr && slice + e < in.P
                                      ? before[((b * in.H + head) * in.N + n) * in.P + slice + e]
                                      : A(0);
      else if (kStates && slice + e < in.P)
        state_of(states, b * slots + begin / kL, n, e) = S[n * kSliceStride + e];
    }
    const int64_t first = b * in.S + begin;
    load_ssd_slice<T>(x, L, slice, in.P, [&](int i) { return in.input(first + i, head); });
    load_ssd_chunk(chunk, in, first, L, head);
    if constexpr (!kStates) {
      find_ssd_links(links, chunk, L, in.N);
      __syncthreads();
      write_ssd_outputs(y, S, x, links, chunk, in, first, L, head, slice);
      __syncthreads();
    }
    advance_ssd_state(S, x, chunk, L, in.N);
    __syncthreads();
  }
  if constexpr (!kStates) {
    if (last == nullptr) return;
    for (int at = threadIdx.x; at < in.N * kSlice; at += kDeltaThreads) {
      const int n = at / kSlice, e = at % kSlice;
      if (slice + e < in.P) state_of(last, b, n, e) = S[n * kSliceStride + e];
    }
  }
}

template <bool kStates, class T>
void launch_ssd_forward(Stream& stream, T* y, Acc<T>* last, Acc<T>* states, const SsdInputs& in) {
  const SsdRows<T> rows = ssd_rows<T>(in);
  const int64_t elements =
      SsdShared<Acc<T>>::elements(rows.N) + kL * kLinkStride + (rows.N + kL) * static_cast<int64_t>(kSliceStride);
  const dim3 grid(static_cast<unsigned>((rows.P + kSlice - 1) / kSlice), static_cast<unsigned>(rows.H),
                  static_cast<unsigned>(in.xbc.size(0)));
  launch_chunks<Acc<T>>(stream, "ssd_forward", "mamba_state_dim", elements, grid, ssd_forward_kernel<kStates, T>, y,
                        last, states, ptr<const Acc<T>>(in.first), rows);
}

constexpr int kStepThreads = 64, kMostStateDim = 256;

// A block has a head of a run of one token or more, a thread a channel of its state.
template <class T>
__global__ void __launch_bounds__(kStepThreads)
    ssd_decode_kernel(T* y, Acc<T>* states, SsdRows<T> in, const int32_t* rows, const int32_t* positions) {
  using A = Acc<T>;
  __shared__ A B[kMostStateDim], C[kMostStateDim];
  const int head = blockIdx.y;
  const int64_t t = blockIdx.x;
  if (t > 0 && rows[t - 1] == rows[t]) return;  // within a run, which its first token's block computes
  A* const S = states + (static_cast<int64_t>(rows[t]) * in.H + head) * in.N * in.P;
  for (int64_t token = t; token < in.S && rows[token] == rows[t]; ++token) {
    const T* const vectors = in.vectors(token, head);
    for (int n = threadIdx.x; n < in.N; n += kStepThreads) {
      B[n] = convert<A>(vectors[n]);
      C[n] = convert<A>(vectors[in.of_groups + n]);
    }
    __syncthreads();
    const A decay = delta_exp(in.a[token * in.H + head]), step = in.dt[token * in.H + head];
    const bool begins = positions[token] == 0;
    for (int e = threadIdx.x; e < in.P; e += kStepThreads) {
      const A x = convert<A>(in.input(token, head)[e]);
      A out = in.D[head] * x;
      for (int n = 0; n < in.N; ++n) {
        const A s = (begins ? A(0) : decay * S[n * in.P + e]) + step * B[n] * x;
        S[n * in.P + e] = s;
        out += C[n] * s;
      }
      y[(token * in.H + head) * in.P + e] = convert<T>(out);
    }
    __syncthreads();
  }
}

}  // namespace

void ssd_forward(Stream& stream, const Tensor& y, const Tensor& last, const SsdInputs& in, const SsdMemory& memory) {
  if (y.elements() == 0) return;
  if (memory.chunks.defined()) {
    ssd_prepare(stream, in, memory);
    ssd_walk(stream, last, in, memory);
    return ssd_outputs(stream, y, in, memory);
  }
  dispatch_device(in.xbc.dtype(),
                  [&]<class T>() { launch_ssd_forward<false, T>(stream, ptr<T>(y), ptr<Acc<T>>(last), nullptr, in); });
}

void ssd_chunk_states(Stream& stream, const Tensor& states, const SsdInputs& in) {
  dispatch_device(in.xbc.dtype(),
                  [&]<class T>() { launch_ssd_forward<true, T>(stream, nullptr, nullptr, ptr<Acc<T>>(states), in); });
}

void ssd_decode(Stream& stream, const Tensor& y, const Tensor& states, const SsdInputs& in, const CacheTokens& tokens,
                const SsdChunk& /*chunk*/) {
  if (y.elements() == 0) return;
  require<ShapeError>(in.heads.state_dim <= kMostStateDim, "ssd_decode: mamba_state_dim = ", in.heads.state_dim,
                      " is above ", kMostStateDim);
  dispatch_device(in.xbc.dtype(), [&]<class T>() {
    const SsdRows<T> rows = ssd_rows<T>(in);
    const dim3 grid(static_cast<unsigned>(rows.S), static_cast<unsigned>(rows.H));
    ssd_decode_kernel<T><<<grid, kStepThreads, 0, native(stream)>>>(
        ptr<T>(y), ptr<Acc<T>>(states), rows, ptr<int32_t>(tokens.rows), ptr<int32_t>(tokens.positions));
  });
}

}  // namespace witan::kernels::cuda
