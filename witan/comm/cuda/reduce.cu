#include "witan/comm/cuda/reduce.h"
#include "witan/kernels/cuda/common/common.cuh"

namespace witan::cuda {
namespace {

using kernels::cuda::convert;
using kernels::cuda::load_pack;
using kernels::cuda::Pack;
using kernels::cuda::store_pack;

// Integers wrap as their unsigned types do.
template <class T>
struct SumOf {
  using type = kernels::cuda::Acc<T>;
};
template <>
struct SumOf<int32_t> {
  using type = uint32_t;
};
template <>
struct SumOf<int64_t> {
  using type = uint64_t;
};

struct Add {
  template <class T>
  using Wide = typename SumOf<T>::type;
  template <class A>
  __device__ static A combine(A a, A b) {
    return a + b;
  }
};
struct Largest {
  template <class T>
  using Wide = std::conditional_t<std::is_integral_v<T>, T, kernels::cuda::Acc<T>>;
  template <class A>
  __device__ static A combine(A a, A b) {
    return a > b || a != a ? a : b;  // a NaN on either side wins
  }
};

constexpr int kThreads = 256;
constexpr int kLevels = 9;  // of a tree over kMostParts
static_assert(kMostParts <= 1 << (kLevels - 1));

// Whole subtrees of 1, 2, 4 … parts wait in sums[level] as the digits of a binary counter, until a second one of their
// size comes. What is left in the end is joined from the smallest on: the tree's right edge.
template <class T, class Op, int N, int kParts>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(T* __restrict__ out, const T* __restrict__ parts, int64_t stride, int count, int64_t packs) {
  using A = typename Op::template Wide<T>;
  const int n = kParts > 0 ? kParts : count;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < packs; i += int64_t{gridDim.x} * kThreads) {
    A sums[kLevels][N];
#pragma unroll(kParts > 0 ? kParts : 1)
    for (int part = 0; part < n; ++part) {
      const Pack<T, N> in = load_pack<T, N>(parts + part * stride + i * N);
      A value[N];
#pragma unroll
      for (int j = 0; j < N; ++j) value[j] = convert<A>(in.at[j]);
      int level = 0;
#pragma unroll
      for (; level < kLevels && ((part >> level) & 1) != 0; ++level)
#pragma unroll
        for (int j = 0; j < N; ++j) value[j] = Op::combine(sums[level][j], value[j]);
#pragma unroll
      for (int j = 0; j < N; ++j) sums[level][j] = value[j];
    }
    A total[N];
    bool begun = false;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if (((n >> level) & 1) == 0) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) total[j] = begun ? Op::combine(sums[level][j], total[j]) : sums[level][j];
      begun = true;
    }
    Pack<T, N> result;
#pragma unroll
    for (int j = 0; j < N; ++j) result.at[j] = convert<T>(total[j]);
    store_pack<T, N>(out + i * N, result);
  }
}

template <class T, class Op, int N, int kParts>
void launch(Stream& stream, T* out, const T* parts, int64_t stride, int count, int64_t packs) {
  if (packs == 0) return;
  const unsigned blocks = kernels::cuda::blocks_for(stream, (packs + kThreads - 1) / kThreads);
  reduce_kernel<T, Op, N, kParts><<<blocks, kThreads, 0, native(stream)>>>(out, parts, stride, count, packs);
}

template <class T, class Op, int N>
void launch_for(Stream& stream, T* out, const T* parts, int64_t stride, int count, int64_t packs) {
  switch (count) {
    case 2:
      return launch<T, Op, N, 2>(stream, out, parts, stride, count, packs);
    case 4:
      return launch<T, Op, N, 4>(stream, out, parts, stride, count, packs);
    case 8:
      return launch<T, Op, N, 8>(stream, out, parts, stride, count, packs);
    default:
      return launch<T, Op, N, 0>(stream, out, parts, stride, count, packs);
  }
}

// Whole packs, then what is left of them.
template <class T, class Op>
void reduce(Stream& stream, T* out, const T* parts, int64_t stride, int count, int64_t elements) {
  constexpr int N = kernels::cuda::kPack<T>;
  const bool aligned = kernels::cuda::packs<T>(out, N) && kernels::cuda::packs<T>(parts, stride);
  const int64_t packs = aligned ? elements / N : 0, done = packs * N;
  launch_for<T, Op, N>(stream, out, parts, stride, count, packs);
  launch_for<T, Op, 1>(stream, out + done, parts + done, stride, count, elements - done);
}

template <class T>
void reduce_as(Stream& stream, std::byte* out, const std::byte* parts, int64_t stride, int count, int64_t elements,
               Reduce how) {
  T* to = reinterpret_cast<T*>(out);
  const T* from = reinterpret_cast<const T*>(parts);
  if (how == Reduce::sum) return reduce<T, Add>(stream, to, from, stride, count, elements);
  reduce<T, Largest>(stream, to, from, stride, count, elements);
}

}  // namespace

void reduce_parts(Stream& stream, std::byte* out, const std::byte* parts, int64_t stride, int count, int64_t elements,
                  DType dtype, Reduce reduce) {
  require<ShapeError>(count <= kMostParts, "a reduction on GPUs takes up to ", kMostParts, " ranks, got ", count);
  switch (dtype) {
    case DType::i32:
      reduce_as<int32_t>(stream, out, parts, stride, count, elements, reduce);
      break;
    case DType::i64:
      reduce_as<int64_t>(stream, out, parts, stride, count, elements, reduce);
      break;
    default:
      kernels::cuda::dispatch_device(
          dtype, [&]<class T>() { reduce_as<T>(stream, out, parts, stride, count, elements, reduce); });
  }
  stream.queue()->check("reduce_parts");
}

}  // namespace witan::cuda
