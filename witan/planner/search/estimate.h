// What a layout takes, by closed formulas: in microseconds, to say which of many thousands are worth a plan, and in
// which order. What a search shows is planned.
#pragma once

#include <cstdint>

#include "witan/planner/speeds/cluster.h"
#include "witan/train/run/resolve.h"

namespace witan {

struct LayoutEstimate {
  double seconds = 0;       // of a step
  int64_t state_bytes = 0;  // of values, gradients and optimizer, on the average rank: a rank of any layout so divided
                            // needs no less
  int64_t bytes = 0;        // with activations
};

// Work and traffic follow Narayanan et al. 2021 (arXiv:2104.04473) and
// Korthikanti et al. 2022 (arXiv:2205.05198), as docs/cli.md describes; times are predict_step()'s.
LayoutEstimate estimate_layout(const ResolvedConfig& config, const Cluster& cluster, const Ceilings& ceilings);

}  // namespace witan
