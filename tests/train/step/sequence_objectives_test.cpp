// Policy gradients and preferences as steps: the same figures in every layout, in planned memory.
#include "witan/train/step/sequence_objectives.h"

#include <gtest/gtest.h>

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

void expect_equal_in_layouts(const RunConfig& config, const MakeObjective& make) {
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
    ASSERT_EQ(found.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(found[i], one[i], 1e-9 * (1 + std::abs(one[i]))) << i;
  }
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

}  // namespace
}  // namespace witan
