// The part of numpy.random.RandomState that Megatron-Core's datasets are shuffled with, number for number: MT19937
// (Matsumoto and Nishimura, ACM TOMACS 1998) from an integer seed, and the legacy shuffle of NumPy, whose stream its
// developers froze (NEP 19). Source: numpy/random/mtrand.pyx, and random_interval() of
// numpy/random/src/distributions/distributions.c.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace witan::megatron {

class NumpyRandom {
 public:
  // RandomState(seed). The standard's engine is seeded as NumPy's, by init_genrand().
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}

  // Uniform in [0, most]: masked bits, drawn again while they are too large.
  uint64_t interval(uint64_t most);

  // RandomState.shuffle() of an array of one dimension.
  template <class T>
  void shuffle(std::span<T> values) {
    for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[interval(i)]);
  }

 private:
  std::mt19937 engine_;
};

}  // namespace witan::megatron
