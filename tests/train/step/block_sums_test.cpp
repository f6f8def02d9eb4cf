// With gradient_norm_fusion, products that write experts' gradients also sum their blocks. The norm must equal that of
// the gradients themselves, whether or not these sums are used.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <mutex>

#include "support/thread_world.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::laid_out;
using testing::own_batches;
using testing::small_config;
using testing::ThreadRank;
using testing::values;

// One micro-batch for each of `ranks`.
RunConfig one_each(int64_t ranks = 1) {
  RunConfig config = small_config();
  config.train.global_batch_size = ranks * config.train.micro_batch_size;
  return config;
}

RunConfig with(RunConfig config, const std::function<void(RunConfig&)>& change) {
  change(config);
  return config;
}

struct Sums {
  double squares = 0, zeros = 0;
  std::mutex mutex;
  void add(const std::vector<double>& gradient) {
    const std::lock_guard lock(mutex);
    for (const double g : gradient) {
      squares += g * g;
      zeros += g == 0;
    }
  }
};

// Takes two steps with gradient_norm_fusion on the config's ranks without sharded gradients. `kept`: whether block sums
// are expected to replace experts' gradients.
void expect_the_norm_of_the_gradients(RunConfig config, bool kept) {
  config.parallel.gradient_norm_fusion = "true";
  config.log.log_num_zeros_in_grad = true;
  config.validate();
  const int ranks = static_cast<int>(config.parallel.ranks);
  const Layout layout(config.parallel, ranks, config.model.moe.num_experts);
  std::array<Sums, 2> expected;
  std::array<StepResult, 2> results;
  testing::on_ranks(ranks, [&](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout, rank.rank);
    Engine engine(rank.stream, groups, resolve(config, {}));
    for (size_t step = 0; step < 2; ++step) {
      const auto number = static_cast<int64_t>(step);
      const StepResult result = engine.step(own_batches(config, layout, rank.rank, number), number + 1, number);
      if (rank.rank == 0) results[step] = result;
      const auto first_of = [&](Axis axis) { return groups.of(axis).rank() == 0; };
      const bool owns_experts = first_of(Axis::expert_shard) && first_of(Axis::expert_replicate);
      const bool owns_split = first_of(Axis::replicate) && first_of(Axis::shard);
      for (Parameter* parameter : engine.model().parameters()) {
        const ParameterSpec& spec = parameter->spec();
        const bool matrices = spec.kind == ParameterKind::experts;
        EXPECT_EQ(parameter->gradient_block_sums().defined(), kept && matrices) << parameter->name();
        const bool counts = spec.expert ? owns_experts : spec.tensor_split.any() ? owns_split : rank.rank == 0;
        if (counts) expected[step].add(values(parameter->gradient()));
      }
    }
  });
  for (size_t step = 0; step < 2; ++step) {
    const double norm = std::sqrt(expected[step].squares);
    EXPECT_NEAR(results[step].gradient_norm, norm, 1e-12 * norm);
    EXPECT_EQ(results[step].scalars.get(kNumZeros), expected[step].zeros);
    EXPECT_FALSE(results[step].skipped);
  }
}

TEST(BlockSumsOfSteps, ReplaceTheGradientsOfExperts) {
  expect_the_norm_of_the_gradients(one_each(), true);
  const auto& sets = {
      +[](RunConfig& c) { c.model.dtype = "float64"; },
      +[](RunConfig& c) { c.model.dtype = "bfloat16"; },
      +[](RunConfig& c) { c.model.moe.moe_router_topk = 1, c.model.moe.moe_router_pre_softmax = true; },
      +[](RunConfig& c) { c.model.mlp.swiglu = false; },
      +[](RunConfig& c) { c.model.moe.moe_expert_add_bias = true; },
      +[](RunConfig& c) { c.model.recompute_granularity = "full"; },
      +[](RunConfig& c) { c.model.recompute_granularity = "selective"; },
      +[](RunConfig& c) { c.model.mtp_num_layers = 1; },
      +[](RunConfig& c) { c.model.vocab_size = 3, c.model.moe.num_experts = 32; },  // experts without a token
  };
  int number = 0;
  for (const auto& set : sets) {
    SCOPED_TRACE(number++);
    expect_the_norm_of_the_gradients(with(one_each(), set), true);
  }
}

// The last of several micro-batches leaves the sums of all.
TEST(BlockSumsOfSteps, CoverAllMicroBatches) {
  expect_the_norm_of_the_gradients(with(small_config(),
                                        [](RunConfig& c) {
                                          c.model.dtype = "bfloat16";
                                          c.parallel.gradient_dtype = "bfloat16";
                                        }),
                                   true);
}

TEST(BlockSumsOfSteps, AreComputedByEachRankForItsExperts) {
  expect_the_norm_of_the_gradients(laid_out(one_each(2), {"replicate=2,expert=2"}), true);
  expect_the_norm_of_the_gradients(laid_out(one_each(), {"tensor=2"}), true);
}

TEST(BlockSumsOfSteps, AreUnusedElsewhere) {
  expect_the_norm_of_the_gradients(small_config(), false);  // would read float32 again in every micro-batch
  for (const char* backend : {"block_sparse", "sequential"})
    expect_the_norm_of_the_gradients(with(one_each(), [&](RunConfig& c) { c.model.moe.moe_expert_backend = backend; }),
                                     false);
  expect_the_norm_of_the_gradients(laid_out(one_each(2), {"replicate=2,expert=1"}), false);  // sums of two ranks
  expect_the_norm_of_the_gradients(with(laid_out(one_each(2), {"replicate=2,expert=2"}),
                                        [](RunConfig& c) { c.model.moe.moe_replicated_experts = 1; }),
                                   false);
}

}  // namespace
}  // namespace witan
