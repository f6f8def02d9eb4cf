// A step compared with its definition in float64 on one rank: gradients from the test's own tapes, and their sum,
// clipping and update by hand. Tests of layouts cannot find an error that all layouts share.
#include "witan/train/step/engine.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "support/rank.h"
#include "support/thread_world.h"
#include "train/step/run_support.h"
#include "witan/moe/routers/balance.h"
#include "witan/ops/pointwise/elementwise.h"
#include "witan/ops/vocabulary/vocabulary.h"

namespace witan {
namespace {

using testing::close;
using testing::random_batch;
using testing::Rank;
using testing::small_config;
using testing::values;

RunConfig config_with(const char* optimizer) {
  RunConfig config = small_config();
  config.model.dtype = "float64";
  config.model.moe.moe_aux_loss_coeff = "0.1";
  config.model.moe.moe_z_loss_coeff = 0.01;
  config.optimizer.optimizer = optimizer;
  config.optimizer.clip_grad = 0.05;  // clips
  config.train.global_batch_size = 8;
  config.validate();
  return config;
}

// The tensors of a checkpoint may be read until the hook returns; if it throws, they stay unchanged.
TEST(Engine, CallsAHookBeforeItChangesSavedState) {
  RunConfig config = config_with("adam");
  Rank rank(1);
  const Groups groups = make_meta_groups(Layout(config.parallel, 1, config.model.moe.num_experts), 0);
  Engine engine(rank.stream, groups, resolve(config, {}));
  std::vector<Batch> batches;
  for (int64_t j = 0; j < config.micro_batches(); ++j) batches.push_back(random_batch(config, j));
  const auto state = [&] {
    std::vector<std::vector<double>> all;
    for (const StateTensor& tensor : engine.state()) all.push_back(values(tensor.local));
    return all;
  };
  const auto first = state();
  int calls = 0;
  engine.before_update([&] {
    ++calls;
    EXPECT_EQ(state(), first);
  });
  engine.step(batches, 1, 0);
  const auto second = state();
  EXPECT_NE(second, first);
  engine.before_update([&] { throw DiskFullError("the disk is full"); });
  EXPECT_THROW(engine.step(batches, 2, 1), DiskFullError);
  EXPECT_EQ(state(), second);
  EXPECT_EQ(calls, 1);
}

// Progress counts micro-batches, with a backward as two forwards.
TEST(Engine, ReportsProgressWithinAStep) {
  const RunConfig config = config_with("adam");
  Rank rank(1);
  const Groups groups = make_meta_groups(Layout(config.parallel, 1, config.model.moe.num_experts), 0);
  Engine engine(rank.stream, groups, resolve(config, {}));
  std::vector<double> shares;
  engine.after_pass([&](double share) { shares.push_back(share); });
  std::vector<Batch> batches;
  for (int64_t j = 0; j < config.micro_batches(); ++j) batches.push_back(random_batch(config, j));
  ASSERT_EQ(batches.size(), 4u);
  static constexpr double kShares[] = {1 / 12.0, 3 / 12.0, 4 / 12.0, 6 / 12.0, 7 / 12.0, 9 / 12.0, 10 / 12.0, 1};
  for (const int64_t step : {1, 2}) {
    shares.clear();
    engine.step(batches, step, step - 1);
    EXPECT_EQ(shares, std::vector(std::begin(kShares), std::end(kShares))) << "step " << step;
  }
}

// Every sample has two documents.
Batch batch_of(const RunConfig& config, int64_t number) {
  Batch batch = random_batch(config, number);
  for (size_t i = 0; i < batch.tokens.size(); ++i)
    if (batch.positions[i] >= 5) batch.positions[i] -= 5, batch.sequence_ids[i] = 1;
  return batch;
}

struct Expected {
  double loss = 0, balance = 0, z = 0, norm = 0;
  std::vector<std::vector<double>> before, gradients;  // of each parameter
};

Expected expected_step(Rank& rank, const RunConfig& config, const std::vector<Batch>& batches) {
  const Groups groups = make_meta_groups(Layout(config.parallel, 1, config.model.moe.num_experts), 0);
  Transformer model(rank.stream, config.model, static_cast<uint64_t>(config.train.seed), groups.of(Axis::expert));
  Expected expected;
  for (Parameter* parameter : model.parameters()) {
    expected.before.push_back(values(parameter->value()));
    parameter->bind_gradient(rank.stream.empty(parameter->value().shape(), DType::f64));
  }
  double targets = 0;
  for (const Batch& batch : batches)
    for (const float counts : batch.loss_mask) targets += counts;
  const auto share = 1.0 / static_cast<double>(batches.size());
  const auto& moe = config.model.moe;
  for (const Batch& batch : batches) {
    Tape tape(rank.stream);
    const Shape shape{batch.sequences, batch.sequence_length}, flat{shape.elements()};
    std::vector<double> weights;
    for (const float counts : batch.loss_mask) weights.push_back(counts / targets);
    const ModelOutput out =
        model.forward(tape, {rank.tensor(shape, batch.tokens),
                             {rank.tensor(shape, batch.positions), rank.tensor(shape, batch.sequence_ids)}});
    const Var loss =
        ops::cross_entropy(tape, out.logits, rank.tensor(flat, batch.targets), rank.tensor(flat, weights)).loss;
    std::vector<std::pair<Var, double>> terms = {{loss, 1.0}};
    expected.loss += values(loss.value())[0];
    const auto blocks = static_cast<double>(out.routers.size());
    for (const RouterRecord& router : out.routers) {
      const Var& balance = router.loss(kBalanceLoss);
      terms.emplace_back(balance, share * moe.balance_losses().front().coefficient);
      expected.balance += share / blocks * values(balance.value())[0];
    }
    for (const RouterRecord& router : out.routers) {
      const Var& z = router.loss(kZLoss);
      terms.emplace_back(z, share * moe.moe_z_loss_coeff);
      expected.z += share / blocks * values(z.value())[0];
    }
    tape.backward({{ops::weighted_sum(tape, terms), {}}});
  }
  double squares = 0;
  for (Parameter* parameter : model.parameters()) {
    expected.gradients.push_back(values(parameter->gradient()));
    for (const double g : expected.gradients.back()) squares += g * g;
  }
  expected.norm = std::sqrt(squares);
  return expected;
}

TEST(Engine, AStepFollowsItsDefinition) {
  for (const char* optimizer : {"sgd", "adam"}) {
    SCOPED_TRACE(optimizer);
    const RunConfig config = config_with(optimizer);
    std::vector<Batch> batches;
    for (int64_t i = 0; i < config.micro_batches(); ++i) batches.push_back(batch_of(config, i));
    Rank rank;
    const Expected expected = expected_step(rank, config, batches);

    const Groups groups = make_meta_groups(Layout(config.parallel, 1, config.model.moe.num_experts), 0);
    Engine engine(rank.stream, groups, resolve(config, {}));
    // This is the second iteration and the first update: the previous step was skipped.
    const StepResult result = engine.step(batches, 2, 0);
    const double lr = config.optimizer.lr * 2 / 3;  // warming up over 3
    EXPECT_NEAR(result.learning_rate, lr, 1e-15);
    EXPECT_NEAR(result.loss, expected.loss, 1e-12 * expected.loss);
    EXPECT_NEAR(result.router.model(kBalanceLoss).value(), expected.balance, 1e-12 * expected.balance);
    EXPECT_NEAR(result.router.model(kZLoss).value(), expected.z, 1e-12 * expected.z);
    EXPECT_NEAR(result.gradient_norm, expected.norm, 1e-12 * expected.norm);
    EXPECT_FALSE(result.skipped);

    const double scale = config.optimizer.clip_grad / (expected.norm + 1e-6);
    ASSERT_LT(scale, 1);
    const auto parameters = engine.model().parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const double decay = parameters[i]->spec().weight_decay ? config.optimizer.weight_decay : 0;
      std::vector<double> after = expected.before[i];
      for (size_t k = 0; k < after.size(); ++k) {
        const double g = scale * expected.gradients[i][k];
        const double pull = config.optimizer.optimizer == "sgd" ? g : g / (std::abs(g) + config.optimizer.adam_eps);
        after[k] -= lr * (pull + decay * after[k]);
      }
      EXPECT_TRUE(close(values(parameters[i]->value_shard()), after, 1e-8 * lr, 1e-12)) << parameters[i]->name();
    }
  }
}

TEST(Engine, StepsDrawNewMasksAndEvaluationsNone) {
  RunConfig config = testing::gpt_run_config();
  config.optimizer.lr = config.optimizer.min_lr = 0;  // the weights do not change
  config.train.global_batch_size = 4;
  Rank rank;
  const Groups groups = make_meta_groups(Layout(config.parallel, 1, 0), 0);
  Engine engine(rank.stream, groups, resolve(config, {}));
  const std::vector<Batch> batches = {batch_of(config, 0), batch_of(config, 0)};
  const auto loss = [&](int64_t iteration) { return engine.step(batches, iteration, 0).loss; };
  const double first = loss(1), second = loss(2);
  EXPECT_NE(first, second);
  EXPECT_EQ(loss(1), first) << "a repeated iteration draws the same mask";
  const double evaluated = engine.evaluate(batches).loss();
  config.model.hidden_dropout = config.model.attention.attention_dropout = 0;
  Engine plain(rank.stream, groups, resolve(config, {}));
  EXPECT_EQ(plain.evaluate(batches).loss(), evaluated);
  EXPECT_NE(first, evaluated);
  // With the same mask, these two equal micro-batches would have the loss of one.
  config = testing::gpt_run_config();
  config.train.global_batch_size = config.train.micro_batch_size;
  Engine small(rank.stream, groups, resolve(config, {}));
  EXPECT_GT(std::abs(small.step({batches[0]}, 1, 0).loss - first), 1e-3);
}

// A signal may reach only one process of a run; if ranks have different reasons, all use the same one.
TEST(Engine, EveryRankLearnsWhyOneRequestsTheEnd) {
  RunConfig config = small_config();
  config.parallel = {4, 2, 1};
  config.validate();
  const Layout layout(config.parallel, 4, config.model.moe.num_experts);
  testing::on_ranks(4, [&](testing::ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout, rank.rank);
    Engine engine(rank.stream, groups, resolve(config, {}));
    using enum RunEnd;
    const auto batches = testing::own_batches(config, layout, rank.rank, 0);
    int64_t step = 0;
    const auto end_where = [&](const std::array<RunEnd, 4>& asked) {
      ++step;
      return engine.step(batches, step, step - 1, [&] { return asked[static_cast<size_t>(rank.rank)]; }).end;
    };
    EXPECT_EQ(end_where({}), none);
    for (size_t asking = 0; asking < 4; ++asking)
      for (const RunEnd why : {exit_duration_in_mins, exit_interval, preempted, interrupted}) {
        std::array<RunEnd, 4> asked = {};
        asked[asking] = why;
        EXPECT_EQ(end_where(asked), why) << "rank " << asking << " asks";
      }
    EXPECT_EQ(end_where({exit_interval, exit_duration_in_mins, interrupted, preempted}), interrupted);
    EXPECT_EQ(end_where({none, exit_interval, exit_duration_in_mins, exit_interval}), exit_interval);
    EXPECT_EQ(end_where({}), none) << "earlier requests are cleared";
  });
}

}  // namespace
}  // namespace witan
