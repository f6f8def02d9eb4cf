#include "witan/tensor/trail.h"

#include <gtest/gtest.h>

#include "support/rank.h"

namespace witan {
namespace {

TEST(Trail, SaysWhatItKnows) {
  EXPECT_EQ(describe(Trail{}), "");
  EXPECT_EQ(in_words(Trail{}), "");
  EXPECT_EQ(in_words(Trail{.step = 7}), " in step 7");
  EXPECT_EQ(describe(Trail{.step = 3, .phase = Trail::Phase::optimizer}), "step 3, optimizer");
  EXPECT_EQ(describe(Trail{3, Trail::Phase::backward, 1, "layers.2.moe", "combine"}),
            "step 3, backward of micro-batch 1, layers.2.moe (combine)");
  EXPECT_EQ(describe(Trail{.micro_batch = 0, .module = "head"}), "micro-batch 0, head");
  EXPECT_EQ(describe(Trail{.op = "add"}), "(add)");
  EXPECT_EQ(name_of(Trail::Phase::saving), "saving");
}

TEST(Trail, ScopesEndWhereTheyBegan) {
  testing::Rank rank;
  Stream& stream = rank.stream;
  stream.trail().step = 2;
  {
    const TrailScope pass(stream, Trail::Phase::forward, 4);
    {
      const TrailScope module(stream, "layers.0");
      EXPECT_EQ(describe(stream.trail()), "step 2, forward of micro-batch 4, layers.0");
      const TrailScope root(stream, "");  // the whole model: it says nothing new
      EXPECT_EQ(stream.trail().module, "layers.0");
    }
    EXPECT_EQ(stream.trail().module, "");
    stream.trail().op = "add";  // whatever was set within
  }
  EXPECT_EQ(stream.trail(), Trail{.step = 2});
}

TEST(Trail, AStreamBesideAnotherIsWhereThatIs) {
  testing::Rank rank;
  Stream beside(rank.stream, 1 << 20);
  const TrailScope module(rank.stream, "head");
  EXPECT_EQ(beside.trail().module, "head");
}

}  // namespace
}  // namespace witan
