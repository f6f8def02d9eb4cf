// Sharded gradients and values (ZeRO-2, FSDP) change no result.
#include <gtest/gtest.h>

#include "train/step/run_support.h"
#include "witan/generate/generation_batch.h"

namespace witan {
namespace {

using testing::drop;
using testing::expect_same_bits;
using testing::gpt_run_config;
using testing::random_batch;
using testing::run_engine;
using testing::sharded_config;
using testing::Trajectory;

constexpr int64_t kSteps = 2;  // the matrices are large

struct Division {
  int ranks, expert_ranks, instances;
};
const std::vector<Division> kDivisions = {{2, 1, 1}, {4, 1, 1}, {4, 1, 2}, {4, 2, 1}, {8, 2, 2}};

RunConfig divided_config(const Division& of, const char* strategy) {
  RunConfig config = sharded_config(of.ranks, of.expert_ranks, of.instances);
  config.parallel.use_distributed_optimizer = false;
  config.parallel.data_parallel_sharding_strategy = strategy;
  return config;
}

RunConfig on_one_rank(RunConfig config) {
  config.parallel = {1, 1, 1};
  return config;
}

std::string described(const RunConfig& config) {
  const ParallelConfig& parallel = config.parallel;
  return cat(parallel.ranks, " ranks, experts over ", parallel.expert_model_parallel_size, ", ",
             parallel.num_distributed_optimizer_instances, " instances, ", parallel.data_parallel_sharding_strategy,
             parallel.reshard_after_forward ? "" : ", kept after forward");
}

void expect_equal(const Trajectory& one, const Trajectory& several) {
  for (size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(one.losses[step], several.losses[step], 1e-9 * std::abs(one.losses[step])) << "loss of step " << step;
    EXPECT_NEAR(one.norms[step], several.norms[step], 1e-9 * std::abs(one.norms[step])) << "norm of step " << step;
  }
  ASSERT_EQ(one.weights.size(), several.weights.size());
  for (size_t i = 0; i < one.weights.size(); ++i) {
    ASSERT_EQ(one.weights[i].size(), several.weights[i].size());
    double most = 0, apart = 0;
    for (size_t j = 0; j < one.weights[i].size(); ++j) {
      most = std::max(most, std::abs(one.weights[i][j]));
      apart = std::max(apart, std::abs(one.weights[i][j] - several.weights[i][j]));
    }
    EXPECT_LE(apart, 1e-9 * most + 1e-12) << "parameter " << i;  // gradients of key biases are only rounding errors
  }
}

TEST(Fsdp, EveryDivisionEqualsOneRankInFloat64) {
  std::optional<Trajectory> one;
  for (const char* strategy : {"optim_grads", "optim_grads_params"})
    for (const Division& division : kDivisions) {
      RunConfig config = divided_config(division, strategy);
      config.model.dtype = "float64";
      if (!one) one = run_engine(on_one_rank(config), kSteps);
      SCOPED_TRACE(described(config));
      expect_equal(*one, run_engine(config, kSteps));
    }
}

TEST(Fsdp, ModelVariantsEqualOneRankInFloat64) {
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> variants = {
      {"untied, kept after forward",
       [](RunConfig& c) {
         c.model.untie_embeddings_and_output_weights = true;
         c.parallel.reshard_after_forward = false;
       }},
      {"full recompute", [](RunConfig& c) { c.model.recompute_granularity = "full"; }},
      {"selective recompute, dropout",
       [](RunConfig& c) {
         c.model.recompute_granularity = "selective";
         drop(c);
       }},
      {"PyTorch's initial values, every second block",
       [](RunConfig& c) {
         c.model.init_method = "torch";
         c.model.moe.moe_layer_freq = "2";
       }},
      {"matrices and tokens divided too",
       [](RunConfig& c) {
         c.model.moe.num_experts = 0;
         c.model.vocab_size = 6008;
         c.parallel.expert_model_parallel_size = 1;
         c.parallel.tensor_model_parallel_size = 2;
         c.parallel.sequence_parallel = true;
       }},
      {"sequences divided too",
       [](RunConfig& c) {
         c.parallel.context_parallel_size = 2;
         c.data.seq_length = 16;
       }},
      {"dense, learned positions, biases, dropout",
       [](RunConfig& c) {
         const ParallelConfig parallel = c.parallel;
         c = gpt_run_config();
         c.parallel = parallel;
         c.parallel.expert_model_parallel_size = 1;
       }},
  };
  for (const auto& [name, change] : variants) {
    RunConfig config = divided_config({4, 2, 1}, "optim_grads_params");
    change(config);
    config.model.dtype = "float64";
    SCOPED_TRACE(name);
    expect_equal(run_engine(on_one_rank(config), kSteps), run_engine(config, kSteps));
  }
}

// State is sharded over both the shard and the context axis: each of four ranks holds a quarter.
TEST(Fsdp, RanksThatShareSequencesShardTooInFloat64) {
  const auto planned = [](const RunConfig& config, const char* tag) {
    int64_t most = 0;
    for (const RankPlan& rank : make_plan(resolve(config, {})).ranks) most = std::max(most, rank.tags.at(tag));
    return static_cast<double>(most);
  };
  RunConfig config = divided_config({4, 1, 1}, "no_shard");
  config.model.dtype = "float64";
  config.data.seq_length = 16;
  const Trajectory one = run_engine(on_one_rank(config), kSteps);
  const double whole = planned(on_one_rank(config), "optimizer");
  for (const char* strategy : {"optim", "optim_grads", "optim_grads_params"})
    for (const int64_t context : {2, 4}) {
      config.parallel.data_parallel_sharding_strategy = strategy;
      config.parallel.context_parallel_size = context;
      SCOPED_TRACE(cat(described(config), ", sequences over ", context));
      const Trajectory four = run_engine(config, kSteps);
      expect_equal(one, four);
      EXPECT_EQ(make_plan(resolve(config, {})).arena_bytes(), four.arena_high_water);
      EXPECT_NEAR(planned(config, "optimizer"), whole / 4, 0.15 * whole / 4);
    }
}

// Three chunks for two owners, group sizes other than powers of two, and owners without a chunk.
TEST(Fsdp, ReshardingAndLateReductionChangeNoBit) {
  RunConfig config = divided_config({3, 1, 1}, "optim_grads_params");
  config.train.global_batch_size = 12;
  config.model.num_layers = 4;
  const Trajectory given_back = run_engine(config, 3);
  config.parallel.reshard_after_forward = false;
  const Trajectory kept = run_engine(config, 3);
  expect_same_bits(given_back, kept);
  EXPECT_LT(given_back.arena_high_water, kept.arena_high_water);

  config.parallel.reshard_after_forward = true;
  config.parallel.data_parallel_sharding_strategy = "optim";
  const Trajectory beside = run_engine(config, 3);
  config.parallel.overlap_grad_reduce = false;
  expect_same_bits(beside, run_engine(config, 3));
}

TEST(Fsdp, StateChecksPass) {
  RunConfig config = divided_config({4, 2, 1}, "optim_grads_params");
  config.train.check_states = true;
  EXPECT_EQ(run_engine(config, 2).losses.size(), 2u);
}

TEST(Fsdp, PlansAreExactAndRanksHoldOnlyTheirPart) {
  const auto planned = [](const RunConfig& config, const char* tag) {
    int64_t most = 0;
    for (const RankPlan& rank : make_plan(resolve(config, {})).ranks) most = std::max(most, rank.tags.at(tag));
    return static_cast<double>(most);
  };
  RunConfig config = divided_config({1, 1, 1}, "auto");
  config.model.vocab_size = 30'000;
  config.model.hidden_size = 64;
  const double weights = planned(config, "weights"), gradients = planned(config, "gradients");
  for (const int ranks : {2, 4}) {
    config.parallel = divided_config({ranks, 1, 1}, "optim_grads_params").parallel;
    EXPECT_NEAR(planned(config, "weights"), weights / ranks, 0.1 * weights / ranks);
    EXPECT_NEAR(planned(config, "gradients"), gradients / ranks, 0.1 * gradients / ranks);
    EXPECT_EQ(make_plan(resolve(config, {})).arena_bytes(), run_engine(config, 2).arena_high_water);
  }
}

// Rank 0's loss on held-out text, and the text that it generates.
std::pair<double, std::vector<int32_t>> evaluated(const RunConfig& config) {
  std::pair<double, std::vector<int32_t>> found;
  testing::with_rank_engines(config, [&](Stream& stream, const Groups& groups, Engine& engine, int rank) {
    const int ranks = groups.world().size();
    std::vector<Batch> batches;
    for (int64_t i = 0; i < 4 / ranks; ++i) batches.push_back(random_batch(config, rank * (4 / ranks) + i));
    const double loss = engine.evaluate(batches).loss();
    GenerateOptions options;
    options.max_tokens = 4;
    const auto text = generate(stream, engine.model(), std::vector<int32_t>{3, 1, 4}, options);
    if (rank == 0) found = {loss, text};
  });
  return found;
}

TEST(Fsdp, HeldOutLossAndSamplesEqualOneRank) {
  RunConfig config = divided_config({4, 2, 1}, "optim_grads_params");
  const auto one = evaluated(on_one_rank(config)), four = evaluated(config);
  EXPECT_NEAR(one.first, four.first, 1e-6 * one.first);
  EXPECT_EQ(one.second, four.second);
}

}  // namespace
}  // namespace witan
