#include "witan/kernels/pointwise/cuda/map.cuh"
#include "witan/kernels/pointwise/cuda/philox.cuh"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::kernels::cuda {
namespace {

// kernels::DroppedPart on the device.
struct Part {
  int64_t length, whole, first, split, second;

  explicit Part(const DroppedPart& part)
      : length(part.length),
        whole(part.whole),
        first(part.runs.first),
        split(part.runs.split),
        second(part.runs.second) {}

  __device__ __forceinline__ int64_t element(int64_t i) const {
    if (length == 0) return i;
    const int64_t row = i / length, at = i - row * length;
    return row * whole + (at < split ? first + at : second + (at - split));
  }
};

// The factor of element e, drawn individually.
template <class A>
__device__ A factor_of(const DropoutMask& mask, int64_t e) {
  const uint4 words = mask.block(static_cast<uint64_t>(e) / 4);
  const int word = static_cast<int>(e % 4);
  return mask.factor<A>(word == 0 ? words.x : word == 1 ? words.y : word == 2 ? words.z : words.w);
}

// The factors of the N elements from i on; N and i are multiples of 4.
template <int N, class A>
__device__ __forceinline__ void draw(A (&factors)[N], const DropoutMask& mask, const Part& part, int64_t i) {
#pragma unroll
  for (int j = 0; j < N; j += 4) {
    const uint4 words = mask.block(static_cast<uint64_t>(part.element(i + j)) / 4);
    factors[j] = mask.factor<A>(words.x), factors[j + 1] = mask.factor<A>(words.y);
    factors[j + 2] = mask.factor<A>(words.z), factors[j + 3] = mask.factor<A>(words.w);
  }
}

template <int N, class T>
__global__ void __launch_bounds__(kMapThreads)
    dropout_kernel(T* y, const T* x, int64_t elements, DropoutDraw how, Part part) {
  using A = Acc<T>;
  Pack<T, N> in[kMapPacks];
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int64_t i = map_element<N>(k);
    if (i + N <= elements)
      in[k] = load_pack<T, N>(x + i);
    else
      in[k] = {};
  }
  __shared__ DropoutMask shared;
  if (threadIdx.x == 0) shared = how.mask();
  __syncthreads();
  const DropoutMask mask = shared;
#pragma unroll
  for (int k = 0; k < kMapPacks; ++k) {
    const int64_t i = map_element<N>(k);
    if (i + N > elements) break;
    A factors[N];
    if constexpr (N == 1)
      factors[0] = factor_of<A>(mask, part.element(i));
    else
      draw<N>(factors, mask, part, i);
#pragma unroll
    for (int j = 0; j < N; ++j) in[k].at[j] = convert<T>(convert<A>(in[k].at[j]) * factors[j]);
    store_pack<T, N>(y + i, in[k]);
  }
  const int64_t i = map_rest<N>(elements);
  if (i < elements) y[i] = convert<T>(convert<A>(x[i]) * factor_of<A>(mask, part.element(i)));
}

constexpr int kThreads = 256, kElements = 4;  // per thread

// A thread's elements are adjacent, and mostly in one block of random words.
template <class T>
__global__ void __launch_bounds__(kThreads)
    jitter_kernel(T* y, const T* x, int64_t elements, DropoutDraw draw, DroppedPart part, Jitter noise) {
  using A = Acc<T>;
  __shared__ DropoutMask shared;
  if (threadIdx.x == 0) shared = draw.mask();
  __syncthreads();
  const DropoutMask words = shared;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements;
  uint64_t block = UINT64_MAX;
  uint4 drawn{};
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (first + i >= elements) return;
    int64_t e = first + i;
    if (part.length > 0) {
      const int64_t row = e / part.length, at = e - row * part.length;
      e = row * part.whole + (at < part.runs.split ? part.runs.first + at : part.runs.second + (at - part.runs.split));
    }
    if (static_cast<uint64_t>(e) / 4 != block) drawn = words.block(block = static_cast<uint64_t>(e) / 4);
    const int w = static_cast<int>(e % 4);
    const A u = A(w == 0 ? drawn.x : w == 1 ? drawn.y : w == 2 ? drawn.z : drawn.w) * A(0x1p-32);
    const A in = convert<A>(x[first + i]), n = A(noise.eps) * (2 * u - 1);
    y[first + i] = convert<T>(noise.added ? in + n : in * (1 + n));
  }
}

}  // namespace

void dropout(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& how) {
  const int64_t n = y.elements();
  if (n == 0) return;
  const DropoutDraw drawn(how);
  const Part part(how.part);
  dispatch_device(y.dtype(), [&]<class T>() {
    constexpr int N = std::max(4, kPack<T>);
    T* const out = ptr<T>(y);
    const T* const in = ptr<const T>(x);
    if (packs<T>(out, N, N) && packs<T>(in, N, N))
      dropout_kernel<N><<<map_blocks(n, N), kMapThreads, 0, native(stream)>>>(out, in, n, drawn, part);
    else
      dropout_kernel<1><<<map_blocks(n, 1), kMapThreads, 0, native(stream)>>>(out, in, n, drawn, part);
  });
}

void jitter(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& where, const Jitter& noise) {
  const int64_t n = y.elements(), per_block = kThreads * kElements;
  if (n == 0) return;
  dispatch_device(y.dtype(), [&]<class T>() {
    jitter_kernel<T><<<static_cast<unsigned>((n + per_block - 1) / per_block), kThreads, 0, native(stream)>>>(
        ptr<T>(y), ptr<const T>(x), n, DropoutDraw(where), where.part, noise);
  });
}

}  // namespace witan::kernels::cuda
