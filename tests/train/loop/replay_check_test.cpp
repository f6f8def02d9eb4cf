// Ranks recompute each other's micro-batches: a flipped bit is found before the update, and without one the check does
// not change the run.
#include "witan/train/loop/replay_check.h"

#include <gmock/gmock.h>

#include <atomic>

#include "support/message_of.h"
#include "train/loop/trainer_support.h"
#include "witan/parallel/mesh_shorthand.h"

namespace witan {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Replay : public testing::Trainer {
 protected:
  RunConfig config(const std::string& name, const std::string& mesh, int64_t interval) {
    RunConfig config = Trainer::config(name);
    config.train.sample_tokens = 0;
    config.train.replay_interval = interval;
    config.train.straggler_threshold = 0;
    config.parallel = {1, 1, 1};
    config.parallel.mesh = mesh;
    expand_mesh(config.parallel, {});
    return config;
  }

  // From `step` on, flips a bit of one gradient of that rank in its backward passes number `from` to `to`.
  struct Fault {
    int rank;
    int64_t step;
    int from, to;
  };
  std::string complaint(const RunConfig& ill, const Fault& fault) {
    aids_.before_step = [this, fault](int rank, int64_t step, std::vector<Batch>&, Engine& engine) {
      if (rank != fault.rank || step != fault.step) return;
      Parameter& parameter = *engine.model().parameters().at(3);
      faulty_ = parameter.name();
      parameter.gradient_ready = [fault, backwards = 0,
                                  of_engine = parameter.gradient_ready](Parameter& ready) mutable {
        if (backwards >= fault.from && backwards < fault.to) ready.gradient().raw()[17] ^= std::byte{1};
        ++backwards;
        of_engine(ready);
      };
    };
    return message_of<CommError>([&] { run(ill); });
  }
  std::string faulty_;  // name of a parameter
};

// Each of the two ranks has two micro-batches. The second one's gradient is wrong in the step itself.
TEST_F(Replay, OfTwoRanksBothAreNamed) {
  const std::string said = complaint(config("two", "replicate=2", 3), {.rank = 1, .step = 6, .from = 1, .to = 2});
  EXPECT_THAT(said, HasSubstr(cat("step 6: replay_interval: of the micro-batches of rank 1, rank 0 computed other bits "
                                  "than rank 1, first in the gradient of ",
                                  faulty_, " in micro-batch 3, and there is no third replica to say which is right")));
  EXPECT_TRUE(fs::exists(checkpoint("two", 4)));
  EXPECT_FALSE(fs::exists(checkpoint("two", 8)));
}

// Rank 2 recomputes rank 1's micro-batch wrongly, before step 6 and after its own backward in step 5.
TEST_F(Replay, OfFourRanksAThirdOneDecides) {
  const std::string said = complaint(config("four", "replicate=4", 3), {.rank = 2, .step = 5, .from = 1, .to = 2});
  EXPECT_THAT(said,
              HasSubstr(cat("of the micro-batches of rank 1, rank 2 computed other bits than rank 1, first in the "
                            "gradient of ",
                            faulty_, " in micro-batch 1, and rank 3 the same as rank 1: rank 2 is wrong")));
  EXPECT_THAT(said, Not(HasSubstr("; of the micro-batches")));
}

TEST_F(Replay, ARankWithAWrongStepIsNamedByTwoOthers) {
  const std::string said = complaint(config("step", "replicate=4", 3), {.rank = 2, .step = 6, .from = 0, .to = 1});
  EXPECT_THAT(said, HasSubstr("and rank 0 the same as rank 3: rank 2 is wrong"));
}

TEST_F(Replay, ARankThatIsAlwaysWrongIsNamedTwice) {
  const std::string said = complaint(config("always", "replicate=4", 2), {.rank = 2, .step = 3, .from = 0, .to = 100});
  EXPECT_THAT(said, AllOf(HasSubstr("of the micro-batches of rank 1, rank 2 computed other bits"),
                          HasSubstr("; of the micro-batches of rank 2, rank 3 computed other bits"),
                          HasSubstr("rank 3 the same as rank 1: rank 2 is wrong"),
                          HasSubstr("rank 0 the same as rank 3: rank 2 is wrong")));
}

// Sharded gradients are freed as they are reduced, and faults in them are found too.
TEST_F(Replay, ShardedGradientsAreCompared) {
  RunConfig sharded = config("sharded", "shard=2", 3);
  sharded.parallel.data_parallel_sharding_strategy = "optim_grads_params";
  const std::string said = complaint(sharded, {.rank = 0, .step = 6, .from = 0, .to = 1});
  EXPECT_THAT(said, HasSubstr(cat("first in the gradient of ", faulty_, " in micro-batch 0")));
}

TEST_F(Replay, ADifferentBatchOnOneRankShowsInTheLoss) {
  aids_.before_step = [](int rank, int64_t step, std::vector<Batch>& batches, Engine&) {
    if (rank == 1 && step == 4) batches.back().tokens[5] ^= 1;
  };
  const RunConfig ill = config("batch", "replicate=2", 4);
  EXPECT_THAT(message_of<CommError>([&] { run(ill); }), HasSubstr("than rank 1, first in the loss in micro-batch 3"));
}

class ReplayLayouts : public Replay, public ::testing::WithParamInterface<const char*> {};

// Dropout, with random numbers per micro-batch, and router losses of the global batch are the same.
TEST_P(ReplayLayouts, TheCheckDoesNotChangeTheRun) {
  RunConfig replayed = config("replayed", GetParam(), 2), plain = config("plain", GetParam(), 0);
  for (RunConfig* one : {&replayed, &plain}) {
    one->model.hidden_dropout = 0.1;
    one->model.attention.attention_dropout = 0.1;
    one->model.moe.moe_router_enable_expert_bias = true;
    one->model.moe.moe_router_score_function = "sigmoid";
    one->train.train_iters = 6;
    one->data.seq_length = 16;
    one->parallel.sequence_parallel = std::string_view(GetParam()).ends_with("tensor=2");
    one->parallel.data_parallel_sharding_strategy =
        std::string_view(GetParam()).starts_with("shard") ? "optim_grads_params" : "no_shard";
    one->parallel.deterministic = std::string_view(GetParam()).ends_with("expert=2");
    one->train.check_messages = one == &replayed;
  }
  run(replayed);
  run(plain);
  EXPECT_EQ(weights("replayed", 6), weights("plain", 6));
  expect_same_steps("replayed", "plain");
}
INSTANTIATE_TEST_SUITE_P(Meshes, ReplayLayouts,
                         ::testing::Values("replicate=2", "replicate=4", "shard=2", "replicate=4,expert=2",
                                           "replicate=2,tensor=2", "replicate=2,pipeline=2", "replicate=2,context=2"));

TEST(ReplayConfig, RefusesIncomparableConfigurations) {
  const auto refusal = [](const std::function<void(RunConfig&)>& change) {
    RunConfig config = testing::small_config();
    config.parallel = {2, 1, 1};
    config.train.replay_interval = 10;
    config.validate();
    change(config);
    return message_of<ConfigError>([&] { config.validate(); });
  };
  EXPECT_THAT(refusal([](RunConfig& config) { config.parallel.expert_model_parallel_size = 2; }),
              HasSubstr("with ranks = 2: they hold one copy"));
  EXPECT_THAT(refusal([](RunConfig& config) { config.parallel.device = "cuda"; }), HasSubstr("with device = cuda"));
  EXPECT_THAT(refusal([](RunConfig& config) { config.train.record_routes = "routes"; }),
              HasSubstr("with record_routes = routes"));
  EXPECT_THAT(refusal([](RunConfig& config) {
                config.parallel = {4, 2, 1};
                config.model.moe.moe_pool_factor = 1.5;
              }),
              HasSubstr("with moe_pool_factor above 0"));
  EXPECT_THAT(refusal([](RunConfig& config) {
                config.parallel = {4, 2, 1};
                config.model.moe.moe_exchange_factor = 1.5;
              }),
              HasSubstr("with moe_exchange_factor above 0"));
  EXPECT_THAT(refusal([](RunConfig& config) {
                config.train.replay_interval = 0;
                config.train.check_messages = true;
                config.parallel.device = "cuda";
              }),
              HasSubstr("check_messages = true with device = cuda: NCCL moves what GPUs exchange"));
}

}  // namespace
}  // namespace witan
