// Policy gradients and preferences as steps: the same figures in every layout, in planned memory.
#include "witan/train/step/sequence_objectives.h"

#include <gtest/gtest.h>

#include <numbers>

#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;

// Rows of two to four documents and padding, whose prompts are not learnt from, with random columns: log probabilities
// near those of the first step.
Batch batch_of_texts(const RunConfig& config, int64_t number) {
  Batch batch = testing::random_batch(config, number);
  const auto length = static_cast<size_t>(batch.sequence_length);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const size_t place = i % length, size = 3 + (i / length + static_cast<size_t>(number)) % 3;
    const bool padding = place + 2 >= length;
    batch.positions[i] = static_cast<int32_t>(padding ? place : place % size);
    batch.sequence_ids[i] = padding ? kPadding : static_cast<int32_t>(place / size);
    batch.loss_mask[i] = padding || place % size == 0 ? 0 : 1;
  }
  batch.count_loss_tokens();
  const Philox rng(11, static_cast<uint64_t>(number));
  uint64_t next = 0;
  for (const char* name : {kAdvantages, kOldLogprobs, kRolloutLogprobs, kRefLogprobs}) {
    Column column{{name}, {}};
    for (size_t i = 0; i < batch.tokens.size(); ++i)
      column.values.push_back(
          static_cast<float>(rng.normal(next++) * (name == kAdvantages ? 1 : 0.3) - (name == kAdvantages ? 0 : 4.2)));
    batch.columns.push_back(std::move(column));
  }
  return batch;
}

// The columns that the objective reads, of every batch.
Batch with_columns(Batch batch, const Objective& objective) {
  std::vector<Column> read;
  for (const ColumnSpec& spec : objective.columns())
    read.push_back(*std::ranges::find(batch.columns, spec, &Column::spec));
  batch.columns = std::move(read);
  return batch;
}

using MakeObjective = std::function<std::unique_ptr<Objective>(const RunConfig&)>;

// All losses and figures of the steps, one after the other, with the norms of gradients.
std::vector<double> figures_of(const RunConfig& given, int64_t steps, const MakeObjective& make) {
  const ResolvedConfig config = resolve(given, {});
  const Layout layout(config->parallel, static_cast<int>(config->parallel.ranks), config->model.moe.num_experts);
  ThreadWorld world(layout.world_size());
  std::vector<double> figures;
  const auto step_of = [&](Engine& engine, int rank, int64_t step, const auto& batch_of) {
    std::vector<Batch> own;
    const int64_t count = config->micro_batches() / layout.data_ranks();
    for (int64_t i = 0; i < count; ++i)
      own.push_back(batch_of(step * config->micro_batches() + layout.data_rank(rank) * count + i));
    return engine.step(own, step + 1, step);
  };
  world.run([&](int rank) {
    const auto objective = make(*config);
    ThreadPool pool(1);
    int64_t planned = 0;
    {
      Stream meta({Device::Kind::meta, rank}, Arena::meta(), pool);
      const Groups groups = make_meta_groups(layout, rank);
      Engine engine(meta, groups, config);
      engine.use_objective(make(*config));
      Batch sizes = sized_batch(*config);
      sizes.columns.clear();
      for (const ColumnSpec& spec : objective->columns()) sizes.columns.push_back({spec});
      for (const int64_t step : {0, 1}) step_of(engine, rank, step, [&](int64_t) { return sizes; });
      planned = meta.arena().high_water();
    }
    Stream stream({}, reserve_arena({}, planned), pool);
    const Groups groups = make_groups(world, layout, rank, stream, sums_of(*config));
    Engine engine(stream, groups, config);
    engine.use_objective(make(*config));
    for (int64_t step = 0; step < steps; ++step) {
      const StepResult result = step_of(engine, rank, step, [&](int64_t number) {
        return with_columns(batch_of_texts(*config, number), *objective);
      });
      if (rank != 0) continue;
      figures.push_back(result.loss);
      figures.push_back(result.gradient_norm);
      for (const auto& [name, value] : result.other_losses) figures.push_back(value);
    }
    EXPECT_EQ(stream.arena().high_water(), planned) << "rank " << rank;
  });
  return figures;
}

RunConfig config_of_texts() {
  RunConfig config = testing::divisible_config();
  config.data.data_packing = "best_fit";
  config.train.micro_batch_size = 2;
  config.optimizer.clip_grad = 1;
  return laid_out(config, {});
}

