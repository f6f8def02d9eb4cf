#include "witan/train/step/features/step_activations.h"

#include <cmath>

namespace witan {

void StepActivations::report(const StepReport::Result& read, StepResult& result) {
  if (!wanted_) return;
  const std::vector<StepReport::LayerMoments> layers = report_->activations(read);
  for (const ActivationStatistic& statistic : activation_statistics())
    for (const StepReport::LayerMoments& layer : layers) {
      const ActivationMoments& moments = layer[static_cast<size_t>(statistic.of)];
      result.activations[statistic.name].push_back(moments.elements > 0 ? statistic.compute(moments) : std::nan(""));
    }
}

}  // namespace witan
