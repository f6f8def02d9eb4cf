#include "witan/kernels/pointwise/dropout.h"

#include <cmath>

#include "witan/base/numbers/rng.h"
#include "witan/kernels/common/cpu/rows.h"
#include "witan/kernels/pointwise/cpu/dropout_mask.h"

namespace witan::kernels::cpu {
namespace {

constexpr int kBlocks = 32;  // drawn at a time
constexpr int64_t kElements = 4 * kBlocks;

uint64_t key(const std::array<uint32_t, 4>& words) {
  return (uint64_t{words[1]} << 32) | words[0];
}

// Drops elements [begin, begin + kElements), of which `count` exist.
template <class T>
void drop(T* y, const T* x, const DropoutMask& mask, const DroppedPart& part, int64_t begin, int64_t count) {
  using A = Accumulator<T>;
  std::array<uint64_t, kBlocks> index;
  for (size_t i = 0; i < kBlocks; ++i)
    index[i] = static_cast<uint64_t>(part.element(begin + 4 * static_cast<int64_t>(i))) / 4;
  alignas(64) std::array<A, kElements> drawn, factors;  // by word, then by element
  mask.draw<kBlocks>(drawn.data(), index);
  for (size_t i = 0; i < kBlocks; ++i)
    for (size_t w = 0; w < 4; ++w) factors[4 * i + w] = drawn[w * kBlocks + i];
  const A* factor = factors.data();
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(y[begin + i], A(x[begin + i]) * factor[i]);
}

}  // namespace

DropoutMask::DropoutMask(const Dropout& how)
    : site_(how.site),
      least_(static_cast<uint32_t>(std::min(std::nearbyint(how.p * 0x1p32), 0x1p32 - 1))),
      kept_(1 / (1 - how.p)) {
  const auto iteration = static_cast<uint64_t>(how.step.data<double>()[step_value::iteration]);
  const uint64_t step = key(Philox(how.seed, Philox::stream_of("dropout")).block(iteration));
  const uint64_t batch = key(Philox(step, 0).block(static_cast<uint64_t>(how.micro_batch)));
  uint32_t k0 = static_cast<uint32_t>(batch), k1 = static_cast<uint32_t>(batch >> 32);
  for (size_t round = 0; round < 10; ++round) {
    round_key_[2 * round] = k0, round_key_[2 * round + 1] = k1;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
}

void dropout(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& how) {
  const DropoutMask mask(how);
  const int64_t elements = y.elements(), pieces = (elements + kElements - 1) / kElements;
  dispatch_floating(y.dtype(), [&]<class T>() {
    stream.pool().for_ranges(pieces, kTaskElements / kElements / 4, [&](int64_t first, int64_t last) {
      for (int64_t piece = first; piece < last; ++piece)
        drop(y.data<T>(), x.data<T>(), mask, how.part, piece * kElements,
             std::min(kElements, elements - piece * kElements));
    });
  });
}

void jitter(Stream& stream, const Tensor& y, const Tensor& x, const Dropout& where, const Jitter& noise) {
  const Philox random = words_of(where);
  dispatch_floating(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    stream.pool().for_ranges(y.elements(), kTaskElements / 8, [&](int64_t first, int64_t last) {
      uint64_t block = UINT64_MAX;
      std::array<uint32_t, 4> words{};
      for (int64_t i = first; i < last; ++i) {
        const auto e = static_cast<uint64_t>(where.part.element(i));
        if (e / 4 != block) words = random.block(block = e / 4);
        const A u = A(words[e % 4]) * A(0x1p-32);
        const A in = A(x.data<T>()[i]), drawn = A(noise.eps) * (2 * u - 1);
        store(y.data<T>()[i], noise.added ? in + drawn : in * (1 + drawn));
      }
    });
  });
}

}  // namespace witan::kernels::cpu
