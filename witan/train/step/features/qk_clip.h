// QK-clip in a step: the largest logits of the layers that have some (nn/attention/attention.h), over all
// micro-batches and ranks, and the scaling of query and key projections after the update (kernels/attention/qk_clip.h).
// All of it stays on the device, and nothing is left for the next step.
#pragma once

#include "witan/nn/attention/attention.h"
#include "witan/train/step/features/step_activations.h"
#include "witan/train/step/step_features.h"

namespace witan {

class QkClip : public StepFeature {
 public:
  // Lets the model's mixers record their largest logits. `activations`: steps that measure activations also report the
  // logits of each layer; may be null.
  QkClip(const StepParts& parts, const StepActivations* activations);

  void begin_step() override;
  // The values and masters that this rank owns are scaled, unless the step was skipped. A collective of all ranks.
  void after_update() override;
  void report(const StepReport::Result& read, StepResult& result) override;

  // The largest logit of the last step, over all heads. Waits for the stream; 0 on the meta device.
  double largest() const;
  // The largest logit of each layer, MTP's last; NaN for a layer without logits.
  std::vector<double> largest_of_layers() const;

 private:
  std::vector<double> read() const;  // [layers * H]
  Stream& stream_;
  Group& world_;
  const OptimizerConfig& config_;
  const Optimizer& optimizer_;
  const StepState& state_;
  const StepActivations* activations_;
  struct Clipped {
    ClippedLogits::Projection projection;
    Tensor largest;  // [H]
    int64_t groups;  // of heads that share keys
  };
  // The power of gamma that such rows are multiplied by.
  double exponent(ClippedLogits::Projection::Of of) const;
  Tensor largest_;  // [layers, H] accumulator dtype: this rank's, and after the update all ranks'
  std::map<const Parameter*, Clipped> clipped_;
};

}  // namespace witan
