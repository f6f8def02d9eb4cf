// The backward of the gated delta rule. States before chunks come first, by the forward's kernel. Then a block has a
// head of a row, and goes from its last chunk to its first, 32 value channels at a time; the gradient of the state that
// passes between chunks takes the place of the state that was there. The names of gradients are those of the CPU's
// twin. Gradients of decays of channels are summed in dg, by the threads that sum those of queries and keys.
#include "witan/kernels/linear_attention/cuda/delta_tiles.cuh"
#include "witan/kernels/linear_attention/cuda/gated_delta.cuh"

namespace witan::kernels::cuda {
namespace {

template <class T>
struct BackwardOutputs {
  T* dqkv;
  Acc<T>*dg, *dbeta;
  Acc<T>* states;  // [B, slots, H, dk, dv]
  Acc<T>* shares;  // [B, S, H, 2 dk]
};

// The shared memory of a block beside the chunk.
template <class A, Decay kDecay>
struct BackwardShared {
  A *of_keys, *of_queries;  // links [kL, kLinkStride]
  A *u, *du, *dout, *x;     // [kL, kSliceStride]
  A *S, *dS;                // [dk, kSliceStride]
  A *dgamma, *dbeta;        // [kL]

  static int64_t elements(int dk) {
    return ChunkShared<A, kDecay>::elements(dk) + 2 * kL * kLinkStride + (4 * kL + 2 * dk) * kSliceStride + 2 * kL;
  }
  __device__ BackwardShared(A* memory, int dk)
      : of_keys(memory),
        of_queries(of_keys + kL * kLinkStride),
        u(of_queries + kL * kLinkStride),
        du(u + kL * kSliceStride),
        dout(du + kL * kSliceStride),
        x(dout + kL * kSliceStride),
        S(x + kL * kSliceStride),
        dS(S + dk * kSliceStride),
        dgamma(dS + dk * kSliceStride),
        dbeta(dgamma + kL) {}
};

template <class T, Decay kDecay>
class ChunkBackward {
 public:
  using A = Acc<T>;
  static constexpr bool kOfHead = kDecay == Decay::of_head;

  __device__ ChunkBackward(const DeltaRows<T>& in, const BackwardOutputs<T>& to, const T* d_o, A* memory)
      : in_(in), to_(to), d_o_(d_o), chunk_(memory, in.dk), at_(chunk_.end, in.dk) {}

  __device__ void run(const ChunkPlace& place) {
    load_chunk(chunk_, in_, place.first(in_.S), place.L, place.head);
    find_links(at_.of_keys, chunk_, chunk_.k, place.L, in_.dk, false);
    find_links(at_.of_queries, chunk_, chunk_.q, place.L, in_.dk, true);
    if (threadIdx.x < kL) at_.dgamma[threadIdx.x] = at_.dbeta[threadIdx.x] = 0;
    of_key_pairs_ = of_query_pairs_ = {};
    __syncthreads();
    for (int slice = 0; slice < in_.dv; slice += kSlice) {
      load_slice(place, slice);
      add_gradients(place, slice);
      write_slice(place, slice);
    }
    add_links(place);
    write_gates(place);
  }

 private:
  // The state's number (d, slice + e) in the slot of the chunk that begins with this token.
  __device__ A& state(const ChunkPlace& place, int64_t begin, int d, int e) const {
    const int64_t slot = place.b * ((in_.S + kL - 1) / kL) + begin / kL;
    return to_.states[((slot * in_.H + place.head) * in_.dk + d) * in_.dv + e];
  }
  __device__ A* share(const ChunkPlace& place, int i) const {
    return to_.shares + ((place.first(in_.S) + i) * in_.H + place.head) * 2 * in_.dk;
  }

