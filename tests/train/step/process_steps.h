// Steps on ranks in separate processes.
#pragma once

#include <bit>
#include <string>

#include "support/processes.h"
#include "train/step/run_support.h"

namespace witan::testing {

// The bits of the losses and norms of this rank's first steps.
inline std::string bits_of_steps(const RunConfig& of, ProcessRank& process, int64_t steps) {
  const Layout layout(of.parallel, static_cast<int>(of.parallel.ranks), of.model.moe.num_experts);
  ThreadPool pool(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 28), pool);
  const Groups groups = make_groups(process.world, layout, process.rank);
  Engine engine(stream, groups, resolve(of, {}));
  std::string said;
  for (int64_t step = 0; step < steps; ++step) {
    const StepResult result = engine.step(own_batches(of, layout, process.rank, step), step + 1, step);
    said += cat(std::bit_cast<uint64_t>(result.loss), " ", std::bit_cast<uint64_t>(result.gradient_norm), "\n");
  }
  return said;
}

// Ranks in separate processes must have the same bits with exact counts, with a fixed capacity that overflows, and with
// one of `room` times the balanced load, which does not overflow.
inline void expect_bits_in_parts(RunConfig config, int64_t steps, double room) {
  config.parallel.ranks_per_process = 1;
  const auto run = [&](double factor) {
    config.model.moe.moe_exchange_factor = factor;
    return on_processes(static_cast<int>(config.parallel.ranks),
                        [&](ProcessRank& rank) { return bits_of_steps(config, rank, steps); });
  };
  const auto as_they_come = run(0), overflowing = run(1), roomy = run(room);
  expect_whole(as_they_come);
  for (size_t rank = 0; rank < as_they_come.size(); ++rank) {
    EXPECT_EQ(overflowing[rank].said, as_they_come[rank].said);
    EXPECT_EQ(roomy[rank].said, as_they_come[rank].said);
  }
}

}  // namespace witan::testing
