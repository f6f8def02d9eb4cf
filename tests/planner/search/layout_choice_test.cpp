#include "witan/planner/search/layout_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "train/step/run_support.h"
#include "witan/base/error.h"
#include "witan/train/config/resolve.h"

namespace witan {
namespace {

using testing::small_config;

RunConfig dense_config() {
  RunConfig config = small_config();
  config.model.moe.num_experts = 0;
  config.model.recompute_granularity = "full";
  config.train.micro_batch_size = 1;
  return config;
}

RunConfig laid_out(const RunConfig& config, const LayoutChoice& choice, int64_t gpus) {
  RunConfig one = with_layout(config, choice);
  one.parallel.ranks = gpus;
  return resolve(one, {});
}

// Two replicas or two context-parallel ranks with each kind of sharding, two stages, or two tensor-parallel ranks.
TEST(LayoutChoices, AreTenForTwoGpus) {
  std::multiset<std::string> found;
  for (const LayoutChoice& choice : layout_choices(dense_config(), {.gpus = 2})) {
    const RunConfig config = laid_out(dense_config(), choice, 2);
    found.insert(cat(mesh_text(config), "; ", rest_text(config)));
  }
  const std::string rest = ", micro-batch 1, recompute full";
  std::multiset<std::string> expected = {"replicate=2; no_shard" + rest, "pipeline=2; no_shard" + rest,
                                         "context=2; no_shard" + rest, "tensor=2; no_shard" + rest};
  for (const char* axis : {"shard=2; ", "context=2; "})
    for (const char* divided : {"optim", "optim_grads", "optim_grads_params"}) expected.insert(axis + (divided + rest));
  EXPECT_EQ(found, expected);
}

// A fixed size is kept even if it does not divide the GPUs: validation reports why it fails.
TEST(LayoutChoices, KeepFixedSizes) {
  RunConfig config = small_config();
  config.model.num_layers = 8;
  config.parallel.tensor_model_parallel_size = 3;
  config.parallel.num_virtual_stages_per_pipeline_rank = 2;
  config.parallel.use_distributed_optimizer = true;
  ChoiceLimits limits{.gpus = 8, .gpus_per_host = 2};
  for (const bool axes_alone : {false, true}) {
    limits.axes_alone = axes_alone;
    limits.held = {"tensor_model_parallel_size", "num_virtual_stages_per_pipeline_rank", "use_distributed_optimizer"};
    const auto choices = layout_choices(config, limits);
    EXPECT_FALSE(choices.empty());
    for (const LayoutChoice& c : choices) {
      EXPECT_EQ(c.tensor, 3);
      EXPECT_EQ(c.virtual_stages, 2);
      EXPECT_EQ(c.sharding, Sharding::optimizer);
    }
  }
  config.parallel.use_distributed_optimizer = false;
  config.parallel.data_parallel_sharding_strategy = "optim";
  limits.held = {"data_parallel_sharding_strategy"};
  for (const LayoutChoice& c : layout_choices(config, limits))
    EXPECT_EQ(with_layout(config, c).parallel.data_parallel_sharding_strategy, "optim") << "as given";
}

// The axes always use all GPUs, and no choice is repeated.
TEST(LayoutChoices, UseAllGpusAndAreDistinct) {
  RunConfig config = small_config();
  config.model.num_layers = 8;
  config.train.micro_batch_size = 4;
  std::set<std::string> known;
  bool interleaved = false, hybrid = false, cut_experts = false;
  const auto choices = layout_choices(config, {.gpus = 16, .gpus_per_host = 4});
  for (const LayoutChoice& c : choices) {
    EXPECT_EQ(16 % (c.tensor * c.context * c.pipeline), 0);
    EXPECT_LE(c.tensor, 4) << "within a host";
    EXPECT_LT(c.instances, std::max<int64_t>(16 / (c.tensor * c.pipeline), 2)) << "each has ranks to shard over";
    interleaved = interleaved || c.virtual_stages == 4;
    hybrid = hybrid || (c.instances == 4 && c.sharding == Sharding::parameters);
    cut_experts = cut_experts || (c.expert == 4 && c.expert_tensor == 2);
    known.insert(cat(c.tensor, " ", c.context, " ", c.pipeline, " ", c.virtual_stages, " ", c.expert, " ",
                     c.expert_tensor, " ", static_cast<int>(c.sharding), " ", c.instances, " ",
                     static_cast<int>(c.recompute), " ", c.micro_batch_size));
  }
  EXPECT_EQ(known.size(), choices.size());
  EXPECT_TRUE(interleaved && hybrid && cut_experts);
}

TEST(LayoutChoices, KeepTheRequestedMicroBatchAndRecomputation) {
  RunConfig config = dense_config();
  config.train.micro_batch_size = 4;
  std::set<int64_t> sizes;
  for (const LayoutChoice& c : layout_choices(config, {.gpus = 2})) {
    sizes.insert(c.micro_batch_size);
    EXPECT_EQ(c.recompute, Recompute::full) << "recomputation is never reduced";
  }
  EXPECT_EQ(sizes, (std::set<int64_t>{1, 2, 4}));
  for (const LayoutChoice& c : layout_choices(config, {.gpus = 2, .keep_micro_batch_size = true}))
    EXPECT_EQ(c.micro_batch_size, 4);
}

}  // namespace
}  // namespace witan
