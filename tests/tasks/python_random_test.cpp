#include "witan/tasks/python_random.h"

#include <gtest/gtest.h>

namespace witan {
namespace {

using Numbers = std::vector<size_t>;

// Printed by Python 3.11: random.Random(SEED).sample(range(SIZE), COUNT), one call after the other.
TEST(PythonRandom, SamplesAsPython) {
  PythonRandom one(1234);
  EXPECT_EQ(one.sample(12, 3), (Numbers{7, 1, 0}));
  EXPECT_EQ(one.sample(12, 3), (Numbers{1, 9, 0}));
  EXPECT_EQ(one.sample(1000, 4), (Numbers{687, 709, 85, 100}));
  EXPECT_EQ(one.sample(50, 7), (Numbers{49, 22, 15, 1, 46, 45, 48}));
  EXPECT_EQ(one.sample(5, 5), (Numbers{4, 3, 2, 1, 0}));
  EXPECT_EQ(one.sample(5, 0), Numbers());
  EXPECT_EQ(PythonRandom(0).sample(100000, 3), (Numbers{50494, 99346, 55125}));
}

TEST(PythonRandom, GoesOnBehindTheFirstStateOfTheGenerator) {
  PythonRandom seven(7);
  Numbers last;
  for (int i = 0; i < 300; ++i) last = seven.sample(30, 5);
  EXPECT_EQ(last, (Numbers{11, 10, 4, 1, 6}));
}

}  // namespace
}  // namespace witan
