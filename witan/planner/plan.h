// What a run will need, from running its very step on the meta device: nothing is computed, but the allocator, the
// kernels' cost twins and the groups' accounting are the real ones.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "witan/model/counts.h"
#include "witan/tensor/device.h"
#include "witan/train/config.h"

namespace witan {

struct RankPlan {
  int rank = 0;
  int64_t arena_bytes = 0;                                    // high-water mark
  std::map<std::string, int64_t> tags;                        // largest bytes of each memory tag
  std::map<std::string, Cost> parts;                          // of one step, by part of the model
  std::map<std::string, std::map<std::string, double>> sent;  // bytes of one step by axis and operation
};

struct Plan {
  ParameterCounts counts;
  std::vector<RankPlan> ranks;
  double step_flops = 0;  // of one step, all ranks
  int64_t tokens_per_step = 0;
  int64_t arena_bytes() const;  // the most that any rank needs
};

// The config must be resolved and valid.
Plan make_plan(const RunConfig& config);

// For people: counts, FLOPs by part, bytes by tag and rank, bytes sent.
std::string format_plan(const Plan& plan);

}  // namespace witan
