// A random permutation of [0, n) without a table: a Feistel network over the smallest power of two that holds it,
// walked until the value falls below n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002).
#pragma once

#include <array>
#include <cstdint>

namespace witan {

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
