#include "witan/report/speed.h"

#include <algorithm>
#include <cmath>

namespace witan {
namespace {

double finite_median(const std::vector<StepEvent>& steps, double StepEvent::*of) {
  std::vector<double> values;
  for (const StepEvent& step : steps)
    if (std::isfinite(step.*of)) values.push_back(step.*of);
  if (values.empty()) return NAN;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

RunSpeed run_speed(const Metrics& metrics) {
  return {finite_median(metrics.steps, &StepEvent::tokens_per_s), finite_median(metrics.steps, &StepEvent::gflops)};
}

}  // namespace witan
