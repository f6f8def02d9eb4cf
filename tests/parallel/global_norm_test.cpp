#include "witan/parallel/global_norm.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

#include "parallel/parallel_support.h"
#include "witan/kernels/common/block_sums.h"
#include "witan/parallel/sharding/grad_buckets.h"

namespace witan {
namespace {

using testing::layout_of;
using testing::on_ranks;
using testing::SmallModel;
using testing::ThreadRank;

// Odd sizes, one with several chunks, between experts.
std::vector<ParameterSpec> uneven_specs() {
  return {{.name = "a", .shape = {331, 397}, .unit = 0},
          {.name = "experts", .shape = {8, 13, 17}, .expert = true, .unit = 2},
          {.name = "norm", .shape = {3}, .unit = 2},
          {.name = "large_experts", .shape = {8, 300, 301}, .expert = true, .unit = 3}};
}

// The same gradients on every layout: a pure function of the position in the global tensor.
double gradient_at(const Parameter& parameter, int64_t i) {
  const double value = testing::summand(parameter.name(), 0, parameter.region().global(i));
  return std::abs(value) < 0.1 ? 0 : value;
}

TEST(GlobalNorm, HasTheSameBitsOnEveryRankOfEveryTestedLayout) {
  std::mutex mutex;
  std::set<double> norms, zeros, value_norms;
  std::set<std::vector<double>> of_units;
  for (const auto& [world, expert_ranks] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {2, 2}, {4, 2}, {8, 8}})
    on_ranks(world, [&, world = world, expert_ranks = expert_ranks](ThreadRank& rank) {
      const Groups groups = make_groups(rank.world, layout_of(world, expert_ranks), rank.rank);
      SmallModel model(rank.stream, uneven_specs(), groups);
      const GradientBuckets buckets(rank.stream, model.parameters, groups, {});
      for (Parameter* parameter : model.parameters)
        for (int64_t i = 0; i < parameter->elements(); ++i)
          parameter->gradient().data<float>()[i] = static_cast<float>(gradient_at(*parameter, i));
      const ShardPlan shard_plan(model.parameters, groups.layout(), groups.rank());
      GlobalNorm global(rank.stream, shard_plan, groups);
      const Norm2 values = read_norm(rank.stream, global.compute(rank.stream, GlobalNorm::Of::values));
      const Norm2 gradients = read_norm(rank.stream, global.compute(rank.stream, GlobalNorm::Of::gradients));
      const std::vector<double> units = global.square_sums_of_units(rank.stream);
      const std::lock_guard lock(mutex);
      of_units.insert(units);
      norms.insert(gradients.norm);
      zeros.insert(gradients.zeros);
      value_norms.insert(values.norm);
    });
  EXPECT_EQ(norms.size(), 1u);
  EXPECT_EQ(zeros.size(), 1u);
  EXPECT_EQ(value_norms.size(), 1u);

