// Random combinations of options: every model that is accepted takes the same steps in a random layout as on one rank,
// within the planned memory, also from a checkpoint of another layout; its gradient is that of its losses; in
// deterministic mode layouts give the same bits, and so does generation.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <numeric>

#include "support/long_form.h"
#include "support/module.h"
#include "support/temp_folder.h"
#include "train/step/layouts/random_model.h"
#include "train/step/saving_engines.h"
#include "witan/base/error.h"
#include "witan/checkpoint/store.h"
#include "witan/generate/generation_batch.h"

namespace witan {
namespace {

using testing::described;
using testing::laid_out;
using testing::LaidOut;
using testing::MakeBatches;
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

  explicit Drawn(uint64_t number) : seed(number), model(number), layout(model.layout()), several(model.in(layout)) {}
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
  EXPECT_GE(4 * accepted, count) << "more than three quarters of the combinations are refused: little is shown";
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
    const MakeBatches batches = drawn.model.batches();
    const Trajectory one = run_engine(drawn.model.config(), 3, batches), found = run_engine(drawn.several, 3, batches);
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
  config.optimizer.qk_clip = false;
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
Descent descend(RunConfig config, double rate, const MakeBatches& batches) {
  config.optimizer.lr = config.optimizer.min_lr = rate;
  std::vector<double> objectives;
  double norm = 0;
  testing::with_rank_engines(config, [&](Stream&, const Groups&, Engine& engine, int) {
    const Layout layout(config.parallel, 1, config.model.moe.num_experts);
    for (const int64_t step : {0, 1}) {
      const StepResult result = engine.step(batches(config, layout, 0, 0), step + 1, step);
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
    const MakeBatches batches = drawn.model.batches();
    const double norm = descend(config, 0, batches).norm, rate = 1e-7 / (norm * std::max(1.0, norm));
    const auto decrease = [&](double of) { return descend(config, of, batches).decrease; };
    const double slope = (2 * decrease(rate) - decrease(2 * rate) / 2) / rate;
    EXPECT_NEAR(slope, norm * norm, 1e-5 * norm * norm);
  });
}

// The steps of a deterministic run in 32 or 16 bits, on layouts that sum in one order.
TEST(RandomModels, HaveTheBitsOfOneRankInDeterministicMode) {
  for_accepted_models([](Drawn& drawn) {
    RunConfig alone = drawn.model.config(), several = drawn.several;
    for (RunConfig* const config : {&alone, &several}) {
      config->parallel.deterministic = true;
      config->model.dtype = drawn.seed % 2 == 0 ? "float32" : "bfloat16";
    }
    if (!several.parallel.sums_in_tree(several.model.moe.num_experts)) return;
    if (refused(alone) || refused(several)) return;
    const MakeBatches batches = drawn.model.batches();
    testing::expect_same_bits(run_engine(alone, 3, batches), run_engine(several, 3, batches));
  });
}

// Two steps in one layout and a third in another, from a checkpoint, are three steps of one rank.
TEST(RandomModels, ContinueFromACheckpointInAnotherLayout) {
  for_accepted_models([](Drawn& drawn) {
    const LaidOut other = drawn.model.layout();
    const RunConfig next = drawn.model.in(other);
    if (refused(next)) return;
    SCOPED_TRACE(described(other));
    const MakeBatches batches = drawn.model.batches();
    const Trajectory one = run_engine(drawn.model.config(), 3, batches);
    const test::TempFolder folder;
    testing::with_saving_engines(drawn.several,
                                 [&](Engine& engine, BackgroundSave& saving, const Layout& layout, int rank) {
                                   for (const int64_t step : {0, 1})
                                     engine.step(batches(drawn.several, layout, rank, step), step + 1, step);
                                   saving.begin(folder.path(), {2, engine.state(), Json::object(), {}}, 1);
                                   saving.finish();
                                 });
    testing::with_saving_engines(next, [&](Engine& engine, BackgroundSave& saving, const Layout& layout, int rank) {
      load_tensors(saving.world(), saving.stream(), open_checkpoint(folder / "step-2"), engine.state());
      const StepResult third = engine.step(batches(next, layout, rank, 2), 3, 2);
      const double tolerance = drawn.model.preconditions() ? 1e-4 : 1e-9;
      if (rank > 0) return;
      EXPECT_NEAR(third.loss, one.losses[2], tolerance * std::abs(one.losses[2]));
      EXPECT_NEAR(third.gradient_norm, one.norms[2], tolerance * one.norms[2]);
    });
  });
}

// The model without what makes a token's output depend on tokens that come after it, or on chance.
ModelConfig generating(ModelConfig model, const char* dtype) {
  model.dtype = dtype;
  model.hidden_dropout = model.attention.attention_dropout = model.lora_dropout = 0;
  model.neftune_noise_alpha = 0;
  model.moe.moe_input_jitter_eps = model.moe.moe_expert_capacity_factor = 0;
  model.moe.moe_pad_expert_input_to_capacity = false;
  if (model.moe.moe_router_selection != "hash") model.moe.moe_router_selection = "topk";
  return model;
}

// The losses of each token of a text but the first.
std::vector<double> token_losses(testing::Rank& rank, Transformer& model, const std::vector<int32_t>& text) {
  const auto length = static_cast<int64_t>(text.size());
  std::vector<int32_t> positions(text.size()), targets(text.begin() + 1, text.end());
  std::iota(positions.begin(), positions.end(), 0);
  targets.push_back(0);
  Tape tape(rank.stream);
  ModelOutput out = model.forward(
      tape, {rank.tensor<int32_t>({1, length}, text), {rank.tensor<int32_t>({1, length}, positions), {}}});
  const Tensor weights = rank.stream.empty({length}, accumulator(out.logits.dtype()));
  dispatch_floating(weights.dtype(), [&]<class A>() { std::ranges::fill(weights.span<A>(), A(1.0F)); });
  return testing::values(
      model.loss(tape, std::move(out.logits), rank.tensor<int32_t>({length}, targets), weights, ops::LossGradient::one)
          .token_losses);
}

TEST(RandomModels, GenerateWithTheBitsOfTraining) {
  for_accepted_models([](Drawn& drawn) {
    RunConfig config = drawn.model.config();
    config.model = generating(config.model, drawn.seed % 2 == 0 ? "float32" : "bfloat16");
    config.model.attention.max_position_embeddings = 150;
    if (refused(config)) return;
    testing::Rank rank(2);
    testing::Alone alone;
    Transformer model(rank.stream, config.model, 8, alone);
    std::vector<GenerationRequest> requests(3);
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto length = std::array<size_t, 3>{1, 9, 130}[i];
      for (size_t t = 0; t < length; ++t) requests[i].prompt.push_back(static_cast<int32_t>((t * t * 7 + i) % 64));
      requests[i].options.max_tokens = 9;
      requests[i].options.sampler.temperature = 1.5;
      requests[i].options.sampler.seed = i;
      requests[i].top_logprobs = 0;
      requests[i].prompt_logprobs = true;
    }
    const std::vector<Generation> generations = generate(rank.stream, model, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int32_t> text = requests[i].prompt;
      for (const GeneratedToken& token : generations[i].tokens) text.push_back(token.token);
      const std::vector<double> losses = token_losses(rank, model, text);
      for (size_t t = 1; t < text.size(); ++t) {
        const size_t prompt = generations[i].prompt.size();
        const GeneratedToken& token = t < prompt ? generations[i].prompt[t] : generations[i].tokens[t - prompt];
        ASSERT_EQ(*token.logprob, -static_cast<float>(losses[t - 1])) << "text " << i << ", token " << t;
      }
    }
  });
}

}  // namespace
}  // namespace witan
