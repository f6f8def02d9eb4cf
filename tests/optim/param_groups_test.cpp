#include "witan/optim/param_groups.h"

#include <gmock/gmock.h>

#include "optim/optim_support.h"
#include "support/message_of.h"
#include "witan/optim/lr_schedule.h"
#include "witan/optim/optimizer.h"

namespace witan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::parameter_with_gradient;
using testing::Rank;
using testing::values;

OptimizerConfig with_groups(const std::string& groups) {
  OptimizerConfig config;
  set_field(config.fields(), "optimizer_groups", groups, "--optimizer-groups");
  return config;
}

std::string refusal(const std::string& groups) {
  return test::message_of<ConfigError>([&] { with_groups(groups).validate(); });
}

TEST(ParamGroups, TheFirstMatchByNameOrKindCounts) {
  const ParamGroups groups(with_groups(R"([{match = "*.q_proj.*, head.weight"}, {kind = "norms,biases"},
                                           {kind = "matrices", match = "layers.0.*"}])"));
  const auto index = [&](const char* name, ParameterKind kind) {
    return groups.index_of({.name = name, .shape = {2, 2}, .kind = kind});
  };
  EXPECT_EQ(index("layers.1.attention.q_proj.weight", ParameterKind::matrices), 1U);
  EXPECT_EQ(index("layers.1.attention.q_proj.bias", ParameterKind::biases), 1U) << "the first match counts";
  EXPECT_EQ(index("head.weight", ParameterKind::head), 1U);
  EXPECT_EQ(index("layers.1.attention.k_proj.bias", ParameterKind::biases), 2U);
  EXPECT_EQ(index("norm.weight", ParameterKind::norms), 2U);
  EXPECT_EQ(index("layers.0.attention.k_proj.weight", ParameterKind::matrices), 3U) << "both must match";
  EXPECT_EQ(index("layers.1.attention.k_proj.weight", ParameterKind::matrices), 0U);
  EXPECT_EQ(index("layers.0.experts.up_proj", ParameterKind::experts), 0U);
  EXPECT_EQ(groups.all()[3].label, "kind = matrices, match = layers.0.*");
}

TEST(ParamGroups, InheritUnsetOptions) {
  OptimizerConfig config = with_groups(R"([{kind = "norms", optimizer = "sgd", lr = 0.5, decay_norms_and_biases = true},
                                           {kind = "head", lr_mult = 2, adam_beta2 = 0.5, shard_by = "matrices"}])");
  config.lr = 0.01;  // after the groups: they inherit the final values
  config.min_lr = 0.002;
  const ParamGroups groups(config);
  ASSERT_EQ(groups.size(), 3U);
  const OptimizerSettings &norms = groups.all()[1].settings, &head = groups.all()[2].settings;
  EXPECT_EQ(norms.optimizer, "sgd");
  EXPECT_EQ(norms.lr, 0.5);
  EXPECT_EQ(norms.min_lr, 0.002);
  EXPECT_EQ(norms.sgd_momentum, config.sgd_momentum);
  EXPECT_EQ(groups.all()[1].weight_decay({.name = "norm", .shape = {}, .weight_decay = false}), config.weight_decay);
  EXPECT_EQ(groups.all()[0].weight_decay({.name = "norm", .shape = {}, .weight_decay = false}), 0);
  EXPECT_EQ(head.lr, 0.02);
  EXPECT_EQ(head.min_lr, 0.004);
  EXPECT_EQ(head.adam_beta2, 0.5);
  EXPECT_EQ(head.adam_beta1, config.adam_beta1);
  EXPECT_EQ(groups.all()[2].shard_by, ShardBy::matrices);
  EXPECT_EQ(groups.all()[1].shard_by, ShardBy::elements) << "as SGD needs";
}

TEST(ParamGroups, FollowTheSameScheduleFromTheirOwnRates) {
  OptimizerConfig config = with_groups(R"([{kind = "norms", lr = 0.5, min_lr = 0.5}, {kind = "head", lr_mult = 3}])");
  config.lr_warmup_iters = 2;
  const ParamGroups groups(config);
  for (const int64_t iteration : {1, 2, 50, 100}) {
    const double rate = learning_rate(config, 100, iteration);
    EXPECT_THAT(groups.learning_rates(100, iteration),
                ElementsAre(rate, iteration == 1 ? 0.25 : 0.5, ::testing::DoubleNear(3 * rate, 1e-12)));
  }
}

