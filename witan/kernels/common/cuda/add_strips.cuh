// The second pass of a sum over rows: blocks have summed strips of rows, and a kernel of its own adds up their sums.
#pragma once

#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {

// [count, D] in scratch
template <class A>
struct Strips {
  Strips(Stream& stream, int64_t count_, int64_t D_)
      : strips(reinterpret_cast<A*>(stream.scratch(count_ * D_ * static_cast<int64_t>(sizeof(A))))),
        count(count_),
        D(D_) {}

  A* strips;
  int64_t count, D;
};

inline constexpr int kStripWarps = 32;  // per block; each adds every 32nd strip

// to[d] (=|+=) sum over the strips of strips[strip, d]
template <class G, class A>
__global__ void __launch_bounds__(32 * kStripWarps)
    add_strips_kernel(G* to, bool adds, const A* strips, int64_t count, int64_t D) {
  __shared__ A shared[kStripWarps][33];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t d = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  A sum = 0;
  if (d < D) {
#pragma unroll 8
    for (int64_t strip = warp; strip < count; strip += kStripWarps) sum += strips[strip * D + d];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  // Each warp adds up the column of its own number.
  const A total = warp_sum(shared[lane][warp]);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + warp;
  if (lane == 0 && column < D) to[column] = convert<G>((adds ? convert<A>(to[column]) : A(0)) + total);
}

template <class A>
void add_strips(Stream& stream, const Tensor& to, Write write, const Strips<A>& from) {
  dispatch_device(to.dtype(), [&]<class G>() {
    add_strips_kernel<<<static_cast<unsigned>((from.D + 31) / 32), 32 * kStripWarps, 0, native(stream)>>>(
        ptr<G>(to), write == Write::accumulate, static_cast<const A*>(from.strips), from.count, from.D);
  });
}

}  // namespace witan::kernels::cuda
