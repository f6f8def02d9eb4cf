// The memory of runs whose steps are rerun if a part or a receive buffer overflows. The plan has room for reruns, which
// other steps leave unused.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/runs/engine_support.h"
#include "witan/parallel/layout.h"
#include "witan/planner/memory/meta_rank.h"

namespace witan::testing {

// The arena bytes that steps take, the largest of all ranks: of training alone, or including reruns with exact counts.
inline int64_t arena_of_steps(const RunConfig& config, bool again) {
  const ResolvedConfig resolved = resolve(config, {});
  const Layout layout(config.parallel, static_cast<int>(config.parallel.ranks), config.model.moe.num_experts);
  int64_t most = 0;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    MetaRank meta(resolved, layout, rank);
    meta.step(micro_batches_of_a_rank(config), 1);
    if (again) meta.overflow(micro_batches_of_a_rank(config), 2);
    most = std::max(most, meta.arena().high_water());
  }
  return most;
}

inline void expect_memory_of_steps(const Trajectory& gpus, const RunConfig& config) {
  const bool again = std::ranges::max(gpus.exchange_fills) > 0 || std::ranges::max(gpus.passes) > 1;
  EXPECT_EQ(gpus.arena_high_water, arena_of_steps(config, again)) << (again ? "with reruns" : "without reruns");
  EXPECT_LE(gpus.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
}

// Trains in float64, with the CPU's losses and norms.
inline void expect_trained_in_memory_of_steps(const RunConfig& config, int64_t steps) {
  expect_memory_of_steps(expect_values_of_the_cpu(config, steps), config);
}

}  // namespace witan::testing