  // S, dS, dO and the residuals of the slice; u, and dR in place of dU.
  __device__ void load_slice(const ChunkPlace& place, int slice) {
    const int64_t first = place.first(in_.S);
    for (int at = threadIdx.x; at < in_.dk * kSlice; at += kDeltaThreads) {
      const int d = at / kSlice, e = at % kSlice;
      const bool inside = slice + e < in_.dv;
      at_.S[d * kSliceStride + e] = inside && !place.begins ? state(place, place.begin, d, slice + e) : A(0);
      at_.dS[d * kSliceStride + e] = inside && !place.ends ? state(place, place.begin + place.L, d, slice + e) : A(0);
    }
    for (int at = threadIdx.x; at < place.L * kSlice; at += kDeltaThreads) {
      const int i = at / kSlice, e = at % kSlice;
      at_.dout[i * kSliceStride + e] =
          slice + e < in_.dv ? convert<A>(d_o_[((first + i) * in_.H + place.head) * in_.dv + slice + e]) : A(0);
    }
    __syncthreads();
    find_residuals(at_.x, chunk_, in_, at_.S, first, place.L, place.head, slice);
    SliceTile<A> du;
    du.add(
        place.L, in_.dk, [&](int j, int d) { return chunk_.left_row(chunk_.k, j, d); },
        [&](int d, int e) { return at_.dS[d * kSliceStride + e]; });
    du.each(place.L, [&](int j, int, A& sum) { sum *= chunk_.left_sum(j); });
    du.add(
        place.L, place.L, [&](int j, int i) { return at_.of_queries[i * kLinkStride + j]; },
        [&](int i, int e) { return at_.dout[i * kSliceStride + e]; });
    du.each(place.L, [&](int j, int e, A sum) { at_.du[j * kSliceStride + e] = sum; });
    __syncthreads();
    solve_chunk(at_.u, at_.x, at_.of_keys, chunk_, place.L);
    solve_chunk_transposed(at_.du, at_.of_keys, chunk_, place.L);
  }

