// Sharded gradients and values within pipeline stages (ZeRO-2, FSDP) change no result.
#include <gtest/gtest.h>

#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::expect_equal;
using testing::run_engine;
using testing::small_config;
using testing::Trajectory;

constexpr int64_t kSteps = 3;

struct Division {
  int64_t ranks, stages, chunks = 0, first = 0, expert = 1, instances = 1;
  bool reshard = true;
};

// Four layers and eight micro-batches; some ranks own parts of the embedding, others nothing.
RunConfig layered_config() {
  RunConfig config = small_config();
  config.model.num_layers = 4;
  config.model.vocab_size = 2503;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 8;
  config.parallel = {1, 1, 1};
  return config;
}

RunConfig divided(RunConfig config, const Division& of, const char* strategy) {
  ParallelConfig& parallel = config.parallel;
  parallel.ranks = of.ranks;
  parallel.expert_model_parallel_size = of.expert;
  parallel.pipeline_model_parallel_size = of.stages;
  parallel.num_virtual_stages_per_pipeline_rank = of.chunks;
  parallel.decoder_first_pipeline_num_layers = of.first;
  parallel.num_distributed_optimizer_instances = of.instances;
  parallel.data_parallel_sharding_strategy = strategy;
  parallel.reshard_after_forward = of.reshard || strategy != std::string("optim_grads_params");
  return config;
}

std::string described(const Division& of, const char* strategy) {
  return cat(strategy, ", ", of.ranks, " ranks, ", of.stages, " stages, ", of.chunks, " chunks, first ", of.first,
             ", experts over ", of.expert, ", ", of.instances, " instances", of.reshard ? "" : ", kept after forward");
}

const std::vector<Division> kDivisions = {
    {.ranks = 4, .stages = 2},
    {.ranks = 4, .stages = 2, .chunks = 2, .reshard = false},
    {.ranks = 4, .stages = 2, .first = 3, .expert = 2},
    {.ranks = 8, .stages = 2, .chunks = 2, .expert = 2, .instances = 2},
};

TEST(FsdpPipeline, EveryDivisionEqualsOneRankInFloat64) {
  for (const bool untied : {false, true}) {
    RunConfig config = layered_config();
    config.model.dtype = "float64";
    config.model.untie_embeddings_and_output_weights = untied;
    const Trajectory one = run_engine(config, kSteps);
    for (const char* strategy : {"optim_grads", "optim_grads_params"})
      for (const Division& division : kDivisions)
        expect_equal(one, run_engine(divided(config, division, strategy), kSteps), 1e-9,
                     cat(untied ? "untied, " : "", described(division, strategy)));
  }
}

TEST(FsdpPipeline, ModelVariantsEqualOneRankInFloat64) {
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> variants = {
      {"PyTorch's initial values, untied",
       [](RunConfig& c) {
         c.model.init_method = "torch";
         c.model.untie_embeddings_and_output_weights = true;
       }},
      {"PyTorch's initial values, tied", [](RunConfig& c) { c.model.init_method = "torch"; }},
      {"full recompute", [](RunConfig& c) { c.model.recompute_granularity = "full"; }},
      {"dense, learned positions, biases, dropout",
       [](RunConfig& c) {
         const TrainConfig train = c.train;
         c = testing::gpt_run_config();
         c.train = train;
         c.model.num_layers = 4;
       }},
      {"the embedding and the loss are stages by themselves",
       [](RunConfig& c) {
         c.parallel.account_for_embedding_in_pipeline_split = c.parallel.account_for_loss_in_pipeline_split = true;
         c.model.num_layers = 2;
       }},
  };
  for (const auto& [name, change] : variants) {
    RunConfig config = layered_config();
    change(config);
    config.model.dtype = "float64";
    const Trajectory one = run_engine(config, kSteps);
    const bool experts = config.model.moe.num_experts > 0;
    for (const Division& division : std::vector<Division>{{.ranks = 4, .stages = 2, .chunks = 2},
                                                          {.ranks = 8, .stages = 4, .expert = experts ? 2 : 1}})
      expect_equal(one, run_engine(divided(config, division, "optim_grads_params"), kSteps), 1e-9,
                   cat(name, ", ", described(division, "")));
  }
}

TEST(FsdpPipeline, DeterministicLayoutsHaveTheBitsOfOneRank) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    RunConfig config = layered_config();
    config.model.dtype = dtype;
    config.parallel.deterministic = true;
    const Trajectory one = run_engine(config, kSteps);
    for (const char* strategy : {"optim_grads", "optim_grads_params"})
      for (const Division& division : kDivisions) {
        SCOPED_TRACE(cat(dtype, ", ", described(division, strategy)));
        const Trajectory several = run_engine(divided(config, division, strategy), kSteps);
        EXPECT_EQ(one.losses, several.losses);
        EXPECT_EQ(one.norms, several.norms);
        EXPECT_TRUE(one.weights == several.weights);
      }
  }
}

// Values are resharded after each forward or kept for the whole step: fewer bytes stored or fewer sent, and the same
// bits.
TEST(FsdpPipeline, ValuesKeptForAllMicroBatchesAreGatheredOnce) {
  const Division division = {.ranks = 4, .stages = 2, .chunks = 2};
  RunConfig config = divided(layered_config(), division, "optim_grads_params");
  const auto gathered = [](const RunConfig& of) {
    double most = 0;
    for (const RankPlan& rank : make_plan(resolve(of, {})).ranks)
      most = std::max(most, rank.sent.at("shard").at("all_gather_uneven"));
    return most;
  };
  const double each_time = gathered(config);
  const Trajectory given_back = run_engine(config, kSteps);
  EXPECT_EQ(make_plan(resolve(config, {})).arena_bytes(), given_back.arena_high_water);
  config.parallel.reshard_after_forward = false;
  const Trajectory kept = run_engine(config, kSteps);
  EXPECT_EQ(make_plan(resolve(config, {})).arena_bytes(), kept.arena_high_water);
  EXPECT_EQ(given_back.losses, kept.losses);
  EXPECT_TRUE(given_back.weights == kept.weights);
  EXPECT_LT(given_back.arena_high_water, kept.arena_high_water);
  EXPECT_LT(gathered(config), each_time / 2);
}

TEST(FsdpPipeline, StateChecksPass) {
  for (const char* strategy : {"optim_grads", "optim_grads_params"}) {
    RunConfig config = divided(layered_config(), {.ranks = 8, .stages = 2, .expert = 2}, strategy);
    config.train.check_states = true;
    EXPECT_EQ(run_engine(config, 2).losses.size(), 2u);
  }
}

}  // namespace
}  // namespace witan
