// The backward of Mamba-2's recurrence. States before chunks come first, by the forward's kernel. Then a block has a
// head of a row, and goes from its last chunk to its first, 32 channels at a time; the gradient of the state that
// passes between chunks takes the place of the state that was there. The names of gradients are those of the CPU's
// twin.
#include "witan/kernels/state_space/cuda/ssd.cuh"
#include "witan/kernels/state_space/cuda/ssd_tiles.cuh"

namespace witan::kernels::cuda {
namespace {

template <class T>
struct SsdOutputs {
  T* dxbc;
  Acc<T>*ddt, *da;
  Acc<T>* states;  // [B, slots, H, N, P]
  Acc<T>* shares;  // [B, S, H, 2 N]
};

// The shared memory of a block beside the chunk.
template <class A>
struct SsdBackwardShared {
  A* links;         // [kL, kLinkStride]
  A *dout, *x;      // [kL, kSliceStride]
  A *S, *dS;        // [N, kSliceStride]
  A *dgamma, *ddt;  // [kL]

  static int64_t elements(int N) {
    return SsdShared<A>::elements(N) + kL * kLinkStride + (2 * kL + 2 * N) * kSliceStride + 2 * kL;
  }
  __device__ SsdBackwardShared(A* memory, int N)
      : links(memory),
        dout(links + kL * kLinkStride),
        x(dout + kL * kSliceStride),
        S(x + kL * kSliceStride),
        dS(S + N * kSliceStride),
        dgamma(dS + N * kSliceStride),
        ddt(dgamma + kL) {}
};

template <class T>
class SsdChunkBackward {
 public:
  using A = Acc<T>;

  __device__ SsdChunkBackward(const SsdRows<T>& in, const SsdOutputs<T>& to, const T* dy, A* memory)
      : in_(in), to_(to), dy_(dy), chunk_(memory, in.N), at_(chunk_.left + kL, in.N) {}

  __device__ void run(const ChunkPlace& place) {
    load_ssd_chunk(chunk_, in_, place.first(in_.S), place.L, place.head);
    find_ssd_links(at_.links, chunk_, place.L, in_.N);
    if (threadIdx.x < kL) at_.dgamma[threadIdx.x] = at_.ddt[threadIdx.x] = 0;
    pairs_ = {};
    __syncthreads();
    for (int slice = 0; slice < in_.P; slice += kSlice) {
      load_slice(place, slice);
      write_inputs(place, slice);
      add_gradients(place, slice);
      write_state(place, slice);
    }
    add_links(place);
    write_gates(place);
  }

 private:
  // The state's number (n, e) in the slot of the chunk that begins with this token.
  __device__ A& state(const ChunkPlace& place, int64_t begin, int n, int e) const {
    const int64_t slot = place.b * ((in_.S + kL - 1) / kL) + begin / kL;
    return to_.states[((slot * in_.H + place.head) * in_.N + n) * in_.P + e];
  }
  __device__ A* share(const ChunkPlace& place, int i) const {
    return to_.shares + ((place.first(in_.S) + i) * in_.H + place.head) * 2 * in_.N;
  }

  __device__ void load_slice(const ChunkPlace& place, int slice) {
    const int64_t first = place.first(in_.S);
    for (int at = threadIdx.x; at < in_.N * kSlice; at += kDeltaThreads) {
      const int n = at / kSlice, e = at % kSlice;
      const bool inside = slice + e < in_.P;
      at_.S[n * kSliceStride + e] = inside && !place.begins ? state(place, place.begin, n, slice + e) : A(0);
      at_.dS[n * kSliceStride + e] = inside && !place.ends ? state(place, place.begin + place.L, n, slice + e) : A(0);
    }
    load_ssd_slice<T>(at_.x, place.L, slice, in_.P, [&](int i) { return in_.input(first + i, place.head); });
    load_ssd_slice<T>(at_.dout, place.L, slice, in_.P,
                      [&](int i) { return dy_ + ((first + i) * in_.H + place.head) * in_.P; });
    __syncthreads();
  }

