#include "witan/report/events/speed.h"

#include <cmath>
#include <utility>

#include "witan/base/numbers/median.h"

namespace witan {
namespace {

double finite_median(const std::vector<StepEvent>& steps, double StepEvent::*of) {
  std::vector<double> values;
  for (const StepEvent& step : steps)
    if (std::isfinite(step.*of)) values.push_back(step.*of);
  return values.empty() ? NAN : median(std::move(values));
}

}  // namespace

RunSpeed run_speed(const Metrics& metrics) {
  return {finite_median(metrics.steps, &StepEvent::tokens_per_s), finite_median(metrics.steps, &StepEvent::gflops)};
}

}  // namespace witan
