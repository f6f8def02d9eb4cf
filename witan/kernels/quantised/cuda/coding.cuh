// How the codes of a format are scaled, in the CUDA twins.
#pragma once

#include <cuda_fp8.h>

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/quantised/rules.h"

namespace witan::kernels::cuda {

template <WeightFormat kFormat>
struct Coding {
  static constexpr int kBits = rules::kTraitsOf<kFormat>.bits;
  static constexpr int kGroup = rules::kTraitsOf<kFormat>.group;
  // A scale, and an offset where there is one.
  using Scale = std::conditional_t<kFormat == WeightFormat::mxfp4, __nv_bfloat16,
                                   std::conditional_t<kFormat == WeightFormat::int4, float2, float>>;

  // The value of a code that stands for `number`.
  __device__ static __forceinline__ float value(float number, Scale scale) {
    if constexpr (kFormat == WeightFormat::int4)
      return __fmaf_rn(number, scale.x, scale.y);
    else
      return number * convert<float>(scale);
  }
};

// The numbers of two codes in e4m3, the first in the lower byte.
__device__ __forceinline__ float2 float8_pair(uint32_t codes) {
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3)));
}

}  // namespace witan::kernels::cuda
