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

// A random permutation of [0, n) without a table: a Feistel network over the smallest power of two that holds it,
// iterated until the value falls below n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002).
//
// Immutable, so safe to share between threads. A pure function of (seed, stream, size); its values never change, since
// checkpoints identify samples by their position in it.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t seed, uint64_t stream);

  int64_t size() const { return size_; }
  // The image of `index`, which must lie in [0, size). Expected fewer than two rounds of the network.
  int64_t operator()(int64_t index) const;

 private:
  static constexpr int kRounds = 8;

  int64_t size_;
  int low_bits_, high_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace witan
