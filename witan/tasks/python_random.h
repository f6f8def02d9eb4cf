// Draws as Python's random.Random draws, by which lm-evaluation-harness chooses few-shot examples: the same seed gives
// the same examples. MT19937 seeded by init_by_array (Matsumoto and Nishimura, 2002), and CPython's Lib/random.py.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace witan {

// Not thread-safe.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);

  // `count` different numbers of [0, size), as random.sample(range(size), count) of Python 3.11 and later draws them;
  // count <= size.
  std::vector<size_t> sample(size_t size, size_t count);

 private:
  static constexpr size_t kWords = 624;

  uint32_t next();
  void refill();
  size_t below(size_t bound);  // 0 < bound < 2^32

  std::array<uint32_t, kWords> state_{};
  size_t at_ = kWords;
};

}  // namespace witan
