// The calls of a plan add up to its costs and communication.
#include <gtest/gtest.h>

#include "train/step/run_support.h"
#include "witan/base/config/fields.h"
#include "witan/parallel/mesh_shorthand.h"
#include "witan/planner/plan.h"
#include "witan/planner/speeds/cluster.h"
#include "witan/planner/time/step_time.h"

namespace witan {
namespace {

using Phase = TraceContext::Phase;

Plan plan_on(const std::string& mesh, int64_t ranks, bool cuda) {
  RunConfig config = testing::small_config();
  config.parallel.ranks = ranks;
  config.parallel.mesh = mesh;
  if (cuda) {
    config.parallel.device = "cuda";
    config.parallel.threads = 1;
    config.parallel.peer_islands.assign(static_cast<size_t>(ranks), 0);
  }
  expand_mesh(config.parallel, {});
  config.parallel.sequence_parallel = config.parallel.tensor_model_parallel_size > 1;
  config.train.global_batch_size = 8 * config.train.micro_batch_size;
  return make_plan(resolve(config, {}));
}

// The operation under which a call is counted.
std::string counted_as(const std::string& call) {
  if (call == "gather_parts") return "all_gather";
  if (call == "exchange_pieces") return "all_to_all_equal";
  return call == "sum_parts" ? "reduce_scatter" : call;
}

TEST(Calls, AddUpToCostsAndBytesSent) {
  for (const auto& [mesh, ranks] : {std::pair("replicate=2", 2),
                                    {"tensor=2", 2},
                                    {"pipeline=2,replicate=2", 4},
                                    {"context=2,expert=2", 2},
                                    {"shard=2,expert=2", 2}})
    for (const bool cuda : {false, true}) {
      SCOPED_TRACE(cat(mesh, cuda ? " of GPUs" : ""));
      for (const RankPlan& rank : plan_on(mesh, ranks, cuda).ranks) {
        KernelCosts kernels;
        SentBytes sent;
        for (const auto& [kind, cost] : rank.calls) {
          EXPECT_GE(cost.calls, 1);
          if (kind.group.empty())
            kernels[kind.part][kind.name] += cost;
          else
            sent[kind.group][counted_as(kind.name)] += cost.bytes;
        }
        for (const auto& [part, costs] : rank.step)
          for (const auto& [kernel, cost] : costs) {
            EXPECT_DOUBLE_EQ(kernels[part][kernel].flops, cost.flops) << part << ", " << kernel;
            EXPECT_DOUBLE_EQ(kernels[part][kernel].bytes, cost.bytes) << part << ", " << kernel;
          }
        for (const auto& [group, operations] : rank.sent)
          for (const auto& [operation, bytes] : operations)
            EXPECT_NEAR(sent[group][operation], bytes, 1e-9 * bytes) << group << ", " << operation;
      }
    }
}

TEST(Calls, IncludeThePassesOfAllMicroBatches) {
  const Plan plan = plan_on("pipeline=2", 2, false);
  ASSERT_EQ(plan.micro_batches, 8);
  for (const RankPlan& rank : plan.ranks) {
    double sends = 0;
    for (const auto& [kind, cost] : rank.calls)
      if (kind.group == "pipeline" && kind.name == "send") {
        EXPECT_EQ(kind.phase, rank.rank == 0 ? Phase::forward : Phase::backward);
        sends += cost.calls;
      }
    EXPECT_EQ(sends, 8) << "one for each micro-batch";
  }
}

// With peer memory tensor-parallel ranks use other kernels and the same memory.
TEST(Calls, TensorParallelRanksUsePeerMemory) {
  const auto has = [](const Plan& plan, const char* name) {
    return std::ranges::any_of(plan.ranks[0].calls, [&](const auto& call) { return call.first.name == name; });
  };
  const Plan gpus = plan_on("tensor=2", 2, true);
  EXPECT_TRUE(has(gpus, "gather_parts") && has(gpus, "sum_parts"));
  EXPECT_FALSE(has(plan_on("tensor=2", 2, false), "gather_parts"));
}

// A search orders layouts by quick plans of a few micro-batches.
TEST(Calls, QuickPlansTakeAsLongAsExactPlans) {
  for (const char* mesh : {"pipeline=2", "replicate=2", "tensor=2", "shard=2"}) {
    SCOPED_TRACE(mesh);
    RunConfig config = testing::small_config();
    config.parallel = {2, 1, 1};
    config.parallel.device = "cuda";
    config.parallel.peer_islands = {0, 0};
    config.parallel.mesh = mesh;
    config.model.dtype = "bfloat16";
    config.model.num_layers = 4;
    expand_mesh(config.parallel, {});
    config.parallel.sequence_parallel = config.parallel.tensor_model_parallel_size > 1;
    config.train.global_batch_size = 32 * config.train.micro_batch_size;
    const ResolvedConfig resolved = resolve(config, {});
    const Cluster cluster{find_gpu("h100"), 8, 450e9, 50e9};
    const Ceilings ceilings = cluster.ceilings({"bfloat16", 2, 1});
    const double exact = predict_step(make_plan(resolved), resolved, ceilings, &cluster).seconds,
                 quick = predict_step(quick_plan(resolved), resolved, ceilings, &cluster).seconds;
    EXPECT_NEAR(quick, exact, 0.03 * exact) << "work done once per step is counted for every micro-batch";
  }
}

}  // namespace
}  // namespace witan
