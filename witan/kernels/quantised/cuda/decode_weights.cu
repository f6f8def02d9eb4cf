#include <cuda_fp8.h>

#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/quantised/rules.h"

namespace witan::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kThreadPacks = 4;

// An unsigned integer of so many bytes.
template <int kBytes>
using Bits =
    std::conditional_t<kBytes == 8, uint64_t,
                       std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>;

template <WeightFormat kFormat>
__device__ const std::array<float, 16> kDeviceValues = rules::kCodeValues<kFormat>;

// Reads the scale of a group, and decodes N of its codes. Lane i of a warp holds the value of the 4-bit codes i and
// i - 16, and a shuffle looks values up without bank conflicts: all lanes must call.
template <WeightFormat kFormat>
struct Decoder {
  static constexpr int kBits = 4;
  static constexpr int kGroup = kFormat == WeightFormat::nf4 ? 64 : kFormat == WeightFormat::mxfp4 ? 32 : 128;
  using Scale = std::conditional_t<kFormat == WeightFormat::mxfp4, __nv_bfloat16,
                                   std::conditional_t<kFormat == WeightFormat::int4, float2, float>>;

  float of_lane = (&kDeviceValues<kFormat>[0])[threadIdx.x % 16];

  template <int N>
  __device__ __forceinline__ void operator()(float (&values)[N], uint32_t codes, Scale scale) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float number = __shfl_sync(0xffffffffu, of_lane, static_cast<int>(codes >> (4 * i)));
      if constexpr (kFormat == WeightFormat::int4)
        values[i] = __fmaf_rn(number, scale.x, scale.y);
      else
        values[i] = number * convert<float>(scale);
    }
  }
};

template <>
struct Decoder<WeightFormat::fp8> {
  static constexpr int kBits = 8, kGroup = 128;
  using Scale = float;

  template <int N, class Word>
  __device__ __forceinline__ void operator()(float (&values)[N], Word codes, float scale) const {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(codes >> (8 * i));
      const float2 numbers = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
      values[i] = numbers.x * scale;
      values[i + 1] = numbers.y * scale;
    }
  }
};

template <class T, int N>
__device__ __forceinline__ void store_values(T* to, const float (&values)[N]) {
  if constexpr (sizeof(T) == 2) {
    Pack<uint32_t, N / 2> pairs;
#pragma unroll
    for (int i = 0; i < N; i += 2) pairs.at[i / 2] = pack_pair<T>(values[i], values[i + 1]);
    store_pack<uint32_t, N / 2>(reinterpret_cast<uint32_t*>(to), pairs);
  } else {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.at[i] = convert<T>(values[i]);
    store_pack<T, N>(to, pack);
  }
}

// A pack is 16 bytes of the output. Threads after the last one decode it too, and do not write.
template <class Decoder, class T, class Word>
__global__ void __launch_bounds__(kThreads)
    decode_kernel(T* out, const Word* codes, const typename Decoder::Scale* scales, int64_t packs) {
  constexpr int N = kPack<T>;
  const Decoder decode;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kThreadPacks + threadIdx.x;
  Word in[kThreadPacks];
  typename Decoder::Scale by[kThreadPacks];
#pragma unroll
  for (int k = 0; k < kThreadPacks; ++k) {
    const int64_t pack = min(first + k * kThreads, packs - 1);
    in[k] = codes[pack];
    by[k] = scales[static_cast<uint64_t>(pack) / (Decoder::kGroup / N)];
  }
#pragma unroll
  for (int k = 0; k < kThreadPacks; ++k) {
    const int64_t pack = first + k * kThreads;
    float values[N];
    decode(values, in[k], by[k]);
    if (pack < packs) store_values(out + pack * N, values);
  }
}

template <WeightFormat kFormat>
void decode(Stream& stream, const Codes& codes, const Tensor& out) {
  using Rule = Decoder<kFormat>;
  dispatch_device(out.dtype(), [&]<class T>() {
    using Word = const Bits<kPack<T> * Rule::kBits / 8>;
    assert(Rule::kGroup == traits_of(kFormat).group && packs<T>(ptr<T>(out), Rule::kGroup));
    const int64_t count = out.elements() / kPack<T>, of_block = kThreads * kThreadPacks;
    if (count == 0) return;
    decode_kernel<Rule><<<static_cast<unsigned>((count + of_block - 1) / of_block), kThreads, 0, native(stream)>>>(
        ptr<T>(out), ptr<Word>(codes.words), ptr<const typename Rule::Scale>(codes.scales), count);
  });
}

}  // namespace

void decode_weights(Stream& stream, const Codes& codes, Tensor out) {
  const WeightFormatTraits& traits = traits_of(codes.format);
  assert(codes.words.contiguous() && codes.scales.contiguous() && out.contiguous());
  assert(out.elements() == codes.elements() && codes.scales.elements() == traits.numbers(out.elements()));
  switch (codes.format) {
    case WeightFormat::nf4:
      return decode<WeightFormat::nf4>(stream, codes, out);
    case WeightFormat::mxfp4:
      return decode<WeightFormat::mxfp4>(stream, codes, out);
    case WeightFormat::int4:
      return decode<WeightFormat::int4>(stream, codes, out);
    case WeightFormat::fp8:
      return decode<WeightFormat::fp8>(stream, codes, out);
    case WeightFormat::none:
      break;
  }
  assert(false && "weights that are not coded have nothing to decode");
}

}  // namespace witan::kernels::cuda
