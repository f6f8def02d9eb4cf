#include "witan/train/evaluate.h"

#include "witan/train/upload.h"

namespace witan {

Evaluation evaluate(Stream& stream, Transformer& model, const Batch& batch) {
  Tape tape(stream, Tape::Mode::off);
  const ModelInput input = upload(stream, batch);
  const auto [ids, weights] = upload_targets(stream, batch, accumulator(model.config().compute_dtype()), 1.0);
  ModelOutput out = model.forward(tape, input);
  const ops::CrossEntropy entropy = model.loss(tape, std::move(out.logits), ids, weights);
  return {read_scalar(stream, entropy.loss.value()), static_cast<double>(batch.loss_tokens)};
}

}  // namespace witan
