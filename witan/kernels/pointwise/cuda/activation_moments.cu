#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/pointwise/activation_moments.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunkElements =
    1 << 14;  // per block: small enough for the blocks to fill a GPU, and large enough for one block to add them up

struct Moments {
  double squares = 0, largest = 0, zeros = 0, elements = 0;
};

// Tells which elements belong to padding rows, which the moments leave out.
struct Rows {
  const int32_t* sequence_ids;  // per row; null: no padding
  int64_t width;

  __device__ __forceinline__ bool padding(int64_t element) const {
    return sequence_ids != nullptr && sequence_ids[element / width] < 0;
  }
};

__device__ __forceinline__ void take(Moments& moments, double value) {
  moments.squares += value * value;
  moments.largest = fmax(moments.largest, fabs(value));
  moments.zeros += value == 0;
  moments.elements += 1;
}

template <class T>
__device__ __forceinline__ double element(T x, T added) {
  return convert<double>(convert<T>(convert<Acc<T>>(x) + convert<Acc<T>>(added)));
}

// The moments over all threads of the block, on thread 0.
__device__ __forceinline__ Moments block_moments(const Moments& own) {
  __shared__ double of_warps[kThreads / 32];
  return {block_sum(own.squares, of_warps), block_max(own.largest, of_warps), block_sum(own.zeros, of_warps),
          block_sum(own.elements, of_warps)};
}

// One chunk per block, in packs of N elements that each lie in one row, and the elements after the last whole pack.
// `added` may be null.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    chunk_moments_kernel(Moments* chunks, const T* x, const T* added, int64_t elements, Rows rows) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kChunkElements;
  const auto count = static_cast<int>(min(kChunkElements, elements - begin));
  const int packs = count / N;
  Moments own;
  for (int i = threadIdx.x; i < packs; i += kThreads) {
    if (rows.padding(begin + i * N)) continue;
    const auto in = load_pack<T, N>(x + begin + i * N);
    if (added != nullptr) {
      const auto more = load_pack<T, N>(added + begin + i * N);
#pragma unroll
      for (int k = 0; k < N; ++k) take(own, element(in.at[k], more.at[k]));
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) take(own, convert<double>(in.at[k]));
    }
  }
  for (int i = packs * N + threadIdx.x; i < count; i += kThreads)
    if (!rows.padding(begin + i))
      take(own, added != nullptr ? element(x[begin + i], added[begin + i]) : convert<double>(x[begin + i]));
  const Moments all = block_moments(own);
  if (threadIdx.x == 0) chunks[blockIdx.x] = all;
}

__global__ void __launch_bounds__(kThreads) total_moments_kernel(double* out, const Moments* chunks, int64_t count) {
  Moments own;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    own.squares += chunks[i].squares;
    own.largest = fmax(own.largest, chunks[i].largest);
    own.zeros += chunks[i].zeros;
    own.elements += chunks[i].elements;
  }
  const Moments all = block_moments(own);
  if (threadIdx.x != 0) return;
  out[activation_moment::square_sum] = all.squares;
  out[activation_moment::largest] = isnan(all.squares) ? all.squares : all.largest;  // a maximum ignores NaN
  out[activation_moment::zeros] = all.zeros;
  out[activation_moment::elements] = all.elements;
}

}  // namespace

void activation_moments(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& added,
                        const Tensor& sequence_ids) {
  const int64_t elements = x.elements(), count = (elements + kChunkElements - 1) / kChunkElements;
  auto* const chunks =
      reinterpret_cast<Moments*>(stream.scratch(std::max<int64_t>(count, 1) * static_cast<int64_t>(sizeof(Moments))));
  const Rows rows{ptr<const int32_t>(sequence_ids), x.shape().last()};
  if (count > 0)
    dispatch_device(x.dtype(), [&]<class T>() {
      const auto launch = [&]<int N>() {
        chunk_moments_kernel<T, N><<<static_cast<unsigned>(count), kThreads, 0, native(stream)>>>(
            chunks, ptr<const T>(x), ptr<const T>(added), elements, rows);
      };
      // Chunks are whole packs, so that alignment depends only on the tensors' own addresses.
      const bool of_one_row = !sequence_ids.defined() || rows.width % kPack<T> == 0;
      if (of_one_row && packs<T>(x.raw(), kPack<T>) && (!added.defined() || packs<T>(added.raw(), kPack<T>)))
        launch.template operator()<kPack<T>>();
      else
        launch.template operator()<1>();
    });
  total_moments_kernel<<<1, kThreads, 0, native(stream)>>>(ptr<double>(out), chunks, count);
}

}  // namespace witan::kernels::cuda
