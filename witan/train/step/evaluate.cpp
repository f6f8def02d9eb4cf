#include "witan/train/step/evaluate.h"

#include <utility>

#include "witan/base/error.h"
#include "witan/train/step/upload.h"

namespace witan {

namespace {

ModelInput input_of(Stream& stream, const Batch& batch, bool padded) {
  ModelInput input = upload(stream, batch, padded);
  input.dropping = Dropping::never;
  return input;
}

// A batch's way through a chunk of layers: to the next one's input or, by the last, to its nats.
Var look(Tape& tape, Transformer& model, const Batch& batch, bool padded, int chunk, Var x, Evaluation& found) {
  Stream& stream = tape.stream();
  ModelOutput out = model.forward(tape, input_of(stream, batch, padded), chunk, std::move(x));
  if (out.x.defined()) return out.x;
  const auto [ids, weights] = upload_targets(stream, batch, accumulator(model.config().compute_dtype()), 1.0);
  const ops::CrossEntropy entropy = model.loss(tape, std::move(out.logits), ids, weights);
  found = {read_scalar(stream, entropy.loss.value()), static_cast<double>(batch.loss_tokens)};
  return {};
}

class Looks : public StageModel {
 public:
  Looks(Stream& stream, Transformer& model, std::span<const Batch> batches, bool padded)
      : found(batches.size()), stream_(stream), model_(model), batches_(batches), padded_(padded) {}

  Tensor forward(int64_t micro_batch, int chunk, Tensor x) override {
    Tape tape(stream_, Tape::Mode::off);
    const auto i = static_cast<size_t>(micro_batch);
    Var in = x.defined() ? tape.constant(std::move(x)) : Var();
    const Var y = look(tape, model_, batches_[i], padded_, chunk, std::move(in), found[i]);
    return y.defined() ? y.value() : Tensor();
  }
  Tensor backward(int64_t, int, Tensor) override {
    throw Error(ExitCode::internal, "an evaluation has no backward pass");
  }

  std::vector<Evaluation> found;  // by batch

 private:
  Stream& stream_;
  Transformer& model_;
  std::span<const Batch> batches_;
  const bool padded_;
};

}  // namespace

Evaluation evaluate(Stream& stream, Transformer& model, const Batch& batch, bool padded) {
  Tape tape(stream, Tape::Mode::off);
  Evaluation found;
  look(tape, model, batch, padded, 0, {}, found);
  return found;
}

std::vector<Evaluation> evaluate(Stream& stream, Transformer& model, PipelineChannel& channel,
                                 std::span<const Batch> batches, bool padded) {
  Looks looks(stream, model, batches, padded);
  channel.run(stream, looks);
  return std::move(looks.found);
}

}  // namespace witan
