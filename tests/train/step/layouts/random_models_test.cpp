// Random combinations of options: every model that is accepted takes the same steps in a random layout as on one rank,
// within the planned memory, and its gradient is that of its losses.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/long_form.h"
#include "train/step/layouts/random_model.h"
#include "train/step/run_support.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using testing::described;
using testing::laid_out;
using testing::LaidOut;
using testing::own_batches;
using testing::RandomModel;
using testing::run_engine;
using testing::Trajectory;

// WITAN_RANDOM_MODELS = "first:count" selects seeds.
struct Seeds {
  uint64_t first, count;
};
Seeds seeds() {
  if (const char* given = std::getenv("WITAN_RANDOM_MODELS")) {
    char* rest = nullptr;
    const uint64_t first = std::strtoull(given, &rest, 10);
    return {first, *rest == ':' ? std::strtoull(rest + 1, nullptr, 10) : 1};
  }
  return {0, static_cast<uint64_t>(testing::steps_of(16, 500))};
}

// Whether the options exclude each other. Anything but a message for the user is a fault.
bool refused(const RunConfig& config) {
  try {
    make_plan(resolve(config, {}));
    return false;
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()), "");
    return true;
  }
}

struct Drawn {
  uint64_t seed;
  RandomModel model;
  LaidOut layout;
  RunConfig several;  // the model in that layout

  explicit Drawn(uint64_t number)
      : seed(number), model(number), layout(model.layout()), several(laid_out(model.config(), layout)) {}
  std::string described() const {
    return cat("WITAN_RANDOM_MODELS=", seed, ": ", model.keys(), "; ", testing::described(layout));
  }
};

// Calls check(drawn) for every model that is accepted on one rank and in its layout.
void for_accepted_models(const std::function<void(Drawn&)>& check) {
  const auto [first, count] = seeds();
  uint64_t accepted = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Drawn drawn(seed);
    SCOPED_TRACE(drawn.described());
    try {
      if (refused(drawn.model.config()) || refused(drawn.several)) continue;
      ++accepted;
      check(drawn);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_GE(3 * accepted, count) << "most combinations are refused: nothing is shown";
}

// Rows of experts are planned for as many as could come. Fewer may, where buffers are bounded or assignments dropped.
void expect_planned(const RunConfig& config, const Trajectory& found) {
  const MoeConfig& moe = config.model.moe;
  const bool fewer_rows = moe.moe_pool_factor > 0 || moe.moe_exchange_factor > 0 || moe.capacity_factor() > 0;
  if (moe.num_experts > 0 && fewer_rows)
    EXPECT_LE(found.arena_high_water, found.planned_arena);
  else
    EXPECT_EQ(found.arena_high_water, found.planned_arena);
}

TEST(RandomModels, TakeTheStepsOfOneRankInEveryLayout) {
  for_accepted_models([](Drawn& drawn) {
    const Trajectory one = run_engine(drawn.model.config(), 3), found = run_engine(drawn.several, 3);
    testing::expect_equal(one, found, drawn.model.preconditions() ? 1e-4 : 1e-9, "three steps");
    expect_planned(drawn.model.config(), one);
    expect_planned(drawn.several, found);
  });
}

// The model without what changes between two steps on the same batch but its parameters, updated by gradient descent.
RunConfig descending(RunConfig config) {
  config.model.sparse_attention.dsa_indexer_loss_coeff = 0;  // its inputs are detached from the model
  config.model.sparse_attention.dsa_indexer_use_sparse_loss = config.model.sparse_attention.dsa_dense_warmup = false;
  config.model.hidden_dropout = config.model.attention.attention_dropout = config.model.lora_dropout = 0;
  config.model.neftune_noise_alpha = 0;
  MoeConfig& moe = config.model.moe;
  moe.moe_input_jitter_eps = moe.moe_router_bias_update_rate = 0;
  if (moe.balances_by_quantiles() || moe.balances_last_load()) moe.moe_router_load_balancing_type = "aux_loss";
  for (const char* drawn : {"uniform", "skew", "zipf", "hot"})
    if (moe.moe_router_selection == drawn) moe.moe_router_selection = "topk";
  config.optimizer.optimizer = "sgd";
  config.optimizer.sgd_momentum = config.optimizer.weight_decay = config.optimizer.clip_grad = 0;
  config.optimizer.lr_decay_style = "constant";
  config.optimizer.lr_warmup_iters = 0;
  return config;
}

// The sum of all losses with their coefficients.
double objective_of(const RunConfig& config, const StepResult& step) {
  double sum = step.loss;
  for (const double loss : step.mtp_losses)
    sum += config.model.mtp_loss_scaling_factor / static_cast<double>(step.mtp_losses.size()) * loss;
  for (const StepStatistics::Value& value : step.router.values())
    for (const std::vector<double>& layer : value.layers)
      sum += value.declared.loss_coefficient.value_or(0) * layer.front();
  EXPECT_TRUE(step.other_losses.empty());
  return sum;
}

struct Descent {
  double norm, decrease;  // of the gradient; of the objective by a step of this learning rate
};
Descent descend(RunConfig config, double rate) {
  config.optimizer.lr = config.optimizer.min_lr = rate;
  std::vector<double> objectives;
  double norm = 0;
  testing::with_rank_engines(config, [&](Stream&, const Groups&, Engine& engine, int) {
    const Layout layout(config.parallel, 1, config.model.moe.num_experts);
    for (const int64_t step : {0, 1}) {
      const StepResult result = engine.step(own_batches(config, layout, 0, 0), step + 1, step);
      objectives.push_back(objective_of(config, result));
      if (step == 0) norm = result.gradient_norm;
    }
  });
  return {norm, objectives[0] - objectives[1]};
}

// A step along the gradient, too short for a router to choose otherwise, decreases the objective by the squared norm
// times the rate, and a term that two rates cancel.
TEST(RandomModels, HaveTheGradientsOfTheirLosses) {
  for_accepted_models([](Drawn& drawn) {
    const RunConfig config = descending(drawn.model.config());
    if (refused(config)) return;
    const double norm = descend(config, 0).norm, rate = 1e-7 / (norm * std::max(1.0, norm));
    const double slope = (2 * descend(config, rate).decrease - descend(config, 2 * rate).decrease / 2) / rate;
    EXPECT_NEAR(slope, norm * norm, 1e-5 * norm * norm);
  });
}

}  // namespace
}  // namespace witan
