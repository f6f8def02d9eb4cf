// Steps of ranks that are processes.
#pragma once

#include <bit>
#include <string>

#include "support/processes.h"
#include "train/run/run_support.h"

namespace witan::testing {

// The losses and norms of this rank's first steps, to the bit.
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

}  // namespace witan::testing
