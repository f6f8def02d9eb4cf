// Training with one scale per tensor, and with gradients in E5M2: it learns as in 16 bits, layouts agree, the plan
// holds, and only training steps update delayed scales.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "train/step/fp8_support.h"
#include "witan/convert/weight_source.h"

namespace witan {
namespace {

using testing::expect_near;
using testing::fp8_config;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

struct Recipe {
  const char *name, *format, *recipe, *algo = "most_recent";
  int64_t history = 1;
};
const std::vector<Recipe> kRecipes = {{"blockwise_hybrid", "hybrid", "blockwise"},
                                      {"tensorwise", "e4m3", "tensorwise"},
                                      {"tensorwise_hybrid", "hybrid", "tensorwise"},
                                      {"delayed", "e4m3", "delayed"},
                                      {"delayed_hybrid_max", "hybrid", "delayed", "max", 3}};

RunConfig by(const Recipe& recipe, const char* dtype = "bfloat16") {
  RunConfig config = fp8_config(dtype);
  config.model.fp8_format = recipe.format;
  config.model.fp8_recipe = recipe.recipe;
  config.model.fp8_amax_compute_algo = recipe.algo;
  config.model.fp8_amax_history_len = recipe.history;
  return config;
}

class Fp8RecipesInTraining : public ::testing::TestWithParam<Recipe> {};

TEST_P(Fp8RecipesInTraining, LosesNothingOverTwentySteps) {
  const RunConfig config = by(GetParam());
  RunConfig wide = config;
  wide.model.fp8_format = "none";
  const Trajectory narrow = run_engine(config, 20), expected = run_engine(wide, 20);
  EXPECT_LT(narrow.losses.back(), 0.99 * narrow.losses.front());
  expect_near(narrow.losses, expected.losses, 5e-3);
  EXPECT_NEAR(narrow.norms.front(), expected.norms.front(), 2e-2 * expected.norms.front());
  EXPECT_NE(narrow.losses, expected.losses);
}

// A tensor's scale belongs to a micro-batch or to a whole step, whichever rank computes it, also for weights with
// delayed scales and their history.
TEST_P(Fp8RecipesInTraining, DeterministicLayoutsHaveTheBitsOfOneRank) {
  RunConfig config = by(GetParam());
  config.parallel.deterministic = true;
  const Trajectory one = run_engine(config, 5);
  for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=2"},
                                                    {"replicate=4,expert=4"},
                                                    {"shard=2,expert=2", kFsdp},
                                                    {"replicate=2,pipeline=2,expert=2"}}) {
    SCOPED_TRACE(described(layout));
    const RunConfig several = laid_out(config, layout);
    const Trajectory found = run_engine(several, 5);
    EXPECT_EQ(one.losses, found.losses);
    EXPECT_EQ(one.norms, found.norms);
    EXPECT_TRUE(one.weights == found.weights);
    EXPECT_EQ(found.arena_high_water, make_plan(resolve(several, {})).arena_bytes());
  }
}

TEST_P(Fp8RecipesInTraining, OtherLayoutsAgreeUpToRounding) {
  const RunConfig config = by(GetParam());
  const Trajectory one = run_engine(config, 4);
  for (const LaidOut& layout : std::vector<LaidOut>{{"context=2"},
                                                    {"replicate=2,expert_tensor=2"},
                                                    {"shard=2,tensor=2,expert=2", kFsdp},
                                                    {"context=2,tensor=2,pipeline=2"}}) {
    SCOPED_TRACE(described(layout));
    const RunConfig several = laid_out(config, layout);
    const Trajectory found = run_engine(several, 4);
    expect_near(found.losses, one.losses, 5e-3);
    expect_near(found.norms, one.norms, 5e-2);
    EXPECT_EQ(found.arena_high_water, make_plan(resolve(several, {})).arena_bytes());
  }
}

// Neither recomputation nor keeping weights for a step changes a bit, and all take the planned memory.
TEST_P(Fp8RecipesInTraining, RecomputesAndKeepsTheSameBitsWithinThePlan) {
  RunConfig config = by(GetParam());
  config.train.global_batch_size = 8;
  const Trajectory plain = run_engine(config, 3);
  const auto expect_same = [&](const RunConfig& changed) {
    const Trajectory found = run_engine(changed, 3);
    EXPECT_EQ(plain.losses, found.losses);
    EXPECT_EQ(plain.norms, found.norms);
    EXPECT_TRUE(plain.weights == found.weights);
    EXPECT_EQ(found.arena_high_water, make_plan(resolve(changed, {})).arena_bytes());
  };
  for (const char* granularity : {"selective", "full"}) {
    SCOPED_TRACE(granularity);
    config.model.recompute_granularity = granularity;
    expect_same(config);
    config.model.fp8_keep_weights = true;
    expect_same(config);
    config.model.fp8_keep_weights = false;
  }
}

