// The random words of pointwise/dropout.h on the CPU. Masks are drawn many Philox blocks at a time, so that the
// compiler vectorises the rounds, which are the same as in base/numbers/rng.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "witan/base/numbers/rng.h"
#include "witan/kernels/pointwise/dropout.h"

namespace witan::kernels::cpu {

class DropoutMask {
 public:
  // Reads the iteration.
  explicit DropoutMask(const Dropout& how);

  // factors[w * N + i] = the factor of element w of block index[i]: 0 or 1 / (1 - p).
  template <int N, class A>
  void draw(A* __restrict factors, const std::array<uint64_t, N>& index) const {
    const A kept = A(kept_);
    const uint32_t low = static_cast<uint32_t>(site_), high = static_cast<uint32_t>(site_ >> 32), least = least_;
#pragma omp simd
    for (size_t i = 0; i < N; ++i) {
      Words c{static_cast<uint32_t>(index[i]), static_cast<uint32_t>(index[i] >> 32), low, high};
      rounds(c, std::make_index_sequence<10>());
      factors[i] = c.w0 >= least ? kept : A(0);
      factors[N + i] = c.w1 >= least ? kept : A(0);
      factors[2 * N + i] = c.w2 >= least ? kept : A(0);
      factors[3 * N + i] = c.w3 >= least ? kept : A(0);
    }
  }

 private:
  struct Words {
    uint32_t w0, w1, w2, w3;
  };

  template <size_t... R>
  [[gnu::always_inline]] void rounds(Words& c, std::index_sequence<R...>) const {
    (round(c, round_key_[2 * R], round_key_[2 * R + 1]), ...);
  }
  [[gnu::always_inline]] static void round(Words& c, uint32_t k0, uint32_t k1) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c.w0, p1 = uint64_t{0xCD9E8D57u} * c.w2;
    c = {static_cast<uint32_t>(p1 >> 32) ^ c.w1 ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c.w3 ^ k1, static_cast<uint32_t>(p0)};
  }

  std::array<uint32_t, 20> round_key_;
  uint64_t site_;
  uint32_t least_;  // words below it drop their element
  double kept_;
};

// The generator of a site's words in a micro-batch, to draw them one by one. Reads the iteration.
inline Philox words_of(const Dropout& where) {
  const auto key = [](const std::array<uint32_t, 4>& words) { return (uint64_t{words[1]} << 32) | words[0]; };
  const auto iteration = static_cast<uint64_t>(where.step.data<double>()[step_value::iteration]);
  const uint64_t step = key(Philox(where.seed, Philox::stream_of("dropout")).block(iteration));
  return {key(Philox(step, 0).block(static_cast<uint64_t>(where.micro_batch))), where.site};
}

}  // namespace witan::kernels::cpu
