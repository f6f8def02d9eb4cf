// Runs resumed in other layouts.
#include "train/loop/trainer_support.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/loop/trainer.h"

namespace witan {
namespace {

using testing::Trainer;

// Two optimizers shard by elements and by matrices. Their groups are in the run's configuration, so a resumed run need
// not repeat them. Layouts and sharding change no bit.
TEST_F(Trainer, ResumesParameterGroupsInAnotherLayoutBitwise) {
  const auto grouped = [&](const std::string& name, int64_t ranks, const char* strategy, int64_t steps) {
    RunConfig config = this->config(name);
    config.parallel = {static_cast<int>(ranks), 1, 1, true};
    config.parallel.data_parallel_sharding_strategy = strategy;
    config.train.train_iters = steps;
    set_field(config.fields(), "optimizer_groups",
              R"([{kind = "matrices,experts", shard_by = "matrices", lr_mult = 0.5},
                  {kind = "routers,norms", optimizer = "sgd", lr = 0.02}])",
              "test");
    return config;
  };
  run(grouped("one", 1, "auto", 12));
  run(grouped("moved", 4, "optim_grads_params", 4));
  const auto saved = saved_config(folder_ / "moved");
  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->optimizer.groups, grouped("moved", 1, "auto", 1).optimizer.groups);
  EXPECT_EQ(run(grouped("moved", 2, "optim_grads", 8)).resumed_from, 4);
  EXPECT_EQ(run(grouped("moved", 1, "auto", 12)).resumed_from, 8);
  EXPECT_EQ(weights("one", 12), weights("moved", 12));
}

// Compares global tensors, since the last layout has different shards.
TEST_F(Trainer, ResumesInAnotherLayoutBitwise) {
  const auto layout = [&](const std::string& name, int64_t ranks, int64_t expert, int64_t steps) {
    RunConfig config = this->config(name);
    config.parallel.ranks = ranks;
    config.parallel.expert_model_parallel_size = expert;
    config.parallel.deterministic = true;
    config.train.train_iters = steps;
    testing::drop(config);
    return config;
  };
  run(layout("one", 1, 1, 12));
  run(layout("moved", 4, 2, 4));
  run(layout("moved", 2, 2, 8));
  RunConfig piped = layout("moved", 4, 2, 10);
  piped.parallel.pipeline_model_parallel_size = 2;
  EXPECT_EQ(run(piped).resumed_from, 8);
  EXPECT_EQ(run(layout("moved", 1, 1, 12)).resumed_from, 10);
  EXPECT_EQ(weights("one", 12), weights("moved", 12));
  expect_same_steps("one", "moved");
}

// Delayed scales and their history are resumed in every layout.
TEST_F(Trainer, ResumesDelayedScalesInAnotherLayoutBitwise) {
  const auto layout = [&](const std::string& name, int64_t ranks, int64_t expert, int64_t steps) {
    RunConfig config = this->config(name);
    config.model.dtype = "bfloat16";
    config.model.mlp.ffn_hidden_size = 32;
    config.model.attention.num_query_groups = config.model.attention.num_attention_heads;
    config.model.fp8_format = "hybrid";
    config.model.fp8_recipe = "delayed";
    config.model.fp8_amax_compute_algo = "max";
    config.model.fp8_amax_history_len = 3;
    config.parallel.ranks = ranks;
    config.parallel.expert_model_parallel_size = expert;
    config.parallel.deterministic = true;
    config.train.train_iters = steps;
    return config;
  };
  run(layout("one", 1, 1, 12));
  run(layout("moved", 4, 2, 4));
  EXPECT_EQ(run(layout("moved", 2, 2, 8)).resumed_from, 4);
  EXPECT_EQ(run(layout("moved", 1, 1, 12)).resumed_from, 8);
  EXPECT_EQ(weights("one", 12), weights("moved", 12));
  expect_same_steps("one", "moved");
}

// Ranks divide 289 vocabulary entries unevenly: the same model with and without padding rows.
TEST_F(Trainer, RanksWithUnevenVocabulariesResumeEachOther) {
  for (const int64_t multiple : {1, 16}) {
    const auto layout = [&](const std::string& name, int64_t tensor, int64_t steps) {
      RunConfig config = this->config(cat(name, multiple));
      config.data.bpe.vocab_size = 289;
      config.model.dtype = "float64";
      config.model.make_vocab_size_divisible_by = multiple;
      config.model.init_method = "torch";
      config.model.attention.num_query_groups = 4;
      config.parallel = {tensor, 1, 1};
      config.parallel.tensor_model_parallel_size = tensor;
      config.parallel.sequence_parallel = tensor > 1;
      config.train.train_iters = steps;
      return config;
    };
    run(layout("alone", 1, 12));
    run(layout("moved", 1, 2));
    EXPECT_EQ(run(layout("moved", 2, 5)).resumed_from, 2);
    EXPECT_EQ(run(layout("moved", 4, 8)).resumed_from, 5);
    EXPECT_EQ(run(layout("moved", 1, 12)).resumed_from, 8);
    const auto one = steps(cat("alone", multiple)), moved = steps(cat("moved", multiple));
    ASSERT_EQ(one.size(), 12U);
    ASSERT_EQ(moved.size(), 12U);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(moved[i].loss, one[i].loss, 1e-9 * one[i].loss) << "step " << one[i].step;
      EXPECT_NEAR(moved[i].grad_norm, one[i].grad_norm, 1e-9 * one[i].grad_norm) << "step " << one[i].step;
    }
    EXPECT_LT(one.back().loss, one.front().loss);
  }
  EXPECT_NEAR(steps("alone1").front().loss, steps("alone16").front().loss, 1e-9);
}

TEST_F(Trainer, ContinuesInAnotherLayout) {
  RunConfig one = config("moved");
  one.model.dtype = "float64";
  RunConfig whole = one;
  whole.train.run = "whole64";
  run(whole);
  one.train.train_iters = 8;
  run(one);
  one.train.train_iters = 12;
  one.parallel = {4, 2, 1};
  run(one);
  const auto a = steps("whole64"), b = steps("moved");
  ASSERT_EQ(b.size(), 12u);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i].loss, b[i].loss, 1e-9 * a[i].loss) << "step " << a[i].step;
}

}  // namespace
}  // namespace witan
