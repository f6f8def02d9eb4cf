#include "witan/data/megatron/numpy_random.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace witan::megatron {
namespace {

std::vector<int> shuffled(uint32_t seed, size_t size) {
  std::vector<int> values(size);
  std::iota(values.begin(), values.end(), 0);
  NumpyRandom random(seed);
  random.shuffle(std::span(values));
  return values;
}

// numpy.random.RandomState(seed).shuffle(numpy.arange(size)) of NumPy 2.4.6.
TEST(NumpyRandom, ShufflesAsNumpyDoes) {
  EXPECT_EQ(shuffled(1234, 10), (std::vector<int>{7, 2, 9, 1, 0, 8, 4, 5, 6, 3}));
  EXPECT_EQ(shuffled(0, 7), (std::vector<int>{6, 2, 1, 3, 0, 5, 4}));
  EXPECT_EQ(shuffled(4294967295u, 6), (std::vector<int>{1, 4, 5, 0, 2, 3}));
  EXPECT_EQ(shuffled(5, 1), std::vector<int>{0});
  EXPECT_TRUE(shuffled(5, 0).empty());
}

// The state continues from one shuffle to the next; arrays of none and one draw nothing.
TEST(NumpyRandom, GoesOn) {
  NumpyRandom random(42);
  std::vector<int> first = {0, 1, 2, 3, 4}, one = {7}, second = {0, 1, 2, 3, 4};
  random.shuffle(std::span(first));
  random.shuffle(std::span(one));
  random.shuffle(std::span(second));
  EXPECT_EQ(first, (std::vector<int>{1, 4, 2, 0, 3}));
  EXPECT_EQ(second, (std::vector<int>{3, 1, 2, 0, 4}));
}

// numpy.random.RandomState(9).randint(0, 2**40, dtype=int64), which draws by the same masks above 2^32 as below.
TEST(NumpyRandom, DrawsWideNumbersHighWordFirst) {
  std::mt19937 words(9);
  const uint64_t high = words(), low = words();
  EXPECT_EQ(NumpyRandom(9).interval((uint64_t{1} << 40) - 1), (high << 32 | low) & ((uint64_t{1} << 40) - 1));
  EXPECT_EQ(NumpyRandom(9).interval((uint64_t{1} << 40) - 1), 542731227484u);
}

}  // namespace
}  // namespace witan::megatron
