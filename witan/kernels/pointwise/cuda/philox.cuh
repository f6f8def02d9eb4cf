// The masks of kernels/pointwise/dropout.h on the device, with the bits of base/numbers/rng.h. The iteration is read on
// the device too, so that a captured step draws new masks in every replay.
#pragma once

#include <cmath>

#include "witan/base/numbers/rng.h"
#include "witan/kernels/common/cuda/common.cuh"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::kernels::cuda {

// Philox4x32-10: the four words of block `index` of `stream` under `key`.
__device__ __forceinline__ uint4 philox(uint64_t key, uint64_t stream, uint64_t index) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint4 c{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(stream),
          static_cast<uint32_t>(stream >> 32)};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c.x, p1 = uint64_t{0xCD9E8D57u} * c.z;
    c = {static_cast<uint32_t>(p1 >> 32) ^ c.y ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c.w ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// The mask of one call, on the device.
struct DropoutMask {
  uint64_t key, site;
  uint32_t least;  // words below it drop their element
  double kept;     // 1 / (1 - p)

  // The words of elements 4 index .. 4 index + 3.
  __device__ __forceinline__ uint4 block(uint64_t index) const { return philox(key, site, index); }
  template <class A>
  __device__ __forceinline__ A factor(uint32_t word) const {
    return word >= least ? static_cast<A>(kept) : A(0);
  }
};

// A call's dropout as a kernel argument: its configuration, and the address of the iteration.
struct DropoutDraw {
  const double* step = nullptr;
  uint64_t seed = 0, stream = 0, micro_batch = 0, site = 0;
  uint32_t least = 0;
  double kept = 1;

  DropoutDraw() = default;
  explicit DropoutDraw(const Dropout& how)
      : step(ptr<double>(how.step)),
        seed(how.seed),
        stream(Philox::stream_of("dropout")),
        micro_batch(static_cast<uint64_t>(how.micro_batch)),
        site(how.site),
        least(static_cast<uint32_t>(std::min(std::nearbyint(how.p * 0x1p32), 0x1p32 - 1))),
        kept(1 / (1 - how.p)) {}

  __device__ __forceinline__ DropoutMask mask() const {
    const auto first = [](uint4 words) { return (uint64_t{words.y} << 32) | words.x; };
    const auto iteration = static_cast<uint64_t>(step[step_value::iteration]);
    const uint64_t of_step = first(philox(seed, stream, iteration));
    return {first(philox(of_step, 0, micro_batch)), site, least, kept};
  }
};

}  // namespace witan::kernels::cuda