  // dx of the slice.
  __device__ void write_inputs(const ChunkPlace& place, int slice) {
    const int64_t first = place.first(in_.S);
    SliceTile<A> dx;
    dx.add(
        place.L, in_.N, [&](int j, int n) { return chunk_.B[j * (in_.N + 1) + n]; },
        [&](int n, int e) { return at_.dS[n * kSliceStride + e]; });
    dx.each(place.L, [&](int j, int, A& sum) { sum *= chunk_.left[j]; });
    dx.add(
        place.L, place.L, [&](int j, int i) { return at_.links[i * kLinkStride + j]; },
        [&](int i, int e) { return at_.dout[i * kSliceStride + e]; });
    const A skip = in_.D[place.head];
    dx.each(place.L, [&](int j, int e, A sum) {
      if (slice + e < in_.P)
        to_.dxbc[(first + j) * in_.channels + place.head * in_.P + slice + e] =
            convert<T>(chunk_.dt[j] * sum + skip * at_.dout[j * kSliceStride + e]);
    });
  }

  // The slice's part of the gradients of links, steps, γ, B and C.
  __device__ void add_gradients(const ChunkPlace& place, int slice) {
    pairs_.add(
        place.L, kSlice, [&](int i, int e) { return at_.dout[i * kSliceStride + e]; },
        [&](int e, int j) { return at_.x[min(j, place.L - 1) * kSliceStride + e]; });
    A pulls[kTileRows] = {}, steps[kTileRows] = {};  // of the thread's tokens and channels
    for (int first = 0; first < in_.N; first += kL) add_vectors(place, slice, first, pulls, steps);
    A end = 0;
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int i = LinkTile<A>::row(r);
      const A pull = half_warp_sum(pulls[r]), step = half_warp_sum(steps[r]);
      if (threadIdx.x % 16 != 0 || i >= place.L) continue;
      const A of_end = chunk_.dt[i] * step;
      at_.ddt[i] += step;
      at_.dgamma[i] += pull - of_end;
      end += of_end;
    }
    add_to_end(place, end);
  }
  // Channels [first, first + kL) of B and C.
  __device__ void add_vectors(const ChunkPlace& place, int slice, int first, A (&pulls)[kTileRows],
                              A (&steps)[kTileRows]) {
    LinkTile<A> outputs, after;
    const auto clamped = [&](int n) { return min(first + n, in_.N - 1) * kSliceStride; };
    outputs.add(
        place.L, kSlice, [&](int i, int e) { return at_.dout[i * kSliceStride + e]; },
        [&](int e, int n) { return at_.S[clamped(n) + e]; });
    after.add(
        place.L, kSlice, [&](int i, int e) { return at_.x[i * kSliceStride + e]; },
        [&](int e, int n) { return at_.dS[clamped(n) + e]; });
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int i = LinkTile<A>::row(r);
      if (i >= place.L) continue;
#pragma unroll
      for (int c = 0; c < kTileRows; ++c) {
        const int n = first + LinkTile<A>::column(c);
        if (n >= in_.N) continue;
        const A dC = chunk_.grown[i] * outputs.sum[r][c], of_state = chunk_.left[i] * after.sum[r][c];
        pulls[r] += dC * chunk_.C[i * (in_.N + 1) + n];
        steps[r] += of_state * chunk_.B[i * (in_.N + 1) + n];
        A* const to = share(place, i) + n;
        to[0] = chunk_.dt[i] * of_state + (slice == 0 ? A(0) : to[0]);
        to[in_.N] = dC + (slice == 0 ? A(0) : to[in_.N]);
      }
    }
  }
  // Adds to the last token's dγ what comes from the state after the chunk: `end` of all threads, and e^γ[L-1] S.dS.
  __device__ void add_to_end(const ChunkPlace& place, A end) {
    A sum = 0;
    for (int at = threadIdx.x; at < in_.N * kSlice; at += kDeltaThreads) {
      const int n = at / kSlice, e = at % kSlice;
      sum += at_.S[n * kSliceStride + e] * at_.dS[n * kSliceStride + e];
    }
    __shared__ A sums[kDeltaWarps];
    sum = block_sum(chunk_.grown[place.L - 1] * sum + end, sums);
    if (threadIdx.x == 0) at_.dgamma[place.L - 1] += sum;
    __syncthreads();
  }

