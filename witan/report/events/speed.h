// How fast a run is: one definition for every page, table and line that gives a figure for a whole run.
#pragma once

#include "witan/report/events/metrics.h"

namespace witan {

// Those of the median step, over all ranks: what most steps do, whatever the first one or a busy minute took. NaN where
// no step recorded one.
struct RunSpeed {
  double tokens_per_s = 0;
  double gflops = 0;
};
RunSpeed run_speed(const Metrics& metrics);

}  // namespace witan