  // The slice's part of the gradients of links, β, γ, queries and keys.
  __device__ void add_gradients(const ChunkPlace& place, int slice) {
    const auto solution = [&](int e, int j) { return at_.u[j * kSliceStride + e]; };
    of_query_pairs_.add(
        place.L, kSlice, [&](int i, int e) { return at_.dout[i * kSliceStride + e]; }, solution);
    of_key_pairs_.add(
        place.L, kSlice, [&](int i, int e) { return -at_.du[i * kSliceStride + e]; }, solution);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = warp; i < place.L; i += kDeltaWarps) {
      const A strength = warp_sum(at_.du[i * kSliceStride + lane] * at_.x[i * kSliceStride + lane]);
      if (lane == 0) at_.dbeta[i] += strength;
    }
    A pulls[kTileRows] = {}, ends[kTileRows] = {};  // of the thread's tokens and channels
    for (int first = 0; first < in_.dk; first += kL) add_key_gradients(place, slice, first, pulls, ends);
    if constexpr (kOfHead)
      add_pulls(place, pulls, ends);
    else
      add_to_ends(place);
  }
  // Sums over the channels of tokens what outputs, residuals and the state after the chunk give γ.
  __device__ void add_pulls(const ChunkPlace& place, const A (&pulls)[kTileRows], const A (&ends)[kTileRows]) {
    A end = 0;
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int i = LinkTile<A>::row(r);
      const A pull = half_warp_sum(pulls[r] - ends[r]), of_end = half_warp_sum(ends[r]);
      if (threadIdx.x % 16 != 0 || i >= place.L) continue;
      at_.dgamma[i] += pull;
      end += of_end;
    }
    add_to_end(place, end);
  }
  // Channels [first, first + kL) of queries and keys.
  __device__ void add_key_gradients(const ChunkPlace& place, int slice, int first, A (&pulls)[kTileRows],
                                    A (&ends)[kTileRows]) {
    LinkTile<A> outputs, residuals, after;
    const auto clamped = [&](int d) { return min(first + d, in_.dk - 1) * kSliceStride; };
    const auto state = [&](int e, int d) { return at_.S[clamped(d) + e]; };
    outputs.add(
        place.L, kSlice, [&](int i, int e) { return at_.dout[i * kSliceStride + e]; }, state);
    residuals.add(
        place.L, kSlice, [&](int i, int e) { return at_.du[i * kSliceStride + e]; }, state);
    after.add(
        place.L, kSlice, [&](int i, int e) { return at_.u[i * kSliceStride + e]; },
        [&](int e, int d) { return at_.dS[clamped(d) + e]; });
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const int i = LinkTile<A>::row(r);
      if (i >= place.L) continue;
#pragma unroll
      for (int c = 0; c < kTileRows; ++c) {
        const int d = first + LinkTile<A>::column(c);
        if (d >= in_.dk) continue;
        const A grown = chunk_.grown_of(i, d), left = chunk_.left_of(i, d), back = chunk_.beta[i] * grown;
        const A key = chunk_.k[i * (in_.dk + 1) + d];
        const A dq = grown * outputs.sum[r][c], of_residual = back * residuals.sum[r][c],
                of_state = left * after.sum[r][c];
        if constexpr (kOfHead) {
          pulls[r] += dq * chunk_.q[i * (in_.dk + 1) + d] - of_residual * key;
          ends[r] += of_state * key;
        } else {
          A& pull = decay_gradient(place, i, d);
          pull = dq * chunk_.q[i * (in_.dk + 1) + d] - (of_residual + of_state) * key + (slice == 0 ? A(0) : pull);
        }
        A* const to = share(place, i) + d;
        to[0] = dq + (slice == 0 ? A(0) : to[0]);
        to[in_.dk] = of_state - of_residual + (slice == 0 ? A(0) : to[in_.dk]);
      }
    }
  }
  // Of γ, and finally of g.
  __device__ A& decay_gradient(const ChunkPlace& place, int i, int d) const {
    return to_.dg[((place.first(in_.S) + i) * in_.H + place.head) * in_.dk + d];
  }
  // The same as add_to_end() for decays of channels, of which a thread has one.
  __device__ void add_to_ends(const ChunkPlace& place) {
    __syncthreads();
    for (int d = threadIdx.x; d < in_.dk; d += kDeltaThreads) {
      const A* const dS = at_.dS + d * kSliceStride;
      A sum = 0;
      for (int e = 0; e < kSlice; ++e) sum += at_.S[d * kSliceStride + e] * dS[e];
      sum *= chunk_.grown_of(place.L - 1, d);
      for (int i = 0; i < place.L; ++i) {
        A written = 0;
        for (int e = 0; e < kSlice; ++e) written += at_.u[i * kSliceStride + e] * dS[e];
        sum += chunk_.left_row(chunk_.k, i, d) * chunk_.left_sum(i) * written;
      }
      decay_gradient(place, place.L - 1, d) += sum;
    }
    __syncthreads();
  }
  // Adds to the last token's dγ what comes from the state after the chunk: `end` of all threads, and e^γ[L-1] S.dS.
  __device__ void add_to_end(const ChunkPlace& place, A end) {
    A sum = 0;
    for (int at = threadIdx.x; at < in_.dk * kSlice; at += kDeltaThreads) {
      const int d = at / kSlice, e = at % kSlice;
      sum += at_.S[d * kSliceStride + e] * at_.dS[d * kSliceStride + e];
    }
    __shared__ A sums[kDeltaWarps];
    sum = block_sum(chunk_.grown[place.L - 1] * sum + end, sums);
    if (threadIdx.x == 0) at_.dgamma[place.L - 1] += sum;
    __syncthreads();
  }

  // dV, and the gradient of the state before the chunk, where there is one.
  __device__ void write_slice(const ChunkPlace& place, int slice) {
    const int64_t first = place.first(in_.S);
    for (int at = threadIdx.x; at < place.L * kSlice; at += kDeltaThreads) {
      const int i = at / kSlice, e = at % kSlice;
      if (slice + e < in_.dv)
        to_.dqkv[(first + i) * in_.channels + 2 * in_.key_channels + place.head * in_.dv + slice + e] =
            convert<T>(chunk_.beta[i] * at_.du[i * kSliceStride + e]);
    }
    for (int begin = 0; begin < in_.dk && !place.begins; begin += kL) {
      SliceTile<A> before;
      before.add(
          min(kL, in_.dk - begin), place.L,
          [&](int d, int i) { return chunk_.grown_of(i, begin + d) * chunk_.q[i * (in_.dk + 1) + begin + d]; },
          [&](int i, int e) { return at_.dout[i * kSliceStride + e]; });
      before.add(
          min(kL, in_.dk - begin), place.L,
          [&](int d, int i) {
            return -chunk_.grown_of(i, begin + d) * chunk_.beta[i] * chunk_.k[i * (in_.dk + 1) + begin + d];
          },
          [&](int i, int e) { return at_.du[i * kSliceStride + e]; });
      before.each(min(kL, in_.dk - begin), [&](int d, int e, A sum) {
        const A after = chunk_.grown_of(place.L - 1, begin + d) * at_.dS[(begin + d) * kSliceStride + e];
        if (slice + e < in_.dv) state(place, place.begin, begin + d, slice + e) = after + sum;
      });
    }
    __syncthreads();
  }

  // Turns links into their gradients times e^(γ[i] - γ[j]), unless that belongs to channels, and adds what they give β,
  // γ, queries and keys.
  __device__ void add_links(const ChunkPlace& place) {
    A *const of_gamma = at_.u, *const of_beta = at_.u + kL * kLinkStride;  // over u, du, dout and x
    static_assert(2 * kL * kLinkStride <= 4 * kL * kSliceStride);
#pragma unroll
    for (int r = 0; r < kTileRows; ++r)
#pragma unroll
      for (int c = 0; c < kTileRows; ++c) {
        const int i = LinkTile<A>::row(r), j = LinkTile<A>::column(c), at = i * kLinkStride + j;
        if (i >= place.L || j >= place.L) continue;
        const A of_key = j < i ? of_key_pairs_.sum[r][c] : A(0), of_query = j <= i ? of_query_pairs_.sum[r][c] : A(0);
        const A decay = j <= i ? (kOfHead ? chunk_.between(i, j, 0) : A(1)) : A(0), strength = chunk_.beta[i];
        of_beta[at] = of_key * at_.of_keys[at];
        of_gamma[at] = strength * of_beta[at] + of_query * at_.of_queries[at];
        at_.of_keys[at] = strength * of_key * decay;
        at_.of_queries[at] = of_query * decay;
      }
    __syncthreads();
    if (threadIdx.x < place.L) {
      const int i = threadIdx.x;
      A strength = 0, decay = 0;
      for (int j = 0; j < place.L; ++j) {
        strength += of_beta[i * kLinkStride + j];
        decay += of_gamma[i * kLinkStride + j] - of_gamma[j * kLinkStride + i];
      }
      at_.dbeta[i] += strength;
      if constexpr (kOfHead) at_.dgamma[i] += decay;
    }
    if constexpr (kOfHead)
      multiply_links(place);
    else
      add_decayed_links(place);
    __syncthreads();
  }
  // What links give queries and keys.
  __device__ void multiply_links(const ChunkPlace& place) {
    for (int begin = 0; begin < in_.dk; begin += kL) {
      const int stride = in_.dk + 1;
      const auto clamped = [&](int d) { return min(begin + d, in_.dk - 1); };
      const auto key = [&](int j, int d) { return chunk_.k[j * stride + clamped(d)]; };
      LinkTile<A> dq, dk;
      dq.add(
          place.L, place.L, [&](int i, int j) { return at_.of_queries[i * kLinkStride + j]; }, key);
      dk.add(
          place.L, place.L,
          [&](int i, int j) { return at_.of_keys[i * kLinkStride + j] + at_.of_keys[j * kLinkStride + i]; }, key);
      dk.add(
          place.L, place.L, [&](int i, int j) { return at_.of_queries[j * kLinkStride + i]; },
          [&](int j, int d) { return chunk_.q[j * stride + clamped(d)]; });
      const auto add = [&](const LinkTile<A>& tile, int64_t behind) {
        tile.each(place.L, [&](int i, int d, A sum) {
          if (begin + d < in_.dk) share(place, i)[behind + begin + d] += sum;
        });
      };
      add(dq, 0);
      add(dk, in_.dk);
    }
  }
  // What links of decays of channels give queries, keys and γ; a thread has the channels of add_key_gradients().
  __device__ void add_decayed_links(const ChunkPlace& place) {
    for (int begin = 0; begin < in_.dk; begin += kL)
#pragma unroll 1
      for (int r = 0; r < kTileRows; ++r)
#pragma unroll 1
        for (int c = 0; c < kTileRows; ++c) {
          const int i = LinkTile<A>::row(r), d = begin + LinkTile<A>::column(c);
          if (i < place.L && d < in_.dk) add_decayed_links(place, i, d);
        }
  }
  __device__ void add_decayed_links(const ChunkPlace& place, int i, int d) {
    const A query = chunk_.q[i * chunk_.stride + d], key = chunk_.k[i * chunk_.stride + d];
    A dq = 0, later = 0, earlier = 0;  // of the query, and of the key in its own row and in those of later tokens
    for (int j = 0; j < i; ++j) {
      const A before = chunk_.between(i, j, d) * chunk_.k[j * chunk_.stride + d];
      dq += at_.of_queries[i * kLinkStride + j] * before;
      earlier += at_.of_keys[i * kLinkStride + j] * before;
    }
    for (int j = i + 1; j < place.L; ++j)
      later += chunk_.between(j, i, d) * (at_.of_queries[j * kLinkStride + i] * chunk_.q[j * chunk_.stride + d] +
                                          at_.of_keys[j * kLinkStride + i] * chunk_.k[j * chunk_.stride + d]);
    A* const to = share(place, i) + d;
    const A own = at_.of_queries[i * kLinkStride + i];  // without a decay
    to[0] += dq + own * key;
    to[in_.dk] += earlier + later + own * query;
    decay_gradient(place, i, d) += query * dq + key * (earlier - later);
  }
  __device__ void write_gates(const ChunkPlace& place) {
    const int64_t first = place.first(in_.S);
    if constexpr (!kOfHead) {
      for (int d = threadIdx.x; d < in_.dk; d += kDeltaThreads)
        for (int i = place.L - 2; i >= 0; --i) decay_gradient(place, i, d) += decay_gradient(place, i + 1, d);
    } else if (threadIdx.x == 0) {
      A sum = 0;
      for (int i = place.L - 1; i >= 0; --i) {
        sum += at_.dgamma[i];
        to_.dg[(first + i) * in_.H + place.head] = sum;
      }
    }
    if (threadIdx.x < place.L) to_.dbeta[(first + threadIdx.x) * in_.H + place.head] = at_.dbeta[threadIdx.x];
    __syncthreads();
  }

  const DeltaRows<T>& in_;
  const BackwardOutputs<T>& to_;
  const T* d_o_;
  ChunkShared<A, kDecay> chunk_;
  BackwardShared<A, kDecay> at_;
  LinkTile<A> of_key_pairs_, of_query_pairs_;  // gradients of links, of keys without β
};