  double squares = 0, none = 0;
  std::vector<double> squares_of_units(4);
  testing::Rank rank;
  for (const ParameterSpec& spec : uneven_specs()) {
    const Parameter whole(rank.stream, spec, spec.whole(), 1);
    for (int64_t i = 0; i < whole.elements(); ++i) {
      const double g = static_cast<float>(gradient_at(whole, i));
      squares += g * g;
      squares_of_units[static_cast<size_t>(spec.unit)] += g * g;
      none += g == 0;
    }
  }
  ASSERT_EQ(of_units.size(), 1u) << "the same bits";
  ASSERT_EQ(of_units.begin()->size(), 4u);
  for (size_t unit = 0; unit < 4; ++unit)  // sums of up to 722,400 squares, in another order
    EXPECT_NEAR((*of_units.begin())[unit], squares_of_units[unit], 1e-12 * squares_of_units[unit]) << unit;
  EXPECT_NEAR(*norms.begin(), std::sqrt(squares), 1e-9);
  EXPECT_EQ(*zeros.begin(), none);
}

// Two tensor-parallel ranks divide a table with 4097 rows: one has a single chunk of 65536 elements, the other also a
// second chunk. The first rank's empty sum must count as zero, whatever its memory held before.
TEST(GlobalNorm, HandlesUnevenTensorRanks) {
  const std::vector<ParameterSpec> specs = {
      {.name = "words", .shape = {4097, 32}, .tensor_split = {.dim = 0, .uneven = true}},
      {.name = "norm", .shape = {3}}};
  double squares = 0, none = 0;
  testing::Rank one;
  for (const ParameterSpec& spec : specs) {
    const Parameter whole(one.stream, spec, spec.whole(), 1);
    for (int64_t i = 0; i < whole.elements(); ++i) {
      const double g = static_cast<float>(gradient_at(whole, i));
      squares += g * g;
      none += g == 0;
    }
  }
  ParallelConfig config;
  config.tensor_model_parallel_size = 2;
  config.use_distributed_optimizer = true;
  for (const int owners : {1, 2})
    on_ranks(2 * owners, [&](ThreadRank& rank) {
      const Groups groups = make_groups(rank.world, Layout(config, 2 * owners, 0), rank.rank);
      SmallModel model(rank.stream, specs, groups);
      const GradientBuckets buckets(rank.stream, model.parameters, groups, {});
      for (Parameter* parameter : model.parameters)
        for (int64_t i = 0; i < parameter->elements(); ++i)
          parameter->gradient().data<float>()[i] = static_cast<float>(gradient_at(*parameter, i));
      const ShardPlan shard_plan(model.parameters, groups.layout(), groups.rank());
      rank.poisoned({1 << 16}, DType::f64);
      GlobalNorm global(rank.stream, shard_plan, groups);
      const Norm2 gradients = read_norm(rank.stream, global.compute(rank.stream, GlobalNorm::Of::gradients));
      EXPECT_NEAR(gradients.norm, std::sqrt(squares), 1e-9);
      EXPECT_EQ(gradients.zeros, none);
    });
}

// The block sums that a GEMM leaves beside a gradient.
void fill_block_sums(ThreadRank& rank, Parameter& parameter) {
  if (const Tensor sums = parameter.gradient_block_sums(); sums.defined())
    kernels::block_square_sums(rank.stream, sums, parameter.gradient());
}

struct Norms {
  Norm2 total;
  std::vector<double> of_units;
  bool from_blocks;
};

// The norm of gradients of uneven_specs(), one of which is NaN if asked for.
Norms norms_of(ThreadRank& rank, const Groups& groups, bool can_sum_blocks, bool nan = false) {
  SmallModel model(rank.stream, uneven_specs(), groups);
  for (Parameter* parameter : model.parameters) parameter->can_sum_blocks = can_sum_blocks && parameter->spec().expert;
  const GradientBuckets buckets(rank.stream, model.parameters, groups, {.norm_fusion = true});
  for (Parameter* parameter : model.parameters) {
    for (int64_t i = 0; i < parameter->elements(); ++i)
      parameter->gradient().data<float>()[i] = static_cast<float>(gradient_at(*parameter, i));
    if (nan && parameter->spec().expert) parameter->gradient().data<float>()[7] = NAN;
    fill_block_sums(rank, *parameter);
  }
  const bool from_blocks = model.named("large_experts").gradient_block_sums().defined();
  // With blocks the gradients are not read.
  if (from_blocks) std::ranges::fill(model.named("large_experts").gradient().span<float>(), 1e9f);
  const ShardPlan shard_plan(model.parameters, groups.layout(), groups.rank());
  GlobalNorm global(rank.stream, shard_plan, groups);
  read_norm(rank.stream, global.compute(rank.stream, GlobalNorm::Of::values));
  Norms norms{read_norm(rank.stream, global.compute(rank.stream, GlobalNorm::Of::gradients)), {}, from_blocks};
  norms.of_units = global.square_sums_of_units(rank.stream);
  return norms;
}

// If no other rank has summands of experts' gradients, block sums replace them, equal to rounding in float64.
TEST(GlobalNorm, UsesBlockSumsInPlaceOfGradients) {
  for (const auto& [world, expert_ranks] : std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {8, 8}, {2, 1}, {4, 2}})
    on_ranks(world, [&, world = world, expert_ranks = expert_ranks](ThreadRank& rank) {
      const Groups groups = make_groups(rank.world, layout_of(world, expert_ranks), rank.rank);
      const Norms pass = norms_of(rank, groups, false), blocks = norms_of(rank, groups, true);
      EXPECT_FALSE(pass.from_blocks);
      EXPECT_EQ(blocks.from_blocks, world == expert_ranks);
      EXPECT_NEAR(blocks.total.norm, pass.total.norm, 1e-12 * pass.total.norm);
      EXPECT_EQ(blocks.total.zeros, pass.total.zeros);
      ASSERT_EQ(blocks.of_units.size(), pass.of_units.size());
      for (size_t unit = 0; unit < pass.of_units.size(); ++unit)
        EXPECT_NEAR(blocks.of_units[unit], pass.of_units[unit], 1e-12 * pass.of_units[unit]) << unit;
      EXPECT_TRUE(std::isnan(norms_of(rank, groups, true, true).total.norm));
    });
}

