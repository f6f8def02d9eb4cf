#include "witan/tensor/trace_context.h"

#include <gtest/gtest.h>

#include "support/rank.h"

namespace witan {
namespace {

TEST(TraceContext, FormatsKnownFields) {
  EXPECT_EQ(describe(TraceContext{}), "");
  EXPECT_EQ(in_words(TraceContext{}), "");
  EXPECT_EQ(in_words(TraceContext{.step = 7}), " in step 7");
  EXPECT_EQ(describe(TraceContext{.step = 3, .phase = TraceContext::Phase::optimizer}), "step 3, optimizer");
  EXPECT_EQ(describe(TraceContext{3, TraceContext::Phase::backward, 1, "layers.2.moe", "combine"}),
            "step 3, backward of micro-batch 1, layers.2.moe (combine)");
  EXPECT_EQ(describe(TraceContext{.micro_batch = 0, .module = "head"}), "micro-batch 0, head");
  EXPECT_EQ(describe(TraceContext{.op = "add"}), "(add)");
  EXPECT_EQ(name_of(TraceContext::Phase::saving), "saving");
}

TEST(TraceContext, ScopesRestoreTheContext) {
  testing::Rank rank;
  Stream& stream = rank.stream;
  stream.trace_context().step = 2;
  {
    const TraceContextScope pass(stream, TraceContext::Phase::forward, 4);
    {
      const TraceContextScope module(stream, "layers.0");
      EXPECT_EQ(describe(stream.trace_context()), "step 2, forward of micro-batch 4, layers.0");
      const TraceContextScope root(stream, "");  // the whole model: adds nothing
      EXPECT_EQ(stream.trace_context().module, "layers.0");
    }
    EXPECT_EQ(stream.trace_context().module, "");
    stream.trace_context().op = "add";  // set within the scope
  }
  EXPECT_EQ(stream.trace_context(), TraceContext{.step = 2});
}

TEST(TraceContext, SideStreamsUseTheContextOfTheMainStream) {
  testing::Rank rank;
  Stream beside(rank.stream, 1 << 20);
  const TraceContextScope module(rank.stream, "head");
  EXPECT_EQ(beside.trace_context().module, "head");
}

}  // namespace
}  // namespace witan