TEST_P(Fp8RecipesInTraining, EvaluationsChangeNothing) {
  const RunConfig config = by(GetParam());
  std::vector<double> losses[2];
  for (const bool evaluates : {false, true})
    testing::with_rank_engines(config, [&](Stream&, const Groups& groups, Engine& engine, int rank) {
      for (int64_t step = 0; step < 4; ++step) {
        // The batches of other steps have other magnitudes.
        if (evaluates) engine.evaluate(testing::own_batches(config, groups.layout(), rank, 100 + step));
        losses[evaluates].push_back(
            engine.step(testing::own_batches(config, groups.layout(), rank, step), step + 1, step).loss);
      }
    });
  EXPECT_EQ(losses[0], losses[1]);
}

TEST_P(Fp8RecipesInTraining, WorksWithOtherFeaturesOfModels) {
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> changes = {
      {"dense", [](RunConfig& c) { c.model.moe.num_experts = c.model.moe.moe_shared_expert_intermediate_size = 0; }},
      {"biases", [](RunConfig& c) { c.model.attention.add_qkv_bias = c.model.moe.moe_expert_add_bias = true; }},
      {"lora", [](RunConfig& c) { c.model.lora_rank = 4; }},
      {"frozen below", [](RunConfig& c) { c.model.freeze = "embeddings,layers.0.*"; }},
      {"capacity", [](RunConfig& c) { c.model.moe.moe_expert_capacity_factor = 1; }},
      {"multi-token prediction", [](RunConfig& c) { c.model.mtp_num_layers = 1; }},
      {"wide first layer",
       [](RunConfig& c) {
         c.model.first_last_layers_bf16 = true;
         c.model.num_layers_at_end_in_bf16 = 0;
       }},
  };
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    RunConfig narrow = by(GetParam());
    change(narrow);
    RunConfig wide = narrow;
    wide.model.fp8_format = "none";
    const Trajectory found = run_engine(narrow, 3), expected = run_engine(wide, 3);
    expect_near(found.losses, expected.losses, 5e-3);
    EXPECT_EQ(found.arena_high_water, make_plan(resolve(narrow, {})).arena_bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fp8RecipesInTraining, ::testing::ValuesIn(kRecipes),
                         [](const auto& of) { return of.param.name; });

// The weights of a layer with delayed scales, which are those multiplied in FP8.
std::set<std::string> narrow_weights(const RunConfig& config, const std::string& layer) {
  std::set<std::string> found;
  for (const ModelTensor& tensor : tensors_of(config.model))
    if (tensor.name.starts_with(layer) && is_fp8_state(tensor.name))
      found.insert(tensor.name.substr(layer.size(), tensor.name.rfind("_fp8_") - layer.size()));
  return found;
}

TEST(Fp8Layers, FirstAndLastOnesStayWideOnRequest) {
  const std::set<std::string> all = {"attention.q_proj.weight",
                                     "attention.k_proj.weight",
                                     "attention.v_proj.weight",
                                     "attention.o_proj.weight",
                                     "moe.experts.gate_up_proj",
                                     "moe.experts.down_proj",
                                     "moe.shared_experts.gate_up_proj.weight",
                                     "moe.shared_experts.down_proj.weight"};
  RunConfig config = by({"", "hybrid", "delayed"});
  config.model.num_layers = 4;
  const auto expect = [&](const std::vector<bool>& narrow) {
    for (size_t layer = 0; layer < narrow.size(); ++layer)
      EXPECT_EQ(narrow_weights(config, cat("layers.", layer, ".")), narrow[layer] ? all : std::set<std::string>())
          << layer;
  };
  expect({true, true, true, true});
  config.model.first_last_layers_bf16 = true;
  expect({false, true, true, false});
  config.model.num_layers_at_start_in_bf16 = 0;
  config.model.num_layers_at_end_in_bf16 = 3;
  expect({true, false, false, false});
}

// The next step scales each tensor by its magnitude in this one: the second step's losses equal those without a margin,
// but not those with a large margin, which loses numbers.
TEST(Fp8Delayed, AMarginLeavesRoomFromTheSecondStepOn) {
  RunConfig config = by({"", "e4m3", "delayed"});
  const Trajectory plain = run_engine(config, 3);
  config.model.fp8_margin = 24;
  const Trajectory roomy = run_engine(config, 3);
  EXPECT_EQ(plain.losses[0], roomy.losses[0]);
  EXPECT_EQ(plain.norms[0], roomy.norms[0]);
  EXPECT_NE(plain.losses[1], roomy.losses[1]);
  EXPECT_LT(roomy.norms[1], 0.9 * plain.norms[1]);
}

}  // namespace
}  // namespace witan
