// Each thread rotates one pack of pairs of one token in every head, so that sines are computed once and never stored.
// The workspace of kernels/attention/rope.h is not used.
#include "witan/kernels/attention/cuda/rope.cuh"
#include "witan/kernels/common/cuda/common.cuh"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct RopeShape {
  int64_t tokens;
  int heads, hd, pairs;
  int first, copied;     // channels at which those that are rotated, and those that are copied, begin
  int turning, copying;  // packs per token and head that are rotated, and that are copied
  double cosine, sine;   // their multipliers
};

// Reduces the angle to one turn in float64; the remainder is exact enough for float32 sines.
__device__ __forceinline__ void sine_cosine(double turns, float& sine, float& cosine) {
  sincospif(static_cast<float>(2 * (turns - rint(turns))), &sine, &cosine);
}
__device__ __forceinline__ void sine_cosine(double turns, double& sine, double& cosine) {
  sincospi(2 * (turns - rint(turns)), &sine, &cosine);
}

// Rotates pairs first .. first + P - 1 of one token.
template <class T, int P, bool kInterleaved>
__device__ __forceinline__ void turn(T* y, const T* x, double position, const double* frequency, int first,
                                     const RopeShape& s) {
  Acc<T> sine[P], cosine[P];
#pragma unroll
  for (int i = 0; i < P; ++i) {
    sine_cosine(position * frequency[first + i], sine[i], cosine[i]);
    cosine[i] *= static_cast<Acc<T>>(s.cosine);
    sine[i] *= static_cast<Acc<T>>(s.sine);
  }
#pragma unroll 4
  for (int head = 0; head < s.heads; ++head, x += s.hd, y += s.hd) {
    T a[P], b[P];
    load_pairs(a, b, x, first, s.pairs, kInterleaved);
#pragma unroll
    for (int i = 0; i < P; ++i) {
      const auto u = convert<Acc<T>>(a[i]), v = convert<Acc<T>>(b[i]);
      a[i] = convert<T>(u * cosine[i] - v * sine[i]);
      b[i] = convert<T>(u * sine[i] + v * cosine[i]);
    }
    store_pairs(y, a, b, first, s.pairs, kInterleaved);
  }
}

// x, y [tokens, heads, hd]. P: pairs per pack; C: elements per copied pack.
template <class T, int P, int C, bool kInterleaved>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(T* __restrict__ y, const T* __restrict__ x, const int32_t* __restrict__ positions, RopeShape s,
                const __grid_constant__ Frequencies frequencies) {
  __shared__ double frequency[Frequencies::kMost];  // in shared memory: lanes read different ones, which constant
                                                    // memory would serialise
  for (int i = threadIdx.x; i < s.pairs; i += kThreads) frequency[i] = frequencies.at[i];
  __syncthreads();
  const int packs = s.turning + s.copying;
  const int64_t items = s.tokens * packs, stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; item < items; item += stride) {
    const int64_t token = item / packs, row = token * s.heads * s.hd;
    const int pack = static_cast<int>(item - token * packs);
    if (pack < s.turning) {
      turn<T, P, kInterleaved>(y + row + s.first, x + row + s.first, positions[token], frequency, pack * P, s);
    } else {
      const int64_t at = row + s.copied + (pack - s.turning) * C;
      for (int head = 0; head < s.heads; ++head)
        store_pack(y + at + head * s.hd, load_pack<T, C>(x + at + head * s.hd));
    }
  }
}

template <class T, int P, int C, bool kInterleaved>
void launch(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& positions, RopeShape s,
            const Frequencies& frequencies) {
  s.turning = s.pairs / P, s.copying = (s.hd - 2 * s.pairs) / C;
  const int64_t items = s.tokens * (s.turning + s.copying);
  rope_kernel<T, P, C, kInterleaved>
      <<<blocks_for(stream, (items + kThreads - 1) / kThreads), kThreads, 0, native(stream)>>>(
          ptr<T>(y), ptr<T>(x), ptr<int32_t>(positions), s, frequencies);
}

template <class T, bool kInterleaved>
void rotate(Stream& stream, const Tensor& y, const Tensor& x, const Tensor& positions, const RopeShape& s,
            const Frequencies& frequencies) {
  constexpr int C = kPack<T>, P = kInterleaved ? C / 2 : C;
  if (s.pairs % P == 0 && s.first % C == 0 && packs<T>(x.raw(), s.hd) && packs<T>(y.raw(), s.hd))
    launch<T, P, C, kInterleaved>(stream, y, x, positions, s, frequencies);
  else
    launch<T, 1, 1, kInterleaved>(stream, y, x, positions, s, frequencies);
}

}  // namespace

void rope(Stream& stream, const Tensor& y, const Tensor&, const Tensor& x, const Tensor& positions,
          const RopeArgs& args) {
  if (x.elements() == 0) return;
  const int64_t pairs = args.dims / 2;
  assert(pairs <= Frequencies::kMost);
  constexpr double kTurn = 6.283185307179586476925;
  const Frequencies turns(rope_frequencies(args), 0, 1 / kTurn);
  const double magnitude = args.scaling.magnitude;
  const RopeShape shape{positions.elements(),
                        static_cast<int>(x.size(2)),
                        static_cast<int>(x.size(3)),
                        static_cast<int>(pairs),
                        static_cast<int>(args.tail ? x.size(3) - args.dims : 0),
                        static_cast<int>(args.tail ? 0 : args.dims),
                        0,
                        0,
                        magnitude,
                        args.inverse ? -magnitude : magnitude};
  dispatch_device(x.dtype(), [&]<class T>() {
    if (args.interleaved)
      rotate<T, true>(stream, y, x, positions, shape, turns);
    else
      rotate<T, false>(stream, y, x, positions, shape, turns);
  });
}

}  // namespace witan::kernels::cuda
