#include "witan/tasks/python_random.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <numeric>
#include <set>

namespace witan {

PythonRandom::PythonRandom(uint32_t seed) {
  state_[0] = 19650218;
  for (size_t i = 1; i < kWords; ++i)
    state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + static_cast<uint32_t>(i);
  size_t i = 1;
  const auto advance = [&] {
    if (++i < kWords) return;
    state_[0] = state_[kWords - 1];
    i = 1;
  };
  // The key has one word, the seed.
  for (size_t k = 0; k < kWords; ++k, advance())
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525U)) + seed;
  for (size_t k = 1; k < kWords; ++k, advance())
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941U)) - static_cast<uint32_t>(i);
  state_[0] = 0x80000000U;
}

void PythonRandom::refill() {
  constexpr size_t kShift = 397;
  for (size_t i = 0; i < kWords; ++i) {
    const uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % kWords] & 0x7fffffffU);
    state_[i] = state_[(i + kShift) % kWords] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfU : 0);
  }
  at_ = 0;
}

uint32_t PythonRandom::next() {
  if (at_ == kWords) refill();
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680U;
  y ^= (y << 15) & 0xefc60000U;
  return y ^ (y >> 18);
}

size_t PythonRandom::below(size_t bound) {
  const int bits = std::bit_width(bound);
  for (;;)
    if (const size_t drawn = next() >> (32 - bits); drawn < bound) return drawn;
}

std::vector<size_t> PythonRandom::sample(size_t size, size_t count) {
  assert(count <= size);
  // Up to this size a list of all is less than a set of those chosen.
  size_t set_size = 21;
  if (count > 5)
    set_size += static_cast<size_t>(std::pow(4, std::ceil(std::log(static_cast<double>(count * 3)) / std::log(4.0))));
  std::vector<size_t> chosen(count);
  if (size <= set_size) {
    std::vector<size_t> pool(size);
    std::iota(pool.begin(), pool.end(), size_t{0});
    for (size_t i = 0; i < count; ++i) {
      const size_t j = below(size - i);
      chosen[i] = pool[j];
      pool[j] = pool[size - i - 1];
    }
    return chosen;
  }
  std::set<size_t> taken;
  for (size_t& one : chosen) {
    do one = below(size);
    while (!taken.insert(one).second);
  }
  return chosen;
}

}  // namespace witan