  // The gradient of the state before the chunk, where there is one.
  __device__ void write_state(const ChunkPlace& place, int slice) {
    for (int begin = 0; begin < in_.N && !place.begins; begin += kL) {
      SliceTile<A> before;
      before.add(
          min(kL, in_.N - begin), place.L,
          [&](int n, int i) { return chunk_.grown[i] * chunk_.C[i * (in_.N + 1) + begin + n]; },
          [&](int i, int e) { return at_.dout[i * kSliceStride + e]; });
      before.each(min(kL, in_.N - begin), [&](int n, int e, A sum) {
        const A after = chunk_.grown[place.L - 1] * at_.dS[(begin + n) * kSliceStride + e];
        if (slice + e < in_.P) state(place, place.begin, begin + n, slice + e) = after + sum;
      });
    }
    __syncthreads();
  }

  // Turns links into their gradients times e^(γ[i] - γ[j]) dt[j], and adds what they give steps, γ, B and C.
  __device__ void add_links(const ChunkPlace& place) {
    A* const products = at_.dout;  // over dout and x: gradients of links times links
    static_assert(kL * kLinkStride <= 2 * kL * kSliceStride);
#pragma unroll
    for (int r = 0; r < kTileRows; ++r)
#pragma unroll
      for (int c = 0; c < kTileRows; ++c) {
        const int i = LinkTile<A>::row(r), j = LinkTile<A>::column(c), at = i * kLinkStride + j;
        if (i >= place.L || j >= place.L) continue;
        const A d = j <= i ? pairs_.sum[r][c] : A(0);
        products[at] = d * at_.links[at];
        at_.links[at] = j <= i ? d * chunk_.between(i, j) * chunk_.dt[j] : A(0);
      }
    __syncthreads();
    if (threadIdx.x < place.L) {
      const int i = threadIdx.x;
      A as_row = 0, as_column = 0;
      for (int j = 0; j < place.L; ++j) {
        as_row += products[i * kLinkStride + j] * chunk_.dt[j];
        as_column += products[j * kLinkStride + i];
      }
      at_.ddt[i] += as_column;
      at_.dgamma[i] += as_row - chunk_.dt[i] * as_column;
    }
    for (int begin = 0; begin < in_.N; begin += kL) {
      const auto at = [&](int j, int n) { return j * (in_.N + 1) + min(begin + n, in_.N - 1); };
      LinkTile<A> dB, dC;
      dC.add(
          place.L, place.L, [&](int i, int j) { return at_.links[i * kLinkStride + j]; },
          [&](int j, int n) { return chunk_.B[at(j, n)]; });
      dB.add(
          place.L, place.L, [&](int j, int i) { return at_.links[i * kLinkStride + j]; },
          [&](int i, int n) { return chunk_.C[at(i, n)]; });
      const auto add = [&](const LinkTile<A>& tile, int64_t offset) {
        tile.each(place.L, [&](int i, int n, A sum) {
          if (begin + n < in_.N) share(place, i)[offset + begin + n] += sum;
        });
      };
      add(dB, 0);
      add(dC, in_.N);
    }
    __syncthreads();
  }
  __device__ void write_gates(const ChunkPlace& place) {
    const int64_t first = place.first(in_.S);
    if (threadIdx.x == 0) {
      A sum = 0;
      for (int i = place.L - 1; i >= 0; --i) {
        sum += at_.dgamma[i];
        to_.da[(first + i) * in_.H + place.head] = sum;
      }
    }
    if (threadIdx.x < place.L) to_.ddt[(first + threadIdx.x) * in_.H + place.head] = at_.ddt[threadIdx.x];
    __syncthreads();
  }

  const SsdRows<T>& in_;
  const SsdOutputs<T>& to_;
  const T* dy_;
  SsdShared<A> chunk_;
  SsdBackwardShared<A> at_;
  LinkTile<A> pairs_;  // gradients of links with their steps
};

template <class T>
__global__ void __launch_bounds__(kDeltaThreads) ssd_backward_kernel(SsdOutputs<T> to, const T* dy, SsdRows<T> in) {
  extern __shared__ unsigned char memory[];
  SsdChunkBackward<T> backward(in, to, dy, reinterpret_cast<Acc<T>*>(memory));
  for_chunks_back(in, [&](const ChunkPlace& place) { backward.run(place); });
}