// The figures of one rank's steps, which those of every layout equal.
std::vector<double> expect_equal_in_layouts(const RunConfig& config, const MakeObjective& make = make_objective) {
  const std::vector<double> one = figures_of(config, 3, make);
  for (const double figure : one) EXPECT_TRUE(std::isfinite(figure));
  for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=4"},
                                                    {"shard=2", kFsdp},
                                                    {"context=2"},
                                                    {.mesh = "context=2", .comm = "p2p"},
                                                    {"tensor=2,expert_tensor=1"},
                                                    {.mesh = "tensor=2,expert_tensor=1", .loss_parallel = false},
                                                    {"pipeline=2"},
                                                    {"pipeline=2", "auto", 2},
                                                    {"replicate=2,expert=2"},
                                                    {"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=2"}}) {
    SCOPED_TRACE(described(layout));
    const std::vector<double> found = figures_of(laid_out(config, layout), 3, make);
    EXPECT_EQ(found.size(), one.size());
    for (size_t i = 0; i < std::min(one.size(), found.size()); ++i)
      EXPECT_NEAR(found[i], one[i], 1e-9 * (1 + std::abs(one[i]))) << i;
  }
  return one;
}

TEST(PolicyObjective, OfTokensEqualsOneRankInEveryLayout) {
  RunConfig config = config_of_texts();
  config.objective.objective = "policy";
  config.objective.importance_sampling_cap = 1.2;
  expect_equal_in_layouts(config, make_objective);
}

TEST(PolicyObjective, OfSequencesEqualsOneRankInEveryLayout) {
  RunConfig config = config_of_texts();
  config.objective.objective = "policy";
  config.objective.importance_sampling_level = "sequence";
  config.objective.loss_agg_mode = "seq_mean_token_mean";
  config.objective.kl_loss_coef = 0.05;
  expect_equal_in_layouts(config, make_objective);
}

TEST(PreferenceObjective, EqualsOneRankInEveryLayout) {
  expect_equal_in_layouts(config_of_texts(), [](const RunConfig&) { return make_preference_objective({0.5, 0.1}); });
}

RunConfig config_of_policy(const std::string& reference) {
  RunConfig config = config_of_texts();
  config.objective.objective = "policy";
  config.objective.kl_loss_coef = 0.1;
  config.objective.reference = reference;
  config.optimizer.lr = 1e-2;
  config.optimizer.lr_warmup_iters = 0;
  return config;
}

RunConfig config_of_preferences() {
  RunConfig config = config_of_texts();
  config.data.data_packing = "none";
  config.data.sft = config.data.preferences = true;
  config.data.tokenizer = "t.json";
  config.objective.objective = "preference";
  config.objective.dpo_beta = 0.5;
  config.optimizer.lr = 1e-2;
  config.optimizer.lr_warmup_iters = 0;
  return config;
}

RunConfig with_adapters(RunConfig config) {
  config.model.lora_rank = 3;
  config.model.lora_target_modules = "q_proj,o_proj";
  return config;
}

// The losses of `figures_of` that a step begins with: the step's loss, its gradient norm, then the others.
constexpr size_t kKlLoss = 2;

// The weights of the first step are the reference's, so that the divergence is exactly 0, and larger later.
void expect_divergence_from_start(const std::vector<double>& figures) {
  const size_t in_step = figures.size() / 3;
  EXPECT_EQ(figures[kKlLoss], 0);
  EXPECT_GT(figures[in_step + kKlLoss], 0);
  EXPECT_GT(figures[2 * in_step + kKlLoss], figures[in_step + kKlLoss]);
}

TEST(PolicyObjective, DivergesFromTheStartAlikeInEveryLayout) {
  expect_divergence_from_start(expect_equal_in_layouts(config_of_policy("start")));
}

// The temperature of a policy divides its logits and those of its reference. Losses that routers record do not change.
TEST(PolicyObjective, OfATemperatureIsThatOfScaledLogitsInEveryLayout) {
  RunConfig tempered = config_of_policy("start"), scaled = tempered;
  tempered.rollout.rollout_temperature = 0.5;
  scaled.model.logit_scale = 2;
  const std::vector<double> figures = expect_equal_in_layouts(tempered);
  EXPECT_EQ(figures, figures_of(scaled, 3, make_objective));
  EXPECT_NE(figures, figures_of(config_of_policy("start"), 3, make_objective));
}

TEST(PolicyObjective, DivergesFromTheBaseOfAdaptersAlikeInEveryLayout) {
  expect_divergence_from_start(expect_equal_in_layouts(with_adapters(config_of_policy("base"))));
}

