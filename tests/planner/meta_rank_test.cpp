#include "witan/planner/meta_rank.h"

#include <gtest/gtest.h>

#include "train/run/run_support.h"
#include "train/step/laid_out.h"
#include "witan/planner/plan.h"
#include "witan/train/record/times.h"

namespace witan {
namespace {

constexpr int64_t kLevel = 2;  // the least has no times of an interval

// Bytes that a rank of two sends in what it logs.
double logged(int64_t train_iters) {
  RunConfig config = testing::small_config();
  config.parallel = {2, 1, 1};
  config.log.log_format = "megatron";
  config.log.timing_log_level = kLevel;
  config.train.train_iters = train_iters;
  config.train.log_interval = 10;
  MetaRank meta(resolve(config, {}), layout_of(config), 0);
  meta.reset_costs();
  meta.log();
  double bytes = 0;
  for (const auto& [group, operations] : meta.sent())
    for (const auto& [operation, sent] : operations) bytes += sent;
  return bytes;
}

// Megatron-LM's log has times of the setup, two of them, and then of every interval that a run completes.
TEST(MetaRank, LogsIntervalsThatARunCompletes) {
  const double setup = 2 * sizeof(double);
  const double interval = static_cast<double>(named({}, kLevel).size() * sizeof(double));
  ASSERT_GT(interval, 0);
  EXPECT_EQ(logged(9), setup);
  EXPECT_EQ(logged(10), setup + interval);
  EXPECT_EQ(logged(11), setup + interval);
}

// Layouts of many micro-batches.
std::vector<RunConfig> long_steps() {
  std::vector<RunConfig> all;
  const auto add = [&](int64_t micro_batches, const std::string& mesh, int64_t chunks = 0,
                       const std::string& sharding = "auto") {
    RunConfig config = testing::divisible_config("float32");
    config.train.global_batch_size = micro_batches;
    config.model.attention.attention_dropout = 0.1;
    config = testing::laid_out(config, {mesh, sharding, chunks});
    config.train.global_batch_size = micro_batches * config.parallel.data_ranks();
    all.push_back(config);
  };
  add(23, "");
  add(23, "shard=2,expert=2", 0, "optim_grads_params");
  add(32, "pipeline=4");
  add(31, "pipeline=4,shard=2,expert=2", 0, "optim_grads");
  add(40, "pipeline=2", 2);
  add(41, "pipeline=2", 2);
  return all;
}

void expect_equal_plans(const RankPlan& a, const RankPlan& b) {
  const auto same = [](const Cost& x, const Cost& y) {
    return std::abs(x.flops - y.flops) <= 1e-12 * y.flops && std::abs(x.bytes - y.bytes) <= 1e-12 * y.bytes &&
           x.calls == y.calls;
  };
  EXPECT_EQ(a.arena_bytes, b.arena_bytes);
  EXPECT_EQ(a.tags, b.tags);
  for (const auto& [of_a, of_b] : {std::pair{&a.step, &b.step}, {&a.evaluation, &b.evaluation}}) {
    ASSERT_EQ(of_a->size(), of_b->size());
    for (const auto& [part, kernels] : *of_b)
      for (const auto& [kernel, cost] : kernels) EXPECT_TRUE(same(of_a->at(part).at(kernel), cost)) << kernel;
  }
  for (const auto& [of_a, of_b] : {std::pair{&a.calls, &b.calls}, {&a.eval_calls, &b.eval_calls}}) {
    ASSERT_EQ(of_a->size(), of_b->size());
    for (const auto& [kind, cost] : *of_b) EXPECT_TRUE(same(of_a->at(kind), cost)) << kind.name;
  }
  for (const auto& [of_a, of_b] : {std::pair{&a.sent, &b.sent}, {&a.eval_sent, &b.eval_sent}})
    for (const auto& [group, operations] : *of_b)
      for (const auto& [operation, bytes] : operations)
        EXPECT_NEAR(of_a->at(group).at(operation), bytes, 1e-12 * bytes) << group << " " << operation;
}

TEST(MetaRank, MicroBatchesThatAreLeftOutChangeNoFigure) {
  for (const RunConfig& config : long_steps()) {
    const ResolvedConfig resolved = resolve(config, {});
    SCOPED_TRACE(cat(config.parallel.mesh, ", ", micro_batches_of_a_rank(resolved), " micro-batches"));
    const Layout layout = layout_of(resolved);
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      const int64_t left_out = micro_batches_to_leave_out(resolved, layout.mesh().coordinate(rank, Axis::pipeline));
      const bool last = layout.mesh().coordinate(rank, Axis::pipeline) + 1 == layout.mesh().size(Axis::pipeline);
      EXPECT_EQ(left_out > 0, last && config.parallel.num_virtual_stages_per_pipeline_rank <= 1);
      MetaRank meta(resolved, layout, rank, left_out);
      meta.step(micro_batches_of_a_rank(resolved), 1);
      EXPECT_TRUE(meta.repeats()) << "rank " << rank << "; or else the plan runs all of them";
    }
    const Plan some = make_plan(resolved), all = make_plan(resolved, {.every_micro_batch = true});
    ASSERT_EQ(some.ranks.size(), all.ranks.size());
    for (size_t rank = 0; rank < all.ranks.size(); ++rank) expect_equal_plans(some.ranks[rank], all.ranks[rank]);
  }
}

// Many micro-batches take no longer than a hundred.
TEST(MetaRank, AnyNumberOfMicroBatchesIsPlanned) {
  constexpr int64_t kMany = 20'000;
  const auto plan_of = [](int64_t micro_batches) {
    RunConfig config = testing::divisible_config("float32");
    config = testing::laid_out(config, {});
    config.train.global_batch_size = micro_batches;
    return make_plan(resolve(config, {}), {.ranks = PlanOptions::Ranks::by_class});
  };
  const Plan many = plan_of(kMany), fewer = plan_of(kMany / 2), few = plan_of(kMany / 4);
  EXPECT_NEAR(many.step_flops - fewer.step_flops, 2 * (fewer.step_flops - few.step_flops), 1e-9 * many.step_flops);
  EXPECT_GT(many.arena_bytes(), fewer.arena_bytes()) << "tokens and losses of all micro-batches stand there";
}

}  // namespace
}  // namespace witan
