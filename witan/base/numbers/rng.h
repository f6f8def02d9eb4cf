// Counter-based random numbers (Philox4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
// A value is a pure function of (seed, stream, index): no state, so it cannot depend on layout, order or thread count.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace witan {

class Philox {
 public:
  Philox(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  // The stream that belongs to a name (a parameter's, say): FNV-1a, frozen.
  static uint64_t stream_of(std::string_view name);

  // Four independent 32-bit words for block `index`.
  std::array<uint32_t, 4> block(uint64_t index) const;

  uint32_t bits(uint64_t index) const { return block(index / 4)[index % 4]; }
  // Uniform in [0, 1) with 32 random bits.
  double uniform(uint64_t index) const { return bits(index) * 0x1p-32; }
  // Standard normal (Box-Muller over one block: indices 2i and 2i+1 share one radius).
  double normal(uint64_t index) const;
  // normal(first), normal(first + 1) …, the same bits, in a third of the time.
  void normals(uint64_t first, std::span<double> out) const;
  // Uniform in [0, bound), unbiased enough for shuffles (64-bit multiply-shift). bound > 0.
  uint64_t below(uint64_t bound, uint64_t index) const;

 private:
  uint64_t seed_, stream_;
};

}  // namespace witan