// Sums the shares of the heads that read a group's B and C, in their order. A thread has a number of a token.
template <class T>
__global__ void __launch_bounds__(kDeltaThreads)
    ssd_vector_gradients_kernel(T* dxbc, const Acc<T>* shares, SsdRows<T> in, int64_t numbers) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kDeltaThreads + threadIdx.x;
  if (at >= numbers) return;
  const int64_t t = at / (2 * in.of_groups), column = at % (2 * in.of_groups);
  const int64_t is_c = column / in.of_groups, group = column % in.of_groups / in.N, n = column % in.N;
  const int of_group = in.H / in.G;
  Acc<T> sum = 0;
  for (int r = 0; r < of_group; ++r) sum += shares[((t * in.H + group * of_group + r) * 2 + is_c) * in.N + n];
  dxbc[t * in.channels + in.inner + column] = convert<T>(sum);
}

// The terms of dD[h].
template <class T>
struct SsdSkipTerm {
  SsdRows<T> in;
  const T* dy;
  __device__ Acc<T> operator()(int64_t t, int64_t h) const {
    const T *const x = in.input(t, static_cast<int>(h)), *const d = dy + (t * in.H + h) * in.P;
    Acc<T> sum = 0;
    for (int p = 0; p < in.P; ++p) sum += convert<Acc<T>>(x[p]) * convert<Acc<T>>(d[p]);
    return sum;
  }
};

// The terms of dD[h] that ssd_gradients() left.
struct SsdFoundTerm {
  const float* skips;
  int H;
  __device__ float operator()(int64_t t, int64_t h) const { return skips[t * H + h]; }
};

void run_on_tensor_cores(Stream& stream, const SsdGradients& to, const Tensor& dy, const SsdInputs& in) {
  ssd_prepare(stream, in, to.memory);
  ssd_walk(stream, {}, in, to.memory);
  ssd_walk_back(stream, dy, in, to.memory);
  ssd_gradients(stream, to, dy, in);
}

template <class T>
void run_in_accumulators(Stream& stream, const SsdGradients& to, const Tensor& dy, const SsdInputs& in) {
  using A = Acc<T>;
  ssd_chunk_states(stream, to.memory.states, in);
  const SsdRows<T> rows = ssd_rows<T>(in);
  const SsdOutputs<T> outputs{ptr<T>(to.dxbc), ptr<A>(to.ddt), ptr<A>(to.da), ptr<A>(to.memory.states),
                              ptr<A>(to.memory.shares)};
  const dim3 grid(static_cast<unsigned>(rows.H), static_cast<unsigned>(in.xbc.size(0)));
  launch_chunks<A>(stream, "ssd_backward", "mamba_state_dim", SsdBackwardShared<A>::elements(rows.N), grid,
                   ssd_backward_kernel<T>, outputs, ptr<T>(dy), rows);
  const int64_t numbers = in.xbc.size(0) * in.xbc.size(1) * 2 * rows.of_groups;
  ssd_vector_gradients_kernel<T>
      <<<static_cast<unsigned>((numbers + kDeltaThreads - 1) / kDeltaThreads), kDeltaThreads, 0, native(stream)>>>(
          outputs.dxbc, outputs.shares, rows, numbers);
}

}  // namespace

void ssd_backward(Stream& stream, const SsdGradients& to, const Tensor& dy, const SsdInputs& in) {
  const int64_t tokens = in.xbc.size(0) * in.xbc.size(1);
  const bool tiles = to.memory.chunks.defined();
  if (tiles && tokens > 0) run_on_tensor_cores(stream, to, dy, in);
  dispatch_device(in.xbc.dtype(), [&]<class T>() {
    if (!tiles && tokens > 0) run_in_accumulators<T>(stream, to, dy, in);
    if (!to.dD.defined()) return;
    if (tiles)
      sum_terms<float>(stream, to.dD, to.write_D, tokens,
                       SsdFoundTerm{ptr<float>(to.memory.skips), static_cast<int>(in.heads.heads)});
    else
      sum_terms<Acc<T>>(stream, to.dD, to.write_D, tokens, SsdSkipTerm<T>{ssd_rows<T>(in), ptr<T>(dy)});
  });
}

}  // namespace witan::kernels::cuda
