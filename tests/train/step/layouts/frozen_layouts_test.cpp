// Frozen parameters keep their bits in every layout, and trained parameters take the steps of one rank.
#include <gtest/gtest.h>

#include "support/long_form.h"
#include "train/step/layouts/one_rank.h"
#include "witan/train/config/trained_parameters.h"

namespace witan {
namespace {

using testing::expect_bits_of_one_rank;
using testing::expect_recomputation_changes_no_bit;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

const int64_t kFrozenSteps = testing::steps_of(3, 20);
constexpr const char* kOfGradients = "optim_grads";
constexpr const char* kOfParameters = "optim_grads_params";

RunConfig frozen(const char* patterns, const char* dtype = "float64") {
  RunConfig config = testing::divisible_config(dtype);
  config.model.vocab_size = 64;
  config.train.global_batch_size = 4;
  config.model.freeze = patterns;
  return laid_out(config, {});
}

// Every axis, and pipeline stages without a trained parameter.
const std::vector<LaidOut> kFrozenLayouts = {
    {"replicate=2"},
    {"shard=2"},
    {"shard=4", kOfGradients},
    {"shard=4", kOfParameters},
    {"replicate=2,shard=2", kOfParameters},
    {"context=2"},
    {"tensor=2,expert_tensor=1"},
    {"pipeline=4"},
    {"pipeline=2", "auto", 2},
    {"replicate=4,expert=4"},
    {"replicate=2,expert_tensor=2"},
    {"shard=2,pipeline=2", kOfParameters, 2},
    {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kOfParameters},
    {.mesh = "shard=2,tensor=2", .strategy = kOfParameters, .reshard_after_forward = false},
};

// By name, as run_engine() returns them.
std::map<std::string, std::vector<double>> named(const RunConfig& config, const Trajectory& run) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : all_parameters(config.model)) names.push_back(spec.name);
  std::ranges::sort(names);
  EXPECT_EQ(names.size(), run.weights.size());
  std::map<std::string, std::vector<double>> all;
  for (size_t i = 0; i < names.size(); ++i) all[names[i]] = run.weights[i];
  return all;
}

void expect_kept_and_trained(const RunConfig& config, const Trajectory& begun, const Trajectory& run) {
  auto before = named(config, begun), after = named(config, run);
  for (const ParameterSpec& spec : all_parameters(config.model))
    EXPECT_EQ(before[spec.name] == after[spec.name], spec.frozen) << spec.name;
}

class FrozenLayouts : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Patterns, FrozenLayouts,
                         ::testing::Values("embeddings,layers.0.*,layers.1.*", "layers.[23].*,norms", "experts,routers",
                                           "*.k_proj.*,layers.*.attention_norm.*", "matrices,experts,embeddings"));

TEST_P(FrozenLayouts, EqualOneRankInFloat64) {
  const RunConfig config = frozen(GetParam());
  const Trajectory begun = run_engine(config, 0);
  const Trajectory one =
      testing::compare_layouts(config, kFrozenLayouts, kFrozenSteps,
                               [&](const Trajectory& of_one_rank, const Trajectory& several, const std::string& what) {
                                 testing::expect_nearly_equal(of_one_rank, several, what);
                                 expect_kept_and_trained(config, begun, several);
                               });
  expect_kept_and_trained(config, begun, one);
}

TEST(Frozen, RecomputedBlocksGiveTheSameBits) {
  for (const char* patterns : {"embeddings,layers.0.*,layers.1.*", "experts,routers", "*.k_proj.*"}) {
    SCOPED_TRACE(patterns);
    expect_recomputation_changes_no_bit(frozen(patterns, "float32"), 3);
  }
}

TEST(Frozen, DeterministicLayoutsGiveTheSameBits) {
  RunConfig config = frozen("embeddings,*.q_proj.*,layers.1.*", "float32");
  config.parallel.deterministic = true;
  config.train.check_states = true;
  expect_bits_of_one_rank(
      config, {{"replicate=4,expert=2"}, {"shard=4", kOfParameters}, {"pipeline=2", "auto", 2}, {"shard=2,pipeline=2"}},
      3);
}

// Frozen parameters have neither gradients nor state, and their gradients are not computed.
TEST(Frozen, PlansOmitGradientsStateAndProducts) {
  const auto planned = [](const char* patterns) {
    return make_plan(resolve(frozen(patterns, "float32"), {})).ranks.front();
  };
  const auto products = [](const RankPlan& rank) {
    double flops = 0;
    for (const auto& [part, kernels] : rank.step)
      for (const auto& [kernel, cost] : kernels)
        if (kernel.find("gemm") != std::string::npos) flops += cost.flops;
    return flops;
  };
  const RankPlan all = planned(""), low = planned("embeddings,layers.0.*,layers.1.*,layers.2.*"),
                 experts = planned("experts");
  RunConfig config = frozen("experts", "float32");
  const TrainedParameters counts = count_trained(config.model);
  const int64_t bytes = 4 * (counts.held - counts.all);
  EXPECT_NEAR(static_cast<double>(all.tags.at("gradients") - experts.tags.at("gradients")), static_cast<double>(bytes),
              4096);
  EXPECT_NEAR(static_cast<double>(all.tags.at("optimizer") - experts.tags.at("optimizer")),
              2 * static_cast<double>(bytes), 4096);
  EXPECT_EQ(all.tags.at("weights"), experts.tags.at("weights"));
  EXPECT_LT(products(low), 0.62 * products(all)) << "three of four layers have only a forward";
  EXPECT_LT(products(experts), 0.9 * products(all));
  EXPECT_LT(low.tags.at("activations"), all.tags.at("activations"));
}

// Balancing buffers of a frozen router do not change either.
TEST(Frozen, RoutersKeepTheirBias) {
  RunConfig config = frozen("routers", "float32");
  config.model.moe.moe_router_load_balancing_type = "none";
  config.model.moe.moe_router_enable_expert_bias = true;
  config.model.moe.moe_router_score_function = "sigmoid";
  const auto biases = [](const RunConfig& of) {
    double sum = 0;
    const Trajectory run = run_engine(of, 2);
    for (const std::vector<double>& values : run.weights)
      if (values.size() == static_cast<size_t>(of.model.moe.num_experts))
        for (const double value : values) sum += std::abs(value);
    return sum;
  };
  EXPECT_EQ(biases(config), 0);
  config.model.freeze.clear();
  EXPECT_GT(biases(config), 0);
}

}  // namespace
}  // namespace witan
