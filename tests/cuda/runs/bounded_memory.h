// The memory of runs whose steps are made again where a part or a pool overflows: the plan has room for that, which
// steps that do not overflow leave unused.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/runs/engine_support.h"
#include "witan/parallel/layout.h"
#include "witan/planner/memory/meta_rank.h"

namespace witan::testing {

// What steps take of a rank's arena, the largest of all ranks': of training alone, or also made again with rows as they
// come.
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
  EXPECT_EQ(gpus.arena_high_water, arena_of_steps(config, again)) << (again ? "made again" : "made once");
  EXPECT_LE(gpus.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
}

// In float64, with losses and norms of the CPU.
inline void expect_trained_in_memory_of_steps(const RunConfig& config, int64_t steps) {
  expect_memory_of_steps(expect_values_of_the_cpu(config, steps), config);
}

}  // namespace witan::testing