// One rank's bad expert must stop all ranks from updating.
TEST(GlobalNorm, NonFiniteExpertGradientsSkipTheStepOnAllRanks) {
  on_ranks(4, [](ThreadRank& rank) {
    const Groups groups = make_groups(rank.world, layout_of(4, 4), rank.rank);
    SmallModel model(rank.stream, testing::small_specs(), groups);
    GradientBuckets buckets(rank.stream, model.parameters, groups, {});
    buckets.finish_step();
    if (rank.rank == 2) model.named("experts.up").gradient().data<float>()[3] = NAN;
    const ShardPlan shard_plan(model.parameters, groups.layout(), groups.rank());
    GlobalNorm global(rank.stream, shard_plan, groups);
    StepState step(rank.stream);
    step.set({1}, 1, 1);
    clip(rank.stream, step, global.compute(rank.stream, GlobalNorm::Of::gradients), 1);
    EXPECT_TRUE(step.skipped()) << rank.rank;
  });
}

TEST(GlobalNorm, DenseModelsNeedNoCommunication) {
  testing::Rank rank;
  const Groups groups = make_meta_groups(layout_of(4, 1, 0), 1);  // a group that would throw if it were used
  SmallModel model(rank.stream, {{.name = "p", .shape = {5}, .init = {Initialization::Kind::ones}}}, groups);
  const ShardPlan shard_plan(model.parameters, groups.layout(), groups.rank());
  GlobalNorm global(rank.stream, shard_plan, groups);
  EXPECT_EQ(read_norm(rank.stream, global.compute(rank.stream, GlobalNorm::Of::values)).norm, std::sqrt(5.0));
}

TEST(GlobalNorm, CountsOnMeta) {
  testing::Rank rank(1);
  Stream meta({Device::Kind::meta}, Arena::meta(), rank.pool);
  const Groups groups = make_meta_groups(layout_of(8, 4), 5);
  SmallModel model(meta, testing::small_specs(), groups);
  const ShardPlan shard_plan(model.parameters, groups.layout(), groups.rank());
  GlobalNorm global(meta, shard_plan, groups);
  EXPECT_EQ(read_norm(meta, global.compute(meta, GlobalNorm::Of::values)).norm, 0);
  EXPECT_EQ(groups.of(Axis::expert).sent().at("all_gather_uneven"),
            3 * 4 * 2 * 8);  // two parameters of two experts, a chunk each
}

}  // namespace
}  // namespace witan