template <class T, Decay kDecay>
__global__ void __launch_bounds__(kDeltaThreads)
    gated_delta_backward_kernel(BackwardOutputs<T> to, const T* d_o, DeltaRows<T> in) {
  extern __shared__ unsigned char memory[];
  ChunkBackward<T, kDecay> backward(in, to, d_o, reinterpret_cast<Acc<T>*>(memory));
  for_chunks_back(in, [&](const ChunkPlace& place) { backward.run(place); });
}

// Sums the shares of the heads that read a query and a key, in their order, and takes them back through the norms. A
// warp has the query or the key of a token.
template <class T>
__global__ void __launch_bounds__(kDeltaThreads)
    delta_key_gradients_kernel(T* dqkv, const Acc<T>* shares, DeltaRows<T> in, int64_t tokens) {
  using A = Acc<T>;
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kDeltaWarps + threadIdx.x / 32;
  if (number >= tokens * in.G * 2) return;
  const int lane = threadIdx.x % 32, is_key = static_cast<int>(number % 2), per_group = in.H / in.G;
  const int64_t t = number / 2 / in.G;
  const int group = static_cast<int>(number / 2 % in.G);
  const T* const from = in.query(t, group) + is_key * in.key_channels;
  T* const to = dqkv + (from - in.qkv);
  const A factor = is_key ? A(1) : in.factor;
  const auto sum_of = [&](int d) {
    A sum = 0;
    for (int r = 0; r < per_group; ++r) sum += shares[((t * in.H + group * per_group + r) * 2 + is_key) * in.dk + d];
    return sum * factor;
  };
  A squares = 0, along = 0;
  for (int d = lane; d < in.dk; d += 32) {
    const A x = convert<A>(from[d]);
    squares += x * x;
    along += x * sum_of(d);
  }
  const A r = A(1) / sqrt(warp_sum(squares) + static_cast<A>(kDeltaNormEps));
  const A pull = warp_sum(along) * r * r;
  for (int d = lane; d < in.dk; d += 32) to[d] = convert<T>(r * (sum_of(d) - convert<A>(from[d]) * pull));
}

}  // namespace

