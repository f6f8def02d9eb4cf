// Times at which experts arrive at a token whose K earliest are its choice: expert e's is exponential with rate
// (e + 1)^-s, so that expert loads follow a Zipf law of exponent s, and each token's K experts differ (sampling in the
// order of exponential clocks: Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).
//
// Whole numbers alone, so that a CPU and a GPU choose the same experts.
#pragma once

#include <bit>
#include <cstdint>

namespace witan::kernels {

inline constexpr int kArrivalBits = 24;  // of the fraction of logarithms

// log2 x in units of 2^-24, 0.009 off at most: f + 0.3466 f (1 - f) stands for log2(1 + f). x > 0.
constexpr int64_t log2_whole(uint32_t x) {
  constexpr uint64_t kOne = uint64_t{1} << kArrivalBits, kBend = 5815082;  // 0.346607 of kOne
  const int exponent = 31 - std::countl_zero(x);
  const uint64_t f = (static_cast<uint64_t>(x) << kArrivalBits >> exponent) - kOne;
  const uint64_t bend = (f * (kOne - f) >> kArrivalBits) * kBend >> kArrivalBits;
  return static_cast<int64_t>(exponent) * static_cast<int64_t>(kOne) + static_cast<int64_t>(f + bend);
}

// The key of expert e: minus the logarithm of its time, which is larger the earlier it arrives. `word`: 24 random bits,
// of which the time is made; `exponent`: s in units of 2^-16, up to 16. Below 2^24 in size: float holds it exactly.
constexpr int64_t arrival_key(uint32_t word, int64_t e, int64_t exponent) {
  // -log2 u of u = (word + 1/2) 2^-24, at least one unit of the last place.
  const int64_t waited = (int64_t{kArrivalBits + 1} << kArrivalBits) - log2_whole(2 * word + 1);
  const int64_t time = log2_whole(static_cast<uint32_t>(waited > 0 ? waited : 1));
  const int64_t rarity = exponent * log2_whole(static_cast<uint32_t>(e + 1)) >> 16;
  return -(time + rarity) / 256;
}

}  // namespace witan::kernels
