#include "witan/train/trace/place_ranges.h"

#include <gtest/gtest.h>

#include "support/rank.h"
#include "train/step/run_support.h"
#include "witan/kernels/common/launch.h"

namespace witan {
namespace {

struct Profiler {
  PlaceRanges ranges{[this](const std::string& name) {
                       text += "<" + name + ">";
                       ++depth;
                       deepest = std::max(deepest, depth);
                     },
                     [this] {
                       text += "</>";
                       --depth;
                     }};
  std::string text;
  int depth = 0, deepest = 0;
};

TEST(PlaceRanges, FollowTheRanksPlace) {
  testing::Rank rank(1, int64_t{1} << 20);
  Profiler profiler;
  rank.stream.watch_launches(&profiler.ranges);
  const auto launch = [&](TraceContext::Phase phase, int64_t micro_batch, const char* module) {
    const TraceContextScope scope(rank.stream, phase, micro_batch);
    scope->step = 3;
    scope->module = module;
    kernels::charge(rank.stream, "k", {}, [&] { profiler.text += "."; });
  };
  using enum TraceContext::Phase;
  launch(forward, 0, "layers.0.mlp");
  launch(forward, 0, "layers.0.mlp");
  launch(forward, 0, "layers.1.mlp");
  launch(backward, 0, "layers.1.mlp");
  launch(optimizer, -1, "");
  profiler.ranges.close();
  EXPECT_EQ(profiler.text,
            "<step 3><forward of micro-batch 0><layers.0.mlp>..</><layers.1.mlp>.</></><backward of micro-batch 0>"
            "<layers.1.mlp>.</></><optimizer>.</></>");
  EXPECT_EQ(profiler.depth, 0);
}

// The ranges end with a step and change no result.
TEST(PlaceRanges, OfAStepAreClosed) {
  testing::with_rank_engines(testing::small_config(), [](Stream&, const Groups& groups, Engine& engine, int rank) {
    Profiler profiler;
    engine.show_ranges(&profiler.ranges);
    engine.step(testing::own_batches(testing::small_config(), groups.layout(), rank, 0), 1, 0);
    EXPECT_EQ(profiler.depth, 0);
    EXPECT_EQ(profiler.deepest, 3);
    for (const char* name : {"<step 1>", "<forward of micro-batch 0>", "<layers.1.moe.router>", "<optimizer>"})
      EXPECT_NE(profiler.text.find(name), std::string::npos) << name;
  });
}

}  // namespace
}  // namespace witan