void gated_delta_backward(Stream& stream, const DeltaGradients& to, const Tensor& d_o, const DeltaInputs& in) {
  if (d_o.elements() == 0) return;
  if (to.memory.inverse.defined()) return delta_walk_back(stream, to, d_o, in);
  delta_chunk_states(stream, to.memory.states, in);
  dispatch_delta(in, [&]<class T, Decay kDecay>() {
    using A = Acc<T>;
    const DeltaRows<T> rows = delta_rows<T>(in);
    const BackwardOutputs<T> outputs{ptr<T>(to.dqkv), ptr<A>(to.dg), ptr<A>(to.dbeta), ptr<A>(to.memory.states),
                                     ptr<A>(to.memory.shares)};
    const dim3 grid(static_cast<unsigned>(rows.H), static_cast<unsigned>(in.qkv.size(0)));
    launch_chunks<A>(stream, "gated_delta_backward", "linear_key_head_dim",
                     BackwardShared<A, kDecay>::elements(rows.dk), grid, gated_delta_backward_kernel<T, kDecay>,
                     outputs, ptr<T>(d_o), rows);
    const int64_t tokens = in.qkv.size(0) * in.qkv.size(1), warps = tokens * rows.G * 2;
    delta_key_gradients_kernel<T>
        <<<static_cast<unsigned>((warps + kDeltaWarps - 1) / kDeltaWarps), kDeltaThreads, 0, native(stream)>>>(
            outputs.dqkv, outputs.shares, rows, tokens);
  });
}

}  // namespace witan::kernels::cuda
