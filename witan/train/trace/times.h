// The times of a step's parts on each rank, under the names of Megatron-LM's timers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "witan/comm/group.h"
#include "witan/report/progress/log_lines.h"

namespace witan {

// Seconds of one rank in one or more steps.
struct StepTimes {
  double batch = 0;  // waiting for the data
  double forward = 0, backward = 0;
  double reduction = 0;         // of gradients, including the part that overlaps with the backward
  double forward_backward = 0;  // all of the above except the data
  double clip = 0, update = 0;
  double optimizer = 0;  // clip and update

  StepTimes& operator+=(const StepTimes& other);
};

using NamedSeconds = std::vector<std::pair<std::string, double>>;

// The named timers of timing_log_level: 0: none; 1: forward-backward, all-grads-sync, optimizer …; 2: also
// batch-generator, forward-compute, backward-compute.
NamedSeconds named(const StepTimes& times, int64_t level);

// The minimum and maximum of each timer over the ranks of the group, divided by `iterations`, in milliseconds.
// Collective; all ranks give the same names. It gathers only a few bytes.
std::vector<megatron_log::RankTimes> gather_times(Stream& stream, Group& world, const NamedSeconds& own,
                                                  int64_t iterations = 1);

}  // namespace witan
