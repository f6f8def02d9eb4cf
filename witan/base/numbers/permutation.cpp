#include "witan/base/numbers/permutation.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "witan/base/numbers/rng.h"

namespace witan {
namespace {

// Below 8 bits a Feistel network reaches too few permutations; a tiny set walks a larger domain instead.
constexpr int kLeastBits = 8;

// SplitMix64's finaliser (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t stream) : size_(size) {
  assert(size >= 0 && size < int64_t{1} << 62);
  const auto last = static_cast<uint64_t>(std::max<int64_t>(size, 1) - 1);
  const int bits = std::max(static_cast<int>(std::bit_width(last)), kLeastBits);
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  const Philox random(seed, stream);
  for (int round = 0; round < kRounds; ++round) {
    const auto words = random.block(static_cast<uint64_t>(round));
    keys_[static_cast<size_t>(round)] = uint64_t{words[1]} << 32 | words[0];
  }
}

int64_t Permutation::operator()(int64_t index) const {
  assert(index >= 0 && index < size_);
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1, high_mask = (uint64_t{1} << high_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t low = value & low_mask, high = value >> low_bits_;
    for (int round = 0; round < kRounds; round += 2) {
      low ^= mix(high + keys_[static_cast<size_t>(round)]) & low_mask;
      high ^= mix(low + keys_[static_cast<size_t>(round + 1)]) & high_mask;
    }
    value = high << low_bits_ | low;
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

}  // namespace witan
