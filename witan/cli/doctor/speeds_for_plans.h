// What `witan doctor --gpu` measures for plans: how fast calls are on the first GPU, and exchanges between GPUs.
#pragma once

#include <string>
#include <vector>

#include "witan/planner/speeds/ceilings.h"

namespace witan::cli {

struct SpeedsForPlans {
  std::vector<Ceilings> ceilings;  // of 1, 2, 4, … ranks, in bfloat16
  double seconds = 0;              // that measuring took
  std::string kept_in;             // the file that `plan` and `train` read them from; empty: none is writable
};

// Of so many GPUs, at least one. Takes some 10 s. Throws DeviceError, OutOfMemoryError, CommError.
SpeedsForPlans measure_for_plans(int devices);

}  // namespace witan::cli
