#include "witan/base/error.h"
#include "witan/comm/cuda/kernels.h"
#include "witan/comm/cuda/reduce_tree.cuh"

namespace witan::cuda {
namespace {

using kernels::cuda::load_pack;
using kernels::cuda::store_pack;

constexpr int kThreads = 256;

template <class T, class Op, int N, int kParts>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(T* __restrict__ out, const T* __restrict__ parts, int64_t stride, int count, int64_t packs) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < packs; i += int64_t{gridDim.x} * kThreads) {
    const auto load = [&](int part) { return load_pack<T, N>(parts + part * stride + i * N); };
    store_pack<T, N>(out + i * N, reduce_in_tree<T, Op, N, kParts>(count, load));
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

}  // namespace

// Whole packs, then what is left of them.
void reduce_parts(Stream& stream, std::byte* out, const std::byte* parts, int64_t stride, int count, int64_t elements,
                  DType dtype, Reduce reduce) {
  require<ShapeError>(count <= kMostParts, "a reduction on GPUs takes up to ", kMostParts, " ranks, got ", count);
  with_reduction(dtype, reduce, [&]<class T, class Op>() {
    constexpr int N = kernels::cuda::kPack<T>;
    T* to = reinterpret_cast<T*>(out);
    const T* from = reinterpret_cast<const T*>(parts);
    const bool aligned = kernels::cuda::packs<T>(to, N) && kernels::cuda::packs<T>(from, stride);
    const int64_t packs = aligned ? elements / N : 0, done = packs * N;
    launch_for<T, Op, N>(stream, to, from, stride, count, packs);
    launch_for<T, Op, 1>(stream, to + done, from + done, stride, count, elements - done);
  });
  stream.queue()->check("reduce_parts");
}

}  // namespace witan::cuda
