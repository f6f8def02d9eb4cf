// Steps in several layouts, compared with those of one rank.
#pragma once

#include <functional>
#include <vector>

#include "train/step/layouts/laid_out.h"
#include "train/step/run_support.h"

namespace witan::testing {

// Calls compare(one, found, what) with the steps of one rank, those of a layout, and its name. Returns the steps of one
// rank.
using CompareSteps = std::function<void(const Trajectory& one, const Trajectory& found, const std::string& what)>;
inline Trajectory compare_layouts(const RunConfig& config, const std::vector<LaidOut>& layouts, int64_t steps,
                                  const CompareSteps& compare, const MakeBatches& batches = own_batches) {
  const Trajectory one = run_engine(laid_out(config, {}), steps, batches);
  for (const LaidOut& layout : layouts) {
    SCOPED_TRACE(described(layout));
    compare(one, run_engine(laid_out(config, layout), steps, batches), described(layout));
  }
  return one;
}

// For models in float64, whose steps differ between layouts only by rounding.
inline void expect_nearly_equal(const Trajectory& one, const Trajectory& found, const std::string& what) {
  expect_equal(one, found, 1e-9, what);
}

inline Trajectory expect_steps_of_one_rank(const RunConfig& config, const std::vector<LaidOut>& layouts, int64_t steps,
                                           const MakeBatches& batches = own_batches) {
  return compare_layouts(config, layouts, steps, expect_nearly_equal, batches);
}

// Also compares the planned memory.
inline Trajectory expect_planned_steps_of_one_rank(const RunConfig& config, const std::vector<LaidOut>& layouts,
                                                   int64_t steps, const MakeBatches& batches = own_batches) {
  const auto compare = [](const Trajectory& one, const Trajectory& found, const std::string& what) {
    expect_nearly_equal(one, found, what);
    EXPECT_EQ(found.arena_high_water, found.planned_arena);
  };
  return compare_layouts(config, layouts, steps, compare, batches);
}

// For deterministic mode: equal bits.
inline Trajectory expect_bits_of_one_rank(const RunConfig& config, const std::vector<LaidOut>& layouts, int64_t steps,
                                          const MakeBatches& batches = own_batches) {
  const auto compare = [](const Trajectory& one, const Trajectory& found, const std::string&) {
    expect_same_bits(one, found);
  };
  return compare_layouts(config, layouts, steps, compare, batches);
}

inline void expect_recomputation_changes_no_bit(RunConfig config, int64_t steps) {
  const Trajectory kept = run_engine(config, steps);
  for (const char* granularity : {"selective", "full"}) {
    SCOPED_TRACE(granularity);
    config.model.recompute_granularity = granularity;
    expect_same_bits(kept, run_engine(config, steps));
  }
}

}  // namespace witan::testing