TEST(PolicyObjective, DivergesFromTheStartWithCapacitiesPoolsAndKeptUnits) {
  RunConfig config = config_of_policy("start");
  for (const auto& change : std::vector<std::function<void(RunConfig&)>>{
           [](RunConfig& c) { c.model.moe.moe_expert_capacity_factor = 1; },
           [](RunConfig& c) {
             c = laid_out(c, {"shard=2,expert=2"});
             c.model.moe.moe_pool_factor = 1;
           },
           [](RunConfig& c) {
             c = laid_out(c, {.mesh = "shard=2", .strategy = kFsdp, .reshard_after_forward = false});
           },
           [](RunConfig& c) { c.model.recompute_granularity = "full"; },
           [](RunConfig& c) {
             c.model.hidden_dropout = 0;
             c.model.moe.moe_router_enable_expert_bias = true;
             c.model.moe.moe_router_score_function = "sigmoid";
           }}) {
    RunConfig changed = config;
    change(changed);
    expect_divergence_from_start(figures_of(changed, 3, make_objective));
  }
}

// At the start all rewards are 0, and each pair's loss is log 2; a text without a partner has none.
void expect_no_preference_at_first(const std::vector<double>& figures) {
  EXPECT_LE(figures[0], std::numbers::ln2 + 1e-12);
  EXPECT_GT(figures[0], 0.5 * std::numbers::ln2);
  for (size_t figure = 2; figure < 6; ++figure) EXPECT_EQ(figures[figure], 0) << figure;
}

TEST(PreferenceObjective, WithAFrozenReferenceEqualsOneRankInEveryLayout) {
  RunConfig config = config_of_preferences();
  expect_no_preference_at_first(expect_equal_in_layouts(config));
  config.objective.dpo_loss_type = "ipo";
  config.objective.rpo_alpha = 0.5;
  expect_equal_in_layouts(with_adapters(config));
}

TEST(PreferenceObjective, NeedsNoReference) {
  RunConfig config = config_of_preferences();
  config.objective.dpo_reference_free = true;
  EXPECT_EQ(config.reference(), ReferenceKind::none);
  const std::vector<double> figures = figures_of(config, 1, make_objective);
  EXPECT_NE(figures[4], 0);  // the chosen texts' rewards are their log probabilities
}

// Engines of the config on its ranks, and the batches of a step.
using Use = std::function<void(Engine&, Stream&, const std::vector<Batch>&)>;
void with_preferences(const RunConfig& config, const Use& use) {
  testing::with_rank_engines(config, [&](Stream& stream, const Groups& groups, Engine& engine, int rank) {
    std::vector<Batch> own;
    const int64_t count = config.micro_batches() / groups.layout().data_ranks();
    for (int64_t i = 0; i < count; ++i) {
      own.push_back(batch_of_texts(config, groups.layout().data_rank(rank) * count + i));
      own.back().columns.clear();
    }
    use(engine, stream, own);
  });
}

// An evaluation of the batches that the next step takes finds what that step reports, in every layout.
TEST(PreferenceObjective, IsEvaluatedAsItIsTrained) {
  for (const LaidOut& layout : std::vector<LaidOut>{
           {}, {"shard=2", kFsdp}, {"context=2"}, {"tensor=2,expert_tensor=1"}, {"pipeline=2", "auto", 2}}) {
    SCOPED_TRACE(described(layout));
    with_preferences(laid_out(config_of_preferences(), layout), [](Engine& engine, Stream&, const auto& batches) {
      engine.step(batches, 1, 0);
      const Evaluation evaluation = engine.evaluate(batches);
      const StepResult step = engine.step(batches, 2, 1);
      EXPECT_NEAR(evaluation.loss(), step.loss, 1e-12);
      ASSERT_EQ(evaluation.figures.size(), 5);
      for (const auto& [name, value] : evaluation.figures) {
        const auto found = std::ranges::find(step.other_losses, name, &std::pair<std::string, double>::first);
        ASSERT_NE(found, step.other_losses.end()) << name;
        EXPECT_NEAR(value, found->second, 1e-12) << name;
      }
    });
  }
}

// Along the update of a step of gradient descent the loss changes as its gradient says, while the reference stays.
TEST(PreferenceObjective, HasTheGradientOfDifferences) {
  RunConfig config = config_of_preferences();
  config.objective.rpo_alpha = 0.3;
  config.optimizer.optimizer = "sgd";
  config.optimizer.sgd_momentum = 0;
  config.optimizer.weight_decay = 0;
  config.optimizer.clip_grad = 0;
  config.optimizer.lr = 1e-6;
  config.optimizer.min_lr = 0;
  config.optimizer.lr_decay_style = "constant";
  config.model.moe.moe_aux_loss_coeff = "0";
  with_preferences(config, [&](Engine& engine, Stream&, const auto& batches) {
    engine.step(batches, 1, 0);
    const double before = engine.evaluate(batches).loss();
    const StepResult step = engine.step(batches, 2, 1);
    const double descended = before - engine.evaluate(batches).loss();
    EXPECT_NEAR(descended / (1e-6 * step.gradient_norm * step.gradient_norm), 1, 1e-4);
  });
}

}  // namespace
}  // namespace witan
