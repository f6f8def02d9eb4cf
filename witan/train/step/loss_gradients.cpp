#include "witan/train/step/loss_gradients.h"

#include <algorithm>
#include <utility>

#include "witan/base/error.h"
#include "witan/kernels/optimizer/optimizer.h"

namespace witan {
namespace {

constexpr int64_t kMostGradients = 64;

}  // namespace

LossGradients::LossGradients(Stream& stream, DType dtype, const LossScaler* scaler)
    : stream_(stream),
      scaler_(scaler),
      unscaled_(stream.zeros({kMostGradients}, dtype, MemoryTag::workspace)),
      scaled_(scaler ? stream.zeros({kMostGradients}, dtype, MemoryTag::workspace) : unscaled_) {}

void LossGradients::expect(int64_t micro_batches) {
  if (std::exchange(micro_batches_, micro_batches) == micro_batches) return;
  for (size_t i = 0; i < known_.size(); ++i) write(i);
}

void LossGradients::begin_step() {
  if (scaler_) kernels::scale_losses(stream_, scaled_, unscaled_, scaler_->tensor());
}

void LossGradients::write(size_t which) {
  const Known& known = known_[which];
  const double value = known.over == LossSpec::Over::micro_batches
                           ? known.coefficient / static_cast<double>(micro_batches_)
                           : known.coefficient;
  const Tensor gradient = unscaled_.narrow(0, static_cast<int64_t>(which), 1);
  dispatch_floating(gradient.dtype(), [&]<class A>() {
    const A rounded = static_cast<A>(value);
    stream_.write(gradient, &rounded);
  });
}

Tensor LossGradients::of(const LossSpec& loss) {
  const Known wanted{loss.coefficient, loss.over};
  const auto which = std::ranges::find(known_, wanted) - known_.begin();
  if (which == std::ssize(known_)) {
    if (which == kMostGradients)
      throw Error(ExitCode::internal, cat("the loss ", loss.name, " has one more coefficient than the ", kMostGradients,
                                          " that a step's losses may have: let losses share coefficients"));
    known_.push_back(wanted);
    write(static_cast<size_t>(which));
    begin_step();  // which has begun without this one
  }
  return scaled_.narrow(0, which, 1);
}

}  // namespace witan