TEST(ParamGroups, RefuseInvalidSettings) {
  EXPECT_EQ(
      refusal(R"([{kind = "router"}])"),
      "[[optimizer.groups]] 1: kind = router: there is no such kind (did you mean routers?); there are embeddings, "
      "head, norms, biases, routers, matrices, experts");
  EXPECT_EQ(refusal(R"([{kind = "head"}, {lr = 1}])"),
            "[[optimizer.groups]] 2: selects no parameters: set match, kind, or both");
  EXPECT_EQ(refusal(R"([{kind = "head", lr = 1e-5}])"),
            "[[optimizer.groups]] 1 (kind = head): min_lr = 0.0001 is above lr = 1e-05; lower min_lr");
  EXPECT_EQ(refusal(R"([{kind = "head", learning_rate = 1}])"),
            "--optimizer-groups: table 1 of optimizer_groups: there is no key learning_rate (did you mean lr?)");
  EXPECT_THAT(refusal(R"([{kind = "head", adam_beta_1 = 0.5}])"), HasSubstr("(did you mean adam_beta1?)"));
  EXPECT_THAT(refusal(R"([{kind = "head", optimizer = "adan"}])"), HasSubstr("must be one of adam, sgd"));
  EXPECT_THAT(refusal(R"([{kind = "head", lr = "fast"}])"), HasSubstr("lr must be a number, not"));
  EXPECT_THAT(refusal("{kind = "), HasSubstr("--optimizer-groups: not valid TOML"));
  EXPECT_THAT(refusal("norms"), HasSubstr("--optimizer-groups"));
}

struct Pair {
  explicit Pair(Rank& rank)
      : matrix(parameter_with_gradient(rank, {.name = "matrix", .shape = {3, 2}})),
        norm(parameter_with_gradient(
            rank, {.name = "norm", .shape = {4}, .weight_decay = false, .kind = ParameterKind::norms})) {}
  std::vector<ParameterShard> shards() const { return {{matrix.get(), 0, 6}, {norm.get(), 0, 4}}; }
  std::unique_ptr<Parameter> matrix, norm;
};

// AdamW and SGD in one model update like each alone, at their own rates.
TEST(ParamGroups, SeveralOptimizersUpdateTheirParameters) {
  Rank rank;
  const OptimizerConfig config = with_groups(R"([{kind = "norms", optimizer = "sgd", sgd_momentum = 0.5}])");
  const Pair both(rank), alone(rank);
  const auto optimizer = make_optimizer(config, rank.stream, both.shards());
  OptimizerConfig sgd = config;
  sgd.groups.clear();
  const auto adam = make_optimizer(sgd, rank.stream, {alone.shards()[0]});
  sgd.optimizer = "sgd";
  sgd.sgd_momentum = 0.5;
  const auto of_norm = make_optimizer(sgd, rank.stream, {alone.shards()[1]});
  StepState step(rank.stream, 2), first(rank.stream), second(rank.stream);
  for (int64_t i = 1; i <= 3; ++i) {
    step.set({0.1, 0.03}, i, i);
    first.set({0.1}, i, i);
    second.set({0.03}, i, i);
    optimizer->update(rank.stream, step);
    adam->update(rank.stream, first);
    of_norm->update(rank.stream, second);
  }
  EXPECT_EQ(values(both.matrix->value()), values(alone.matrix->value()));
  EXPECT_EQ(values(both.norm->value()), values(alone.norm->value()));
  std::vector<std::string> names;
  optimizer->visit([&](const OptimizerTensor& state) { names.push_back(state.name); });
  EXPECT_THAT(names, ElementsAre("adam.m/matrix", "adam.v/matrix", "sgd.momentum/norm"));
}

// The step's factor multiplies the weight decay of every optimizer.
TEST(ParamGroups, EveryOptimizerUsesTheStepsWeightDecay) {
  for (const std::string& name : optimizer_names()) {
    SCOPED_TRACE(name);
    const auto updated = [&](double decay, double share) {
      Rank rank;
      OptimizerConfig config = with_groups("[]");
      config.optimizer = name;
      config.weight_decay = decay;
      config.precondition_frequency = 1;
      const Pair pair(rank);
      const auto optimizer = make_optimizer(config, rank.stream, pair.shards());
      StepState step(rank.stream, ParamGroups(config).size());
      const std::vector<double> rates(ParamGroups(config).size(), 0.125);
      for (int64_t i = 1; i <= 2; ++i) {
        step.set(rates, i, i, share);
        optimizer->update(rank.stream, step);
      }
      return values(pair.matrix->value());
    };
    EXPECT_EQ(updated(0.5, 0.25), updated(0.125, 1));
    EXPECT_EQ(updated(0.5, 0), updated(0, 1));
    EXPECT_NE(updated(0.5, 0.25), updated(0.5, 1));
  }
}

TEST(ParamGroups, GroupsWithoutElementsTakeNoMemory) {
  Rank rank;
  const Pair pair(rank);
  const auto bytes_of = [&](const OptimizerConfig& config) {
    const auto optimizer = make_optimizer(config, rank.stream, {pair.shards()[0]});
    return rank.stream.arena().live(MemoryTag::optimizer);
  };
  EXPECT_GT(bytes_of({}), 0);
  EXPECT_EQ(bytes_of(with_groups(R"([{kind = "norms", optimizer = "sgd"}])")), bytes_of({}));
}

}  // namespace
}  // namespace witan
