// QK-clip in a step: the largest logits of the layers that have some (nn/attention/clipped_logits.h), over all
// micro-batches and ranks, and the scaling of query and key projections after the update (kernels/attention/qk_clip.h).
// All of it stays on the device, and nothing is left for the next step.
#pragma once

#include "witan/model/transformer.h"
#include "witan/nn/attention/clipped_logits.h"
#include "witan/optim/optimizer.h"
#include "witan/parallel/groups.h"
#include "witan/train/run/config.h"

namespace witan {

class QkClip {
 public:
  // The arguments must outlive it. From here on the model's mixers find their largest logits.
  QkClip(Stream& stream, const Groups& groups, const RunConfig& config, Transformer& model);

  // Before a step's first forward.
  void begin_step();
  // After the update: the values and masters that this rank owns are scaled, unless the step was skipped. A collective
  // of all ranks.
  void clip(const Optimizer& optimizer, const StepState& step);

  // The largest logit of the step that was made last, over all heads. Waits for the stream; 0 on the meta device.
  double largest() const;
  // Likewise, of each layer, MTP's last; NaN where it has no logits.
  std::vector<double> largest_of_layers() const;

 private:
  std::vector<double> read() const;  // [layers * H]
  Stream& stream_;
  Group& world_;
  const OptimizerConfig& config_;
  struct Clipped {
    ClippedLogits::Projection projection;
    Tensor largest;  // [H]
    int64_t groups;  // of heads that share keys
  };
  // What gamma is raised to for such rows.
  double exponent(ClippedLogits::Projection::Of of) const;
  Tensor largest_;  // [layers, H] accumulator dtype: this rank's, and after clip() all ranks'
  std::map<const Parameter*, Clipped> clipped_;
};

}  // namespace witan
