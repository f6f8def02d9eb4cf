#include "witan/base/numbers/rng.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <numbers>

namespace witan {

__extension__ using uint128 = unsigned __int128;

uint64_t Philox::stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

std::array<uint32_t, 4> Philox::block(uint64_t index) const {
  uint32_t k0 = static_cast<uint32_t>(seed_), k1 = static_cast<uint32_t>(seed_ >> 32);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                               static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

namespace {

// The two of a pair of words.
struct Normals {
  double cosine, sine;
};

Normals normals_of(uint32_t of_radius, uint32_t of_angle) {
  const double u = (of_radius + 0.5) * 0x1p-32;  // in (0, 1): the logarithm is finite
  const double angle = 2 * std::numbers::pi * (of_angle * 0x1p-32);
  const double radius = std::sqrt(-2 * std::log(u));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

double Philox::normal(uint64_t index) const {
  const auto words = block(index / 4);
  const size_t pair = index % 4 / 2;
  const Normals both = normals_of(words[2 * pair], words[2 * pair + 1]);
  return index % 2 == 0 ? both.cosine : both.sine;
}

void Philox::normals(uint64_t first, std::span<double> out) const {
  size_t at = 0;
  for (; at < out.size() && (first + at) % 4 != 0; ++at) out[at] = normal(first + at);
  for (; at + 4 <= out.size(); at += 4) {
    const auto words = block((first + at) / 4);
    for (size_t pair = 0; pair < 2; ++pair) {
      const Normals both = normals_of(words[2 * pair], words[2 * pair + 1]);
      out[at + 2 * pair] = both.cosine;
      out[at + 2 * pair + 1] = both.sine;
    }
  }
  for (; at < out.size(); ++at) out[at] = normal(first + at);
}

uint64_t Philox::below(uint64_t bound, uint64_t index) const {
  const auto words = block(index);
  const uint64_t x = (uint64_t{words[1]} << 32) | words[0];
  return static_cast<uint64_t>((static_cast<uint128>(x) * bound) >> 64);
}

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
