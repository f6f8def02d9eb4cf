// Times the parts of a step on each rank, under the names of Megatron-LM's timers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/comm/group.h"
#include "witan/report/progress/log_lines.h"

namespace witan {

// Seconds of one rank, of one step or of several.
struct StepTimes {
  double batch = 0;  // waiting for the data
  double forward = 0, backward = 0;
  double reduction = 0;         // of gradients: what overlaps with the backward, too
  double forward_backward = 0;  // all of the above but the data
  double clip = 0, update = 0;
  double optimizer = 0;  // both

  StepTimes& operator+=(const StepTimes& other);
};

using NamedSeconds = std::vector<std::pair<std::string, double>>;

// `level` is timing_log_level: 0: none; 1: forward-backward, all-grads-sync, optimizer …; 2: batch-generator,
// forward-compute, backward-compute too.
NamedSeconds named(const StepTimes& times, int64_t level);

// The least and the most of each over the ranks of the group, divided by `iterations`, in milliseconds. Collective: all
// ranks give the same names. Costs a gather of a few bytes.
std::vector<megatron_log::RankTimes> gather_times(Stream& stream, Group& world, const NamedSeconds& own,
                                                  int64_t iterations = 1);

}  // namespace witan
