// A token mixer that exists only in tests trains like attention without changes elsewhere: in every layout, from every
// other layout's checkpoint, and in the planned memory.
#include <gmock/gmock.h>

#include "planner/real_run.h"
#include "support/message_of.h"
#include "support/model_variants.h"
#include "support/temp_folder.h"
#include "train/step/layouts/one_rank.h"
#include "train/step/saving_engines.h"
#include "witan/planner/pages/plan_page.h"

namespace witan {
namespace {

using testing::expect_steps_of_one_rank;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;
using testing::with_saving_engines;

// Running means together with attention over packed documents, so that means restart within a rank's chunk.
RunConfig recipe() {
  RunConfig config = testing::divisible_config();
  config.model.vocab_size = 64;
  config.train.global_batch_size = 4;
  config.data.reset_attention_mask = config.data.reset_position_ids = true;
  testing::give_running_means(config.model, {0, 2}, 32);
  return laid_out(config, {});
}

const std::vector<LaidOut> kLayouts = {
    {"replicate=2"},
    {"shard=2", kFsdp},
    {"context=2"},
    {"context=4"},
    {.mesh = "context=2", .comm = "p2p"},
    {"tensor=2,expert_tensor=1"},
    {"tensor=4,expert_tensor=1"},
    {"pipeline=2"},
    {"pipeline=2", "auto", 2},
    {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=1"},
    {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kFsdp},
};

TEST(CustomMixer, EveryLayoutEqualsOneRankInFloat64) {
  const RunConfig config = recipe();
  const Trajectory one = expect_steps_of_one_rank(config, kLayouts, 3);
  EXPECT_GT(std::ranges::min(one.norms), config.optimizer.clip_grad)
      << "no step is clipped, so the test proves nothing";
}

TEST(CustomMixer, RecomputedLayersGiveTheSameBits) {
  RunConfig config = recipe();
  const Trajectory kept = run_engine(config, 2);
  config.model.recompute_granularity = "full";
  EXPECT_EQ(run_engine(config, 2).losses, kept.losses);
}

// Takes a step in one layout, saves, and takes the next one in another, on engines with other initial weights.
TEST(CustomMixer, AnotherLayoutContinuesFromACheckpoint) {
  const auto step = [](const RunConfig& config, Engine& engine, const Layout& layout, int rank, int64_t number) {
    return engine.step(testing::own_batches(config, layout, rank, number), number + 1, number).loss;
  };
  const RunConfig config = recipe();
  const std::vector<double> expected = run_engine(config, 2).losses;
  const std::vector<LaidOut> layouts = {
      {}, {"tensor=2,expert_tensor=1"}, {"context=2,pipeline=2"}, {"shard=2,tensor=2,expert=2,expert_tensor=1", kFsdp}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const LaidOut &writer = layouts[i], &reader = layouts[(i + 1) % layouts.size()];
    SCOPED_TRACE(cat("from ", described(writer), " to ", described(reader)));
    const test::TempFolder folder;
    const RunConfig first = laid_out(config, writer);
    with_saving_engines(first, [&](Engine& engine, BackgroundSave& saving, const Layout& layout, int rank) {
      step(first, engine, layout, rank, 0);
      saving.begin(folder.path(), {1, engine.state(), Json::object(), {}}, 1);
      saving.finish();
    });
    const Checkpoint saved = open_checkpoint(folder / "step-1");
    EXPECT_TRUE(saved.manifest.tensors.contains("layers.2.running_mean.v_proj.weight"));
    RunConfig other = laid_out(config, reader);
    other.train.seed += 1;
    with_saving_engines(other, [&](Engine& engine, BackgroundSave& saving, const Layout& layout, int rank) {
      load_tensors(saving.world(), saving.stream(), saved, engine.state());
      const double loss = step(other, engine, layout, rank, 1);
      if (rank == 0) {
        EXPECT_NEAR(loss, expected[1], 1e-9 * std::abs(expected[1]));
      }
    });
  }
}

TEST(CustomMixer, PlansAreExact) {
  for (const LaidOut& layout :
       {LaidOut{}, LaidOut{"context=2,tensor=2,expert=2,expert_tensor=1"}, LaidOut{"shard=2,pipeline=2", kFsdp}}) {
    SCOPED_TRACE(described(layout));
    RunConfig config = laid_out(recipe(), layout);
    config.train.sample_tokens = config.parallel.model_ranks() == 1 ? 4 : 0;
    testing::expect_kept(config, {.prompt_tokens = config.train.sample_tokens > 0 ? 3 : 0});
  }
}

TEST(CustomMixer, PlansNameItAndItsPart) {
  const Plan plan = make_plan(resolve(recipe(), {}));
  EXPECT_THAT(format_plan(plan, int64_t{1} << 40, std::nullopt),
              ::testing::HasSubstr("gated running mean, MoE, experts of 24"));
  EXPECT_TRUE(plan.ranks.front().step.contains("running_mean"));
}

TEST(CustomMixer, RefusesRanksThatDoNotDivideIt) {
  const auto refusal = [](const LaidOut& layout, int64_t channels) {
    RunConfig config = recipe();
    testing::give_running_means(config.model, {0, 2}, channels);
    return test::message_of<ConfigError>([&] { laid_out(config, layout).validate(); });
  };
  EXPECT_THAT(
      refusal({"tensor=4,expert_tensor=1"}, 30),
      ::testing::HasSubstr("channels of a running mean = 30 is not divisible by tensor_model_parallel_size = 4"));
  EXPECT_EQ(
      refusal({.mesh = "context=4", .comm = "p2p"}, 30),
      "context_parallel_size = 4: ranks exchange the 30 channels of a running mean, which they do not divide; set "
      "context_parallel_size to 2, the nearest that works");
}

TEST(CustomMixer, QkClipScalesLayersWithLogits) {
  RunConfig config = recipe();
  config.optimizer.qk_clip = true;
  config.optimizer.qk_clip_threshold = 1e-3;
  const Trajectory one = expect_steps_of_one_rank(config, {{"tensor=2,pipeline=2,expert_tensor=1"}}, 2);
  EXPECT_GT(std::ranges::min(one.max_logits), 1e-3);
  testing::give_running_means(config.model, {0, 1, 2, 3}, 32);
  EXPECT_EQ(test::message_of<ConfigError>([&] { config.validate(); }),
            "qk_clip = true bounds logits of attention, and no layer's mixer has any; set qk_clip = false");
}

TEST(CustomMixer, TensorParallelExchangesAreNotOverlapped) {
  RunConfig config = laid_out(recipe(), {"tensor=2,expert_tensor=1"});
  config.train.micro_batch_size = 2;
  EXPECT_EQ(config.key_against_tensor_overlap(), "mixers");
}

}  // namespace
}  // namespace witan
