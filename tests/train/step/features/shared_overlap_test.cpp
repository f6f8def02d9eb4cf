// moe_shared_expert_overlap: shared experts compute while rows are sent to the routed ones, which does not change the
// result.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "planner/real_run.h"
#include "support/long_form.h"
#include "train/step/layouts/laid_out.h"
#include "train/step/process_steps.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

const int64_t kOverlapSteps = testing::steps_of(3, 20);

// Shared experts have gates.
RunConfig with_shared_experts(const char* dtype) {
  RunConfig config = testing::small_config();
  config.model.dtype = dtype;
  config.model.moe.moe_shared_expert_intermediate_size = 12;
  config.model.moe.moe_shared_expert_gate = true;
  return config;
}

void expect_the_bits_without_overlap(RunConfig config) {
  config.model.moe.moe_shared_expert_overlap = true;
  const Trajectory overlapping = run_engine(config, kOverlapSteps);
  config.model.moe.moe_shared_expert_overlap = false;
  const Trajectory one_by_one = run_engine(config, kOverlapSteps);
  EXPECT_EQ(overlapping.losses, one_by_one.losses);
  EXPECT_EQ(overlapping.norms, one_by_one.norms);
  EXPECT_EQ(overlapping.balances, one_by_one.balances);
  EXPECT_EQ(overlapping.loads, one_by_one.loads);
  EXPECT_EQ(overlapping.passes, one_by_one.passes);
  ASSERT_EQ(overlapping.weights.size(), one_by_one.weights.size());
  for (size_t i = 0; i < overlapping.weights.size(); ++i)
    EXPECT_TRUE(overlapping.weights[i] == one_by_one.weights[i]) << "parameter " << i;
}

class SharedOverlap : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, SharedOverlap, ::testing::Values("float32", "bfloat16", "float64"));

TEST_P(SharedOverlap, ChangesNoBitInAnyLayout) {
  for (const LaidOut& layout : std::vector<LaidOut>{{""},
                                                    {"replicate=2,expert=2"},
                                                    {"replicate=4,expert=4"},
                                                    {"shard=4,expert=2"},
                                                    {"shard=4,expert=2", kFsdp},
                                                    {"tensor=2,expert=2,expert_tensor=1"},
                                                    {"shard=4,expert=2,expert_tensor=2", kFsdp},
                                                    {"replicate=2,tensor=2,expert=2,expert_tensor=2"},
                                                    {"context=2,pipeline=2,expert=2"},
                                                    {"shard=2,pipeline=2,expert=2", kFsdp, 2}}) {
    SCOPED_TRACE(described(layout));
    RunConfig config = with_shared_experts(GetParam());
    if (layout.chunks > 0) config.model.num_layers = 4;
    expect_the_bits_without_overlap(laid_out(config, layout));
  }
}

TEST(SharedExpertOverlap, ChangesNoBitForModelVariants) {
  const auto check = [](const char* what, const std::function<void(RunConfig&)>& change) {
    SCOPED_TRACE(what);
    RunConfig config = laid_out(with_shared_experts("float32"), {"replicate=2,expert=2"});
    change(config);
    expect_the_bits_without_overlap(config);
  };
  check("deterministic", [](RunConfig& c) { c.parallel.deterministic = true; });
  check("no gate", [](RunConfig& c) { c.model.moe.moe_shared_expert_gate = false; });
  check("latent experts", [](RunConfig& c) { c.model.moe.moe_latent_size = 6; });
  check("capacity", [](RunConfig& c) { c.model.moe.moe_expert_capacity_factor = 0.75; });
  check("one expert after the other", [](RunConfig& c) { c.model.moe.moe_grouped_gemm = false; });
  check("dropout", [](RunConfig& c) { testing::drop(c); });
  check("layers that predict further tokens", [](RunConfig& c) { c.model.mtp_num_layers = 1; });
  check("whole layers again", [](RunConfig& c) { c.model.recompute_granularity = "full"; });
  for (const char* modules : {"", "moe", "shared_experts", "shared_experts,moe_act", "mlp,moe,layernorm"})
    check(modules, [&](RunConfig& c) {
      c.model.recompute_granularity = "selective";
      c.model.recompute_modules = modules;
    });
}

// A step that overflows is rerun in passes, in which nothing overlaps.
TEST(SharedExpertOverlap, ChangesNoBitWithBoundedReceiveBuffers) {
  RunConfig config = laid_out(with_shared_experts("float32"), {"replicate=2,expert=2"});
  config.model.vocab_size = 7;
  config.model.moe.moe_router_load_balancing_type = "none";
  config.model.moe.moe_aux_loss_coeff = "0";
  config.model.moe.moe_pool_factor = 1;
  config.parallel.deterministic = true;
  EXPECT_GT(std::ranges::max(run_engine(config, kOverlapSteps).passes), 1)
      << "no step overflows, so the test proves nothing";
  expect_the_bits_without_overlap(config);
}

// The ranks do not share memory.
TEST(SharedExpertOverlap, ChangesNoBitAcrossProcesses) {
  RunConfig config = laid_out(with_shared_experts("float32"), {"replicate=2,expert=2"});
  config.parallel.ranks_per_process = 1;
  const auto run = [&](bool overlaps) {
    config.model.moe.moe_shared_expert_overlap = overlaps;
    return testing::on_processes(
        2, [&](testing::ProcessRank& rank) { return testing::bits_of_steps(config, rank, kOverlapSteps); });
  };
  const auto overlapping = run(true), one_by_one = run(false);
  testing::expect_whole(overlapping);
  for (const size_t rank : {0, 1}) EXPECT_EQ(overlapping[rank].said, one_by_one[rank].said);
}

TEST(SharedExpertOverlap, MatchesThePlan) {
  for (const char* granularity : {"none", "selective", "full"})
    for (const LaidOut& layout : std::vector<LaidOut>{{"replicate=2,expert=2"},
                                                      {"shard=4,expert=2", kFsdp},
                                                      {"tensor=2,expert=2,expert_tensor=1"},
                                                      {"context=2,pipeline=2,expert=2"}}) {
      RunConfig config = laid_out(with_shared_experts("float32"), layout);
      config.model.moe.moe_shared_expert_overlap = true;
      config.model.recompute_granularity = granularity;
      config.train.sample_tokens = 0;
      SCOPED_TRACE(cat(described(layout), ", recompute ", granularity));
      testing::expect_kept(config, {.prompt_tokens = 0});
    }
}

// On a GPU the side stream has scratch memory, which is needed only if rows are sent.
TEST(SharedExpertOverlap, TakesMemoryOnlyIfRowsAreSent) {
  const auto workspace = [](const LaidOut& layout, bool overlaps) {
    RunConfig config = laid_out(with_shared_experts("bfloat16"), layout);
    config.parallel.device = "cuda";
    config.model.moe.moe_shared_expert_overlap = overlaps;
    return make_plan(resolve(config, {})).ranks[0].tags.at("workspace");
  };
  EXPECT_EQ(workspace({""}, true), workspace({""}, false));
  EXPECT_EQ(workspace({"replicate=2,expert=2"}, true), workspace({"replicate=2,expert=2"}, false) + 512);
}

}  // namespace
}  // namespace witan
