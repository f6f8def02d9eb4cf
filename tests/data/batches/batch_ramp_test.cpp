#include "witan/data/batches/batch_ramp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using test::message_of;

// A line of tests/golden/data/ramp/sizes.tsv, which documents its columns.
struct Golden {
  int64_t start, increment, samples, full, micro_batch, ranks, decreased, train_samples, steps;
  std::vector<int64_t> sizes;  // of each step
};

std::vector<Golden> read_golden() {
  std::ifstream file(std::string(WITAN_SOURCE_DIR) + "/tests/golden/data/ramp/sizes.tsv");
  std::vector<Golden> all;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream in(line);
    Golden one;
    in >> one.start >> one.increment >> one.samples >> one.full >> one.micro_batch >> one.ranks >> one.decreased >>
        one.train_samples >> one.steps;
    int64_t count = 0, size = 0;
    for (char x = 0; in >> count >> x >> size;) one.sizes.insert(one.sizes.end(), static_cast<size_t>(count), size);
    all.push_back(std::move(one));
  }
  return all;
}

BatchRamp ramp_of(const Golden& golden) {
  const BatchRamp ramp = BatchRamp::parse(cat(golden.start, ",", golden.increment, ",", golden.samples), golden.full);
  return golden.decreased != 0 ? ramp.in_units_of(golden.micro_batch * golden.ranks) : ramp;
}

TEST(BatchRamp, SizesMatchMegatronCore) {
  const std::vector<Golden> all = read_golden();
  ASSERT_EQ(all.size(), 11u);
  for (const Golden& golden : all) {
    SCOPED_TRACE(cat(golden.start, " ", golden.increment, " ", golden.samples, " to ", golden.full));
    const BatchRamp ramp = ramp_of(golden);
    EXPECT_TRUE(ramp.ramps());
    EXPECT_EQ(ramp.start(), golden.start);
    EXPECT_EQ(ramp.steps_over(golden.train_samples), golden.steps);
    const std::vector<int64_t> all_sizes = ramp.sizes();
    int64_t consumed = 0, step = 0, below = 0;
    for (const int64_t size : golden.sizes) {
      ASSERT_EQ(ramp.size(consumed), size) << "step " << step + 1;
      ASSERT_EQ(ramp.consumed_by(step), consumed) << "step " << step + 1;
      EXPECT_EQ(std::ranges::count(all_sizes, size), 1) << size;
      consumed += size;
      ++step;
      if (size < golden.sizes.back()) ++below;
    }
    EXPECT_EQ(ramp.consumed_by(step), consumed);
    if (golden.sizes.back() == all_sizes.back()) {
      EXPECT_EQ(ramp.steps_below_full(), below);
    }
  }
}

TEST(BatchRamp, WithoutARampEveryStepHasTheFullSize) {
  const BatchRamp ramp = BatchRamp::parse("", 12);
  EXPECT_FALSE(ramp.ramps());
  EXPECT_EQ(ramp.size(0), 12);
  EXPECT_EQ(ramp.sizes(), std::vector<int64_t>{12});
  EXPECT_EQ(ramp.consumed_by(int64_t{1} << 40), int64_t{12} << 40);
  EXPECT_EQ(ramp.steps_over(35), 2);
  EXPECT_EQ(ramp.steps_below_full(), 0);
}

TEST(BatchRamp, ReadsTextsAndArrays) {
  for (const char* text : {"2,3,40", "[2,3,40]", " 2 , 3 , 40 "}) {
    const BatchRamp ramp = BatchRamp::parse(text, 8);
    EXPECT_EQ(ramp.sizes(), (std::vector<int64_t>{2, 5, 8})) << text;
    EXPECT_EQ(ramp.samples(), 40) << text;
    EXPECT_EQ(ramp.increment(), 3) << text;
  }
}

TEST(BatchRamp, RefusesRampsThatCannotReachTheirEnd) {
  const auto refused = [](const char* text, int64_t full) {
    return message_of<ConfigError>([&] { BatchRamp::parse(text, full); });
  };
  for (const char* text : {"2", "2,2", "2,2,10,", "2,2,10,4", "2;2;10", "two,2,10", "2,2,10x", "[2,2,10"})
    EXPECT_NE(refused(text, 8).find("must be three whole numbers"), std::string::npos) << text;
  for (const char* text : {"0,2,10", "2,0,10", "2,2,0", "-2,2,10"})
    EXPECT_NE(refused(text, 8).find("must be above 0"), std::string::npos) << text;
  EXPECT_NE(refused("8,2,10", 8).find("it grows to global_batch_size = 8"), std::string::npos);
  EXPECT_NE(refused("3,2,10", 8).find("5 is not a multiple of the increment 2"), std::string::npos);
}

}  // namespace
}  // namespace witan
