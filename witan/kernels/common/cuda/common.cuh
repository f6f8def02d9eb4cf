// Shared by the CUDA twins: element types, 16-byte accesses, reductions in a fixed order, and launch shapes.
//
// Every twin runs on one stream, without host synchronisation or allocation, and can be captured into a graph. Sums are
// in float32 or wider (float64 for float64), in an order that only shapes decide, without floating-point atomics, so
// that a repeated call gives the same bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <type_traits>

#include "witan/tensor/cuda/stream.h"
#include "witan/tensor/tensor.h"

namespace witan::kernels::cuda {

using witan::cuda::native;

// Calls body.template operator()<T>() with the device type of a floating dtype: float, __nv_bfloat16, __half or double.
template <class Body>
decltype(auto) dispatch_device(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body.template operator()<float>();
    case DType::bf16:
      return body.template operator()<__nv_bfloat16>();
    case DType::f16:
      return body.template operator()<__half>();
    case DType::f64:
      return body.template operator()<double>();
    default:
      throw ShapeError(cat("GPU kernels compute in float32, bfloat16, float16 or float64, not in ", name_of(dtype)));
  }
}

// Calls body.template operator()<T>() with a 16-bit type: __nv_bfloat16 or __half.
template <class Body>
decltype(auto) dispatch_half(DType dtype, Body&& body) {
  if (dtype == DType::f16) return body.template operator()<__half>();
  assert(dtype == DType::bf16);
  return body.template operator()<__nv_bfloat16>();
}

// Calls body.template operator()<A>() with an accumulator type: float or double.
template <class Body>
decltype(auto) dispatch_accumulator(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f32:
      return body.template operator()<float>();
    case DType::f64:
      return body.template operator()<double>();
    default:
      throw ShapeError(cat("accumulators are float32 or float64, not ", name_of(dtype)));
  }
}

// Calls body.template operator()<T, G>() with the device types of values and of their gradients. For float16 values G
// is float for parameters' gradients, and __half for gradients that are passed to another op.
template <class Body>
void dispatch_with_gradient(DType value, DType gradient, Body&& body) {
  dispatch_device(value, [&]<class T>() {
    dispatch_device(gradient, [&]<class G>() {
      constexpr bool kHalves = std::is_same_v<T, __half>, kHalfGradients = std::is_same_v<G, __half>;
      if constexpr (kHalves ? kHalfGradients || std::is_same_v<G, float> : !kHalfGradients)
        body.template operator()<T, G>();
      else
        throw ShapeError(cat("GPU kernels have no gradients in ", name_of(gradient), " of values in ", name_of(value)));
    });
  });
}

// The address of a tensor's first element, as its device type (unchecked: the caller has dispatched on the dtype).
template <class T>
T* ptr(const Tensor& tensor) {
  return tensor.defined() ? reinterpret_cast<T*>(tensor.raw()) : nullptr;
}

// The type in which elements of type T are summed.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Acc = typename AccumulatorOf<T>::type;

template <class To, class From>
__device__ __forceinline__ To convert(From value) {
  if constexpr (std::is_same_v<To, From>)
    return value;
  else if constexpr (std::is_same_v<From, __nv_bfloat16>)
    return convert<To>(__bfloat162float(value));
  else if constexpr (std::is_same_v<From, __half>)
    return convert<To>(__half2float(value));
  else if constexpr (std::is_same_v<To, __nv_bfloat16>)
    return __float2bfloat16_rn(static_cast<float>(value));
  else if constexpr (std::is_same_v<To, __half>)
    return __float2half_rn(static_cast<float>(value));
  else
    return static_cast<To>(value);
}

// Packs two 16-bit numbers into one register, the first in the lower half.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float first, float second) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    static_assert(std::is_same_v<T, __nv_bfloat16>);
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}
template <class T>
__device__ __forceinline__ float2 unpack_pair(uint32_t pair) {
  if constexpr (std::is_same_v<T, __half>)
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  else
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}

// N elements that move in one access of at most 16 bytes; addresses must be multiples of its size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <class T, int N>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <class T, int N>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Whether a pointer and a row length allow accesses in packs of N elements of T.
template <class T>
bool packs(const void* pointer, int64_t row, int N = kPack<T>) {
  return row % N == 0 && reinterpret_cast<uintptr_t>(pointer) % (sizeof(T) * static_cast<size_t>(N)) == 0;
}

template <class A>
__device__ __forceinline__ A warp_sum(A value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}
template <class A>
__device__ __forceinline__ A warp_max(A value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, apart));
  return value;
}

// The sum over a block of whole warps, which all threads get. `shared` holds one value per warp. The function begins
// and ends with a barrier, so that it can be called again at once.
template <class A>
__device__ __forceinline__ A block_sum(A value, A* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
  value = warp_sum(value);
  __syncthreads();
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  A sum = 0;
  for (int i = 0; i < warps; ++i) sum += shared[i];
  __syncthreads();
  return sum;
}
template <class A>
__device__ __forceinline__ A block_max(A value, A* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
  value = warp_max(value);
  __syncthreads();
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  A largest = shared[0];
  for (int i = 1; i < warps; ++i) largest = max(largest, shared[i]);
  __syncthreads();
  return largest;
}

inline int multiprocessors(Stream& stream) {
  return witan::cuda::properties(stream.device().index).multiprocessors;
}
// Whether kernels for Hopper may be launched: compiled for other GPUs, their bodies are empty.
inline bool is_hopper(Stream& stream) {
  return witan::cuda::properties(stream.device().index).hopper_kernels;
}
// The number of blocks for `items` units of work, at most `per_sm` per multiprocessor; kernels stride over the rest.
inline unsigned blocks_for(Stream& stream, int64_t items, int per_sm = 8) {
  return static_cast<unsigned>(std::clamp<int64_t>(items, 1, static_cast<int64_t>(multiprocessors(stream)) * per_sm));
}

// Calls write(i, read(0) + … + read(i - 1)) for i < n, with the calling warp; returns the sum of all.
template <class Read, class Write>
__device__ __forceinline__ int64_t warp_exclusive_scan(int n, const Read& read, const Write& write) {
  const int lane = threadIdx.x % 32;
  int64_t before = 0;
  for (int first = 0; first < n; first += 32) {
    const int i = first + lane;
    const int64_t value = i < n ? read(i) : 0;
    int64_t through = value;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
      const int64_t left = __shfl_up_sync(0xffffffffu, through, apart);
      if (lane >= apart) through += left;
    }
    if (i < n) write(i, before + through - value);
    before += __shfl_sync(0xffffffffu, through, 31);
  }
  return before;
}

}  // namespace witan::kernels::cuda
