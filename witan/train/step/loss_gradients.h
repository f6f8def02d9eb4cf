// The gradient of a step's loss by each loss that its passes record: the roots of their backwards.
#pragma once

#include <vector>

#include "witan/autograd/tape.h"
#include "witan/optim/loss_scaler.h"

namespace witan {

class LossGradients {
 public:
  // `dtype`: of the losses. All gradients are multiplied by the scale of `scaler`, which may be null. Stream and scaler
  // must outlive it.
  LossGradients(Stream& stream, DType dtype, const LossScaler* scaler);

  // Sets the number of micro-batches of the global batch, from the next step on.
  void expect(int64_t micro_batches);
  // Before the first pass of a step, which may have another loss scale.
  void begin_step();

  bool scaled() const { return scaler_ != nullptr; }
  // [1]: the coefficient, divided by the number of micro-batches where the loss is averaged over them, times the loss
  // scale. Losses of the same coefficient share a tensor, which keeps its address; the first step makes all of them, so
  // that a recorded step finds them. Throws Error when a model has more than 64 different ones.
  Tensor of(const LossSpec& loss);

 private:
  struct Known {
    double coefficient;
    LossSpec::Over over;

    bool operator==(const Known&) const = default;
  };
  void write(size_t which);

  Stream& stream_;
  const LossScaler* scaler_;
  int64_t micro_batches_ = 1;
  std::vector<Known> known_;
  Tensor unscaled_, scaled_;  // [64] each; one tensor where there is no scale
};

}  // namespace witan
