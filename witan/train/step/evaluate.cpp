#include "witan/train/step/evaluate.h"

#include <utility>

#include "witan/base/error.h"
#include "witan/kernels/common/step_report.h"
#include "witan/train/step/upload.h"

namespace witan {

namespace {

ModelInput input_of(Stream& stream, const Batch& batch, bool padded, Dropping dropping) {
  ModelInput input = upload(stream, batch, padded);
  input.dropping = dropping;
  return input;
}

Evaluation evaluation_of(Tape& tape, Transformer& model, const Batch& batch, Var logits) {
  Stream& stream = tape.stream();
  const auto [ids, weights] = upload_targets(stream, batch, accumulator(model.config().compute_dtype()), 1.0);
  const ops::CrossEntropy entropy = model.loss(tape, std::move(logits), ids, weights);
  return {read_scalar(stream, entropy.loss.value()), static_cast<double>(batch.loss_tokens)};
}

class Looks : public StageModel {
 public:
  Looks(Stream& stream, Transformer& model, std::span<const Batch> batches, const ReportSizes& sizes, int stage)
      : losses_(batches.size()), stream_(stream), model_(model), batches_(batches), sizes_(sizes), stage_(stage) {
    const int64_t all = static_cast<int64_t>(batches.size()) * values();
    if (all > 0) routers_ = stream.empty({all}, DType::f64, MemoryTag::communication);
  }

  Tensor forward(int64_t micro_batch, int chunk, Tensor x) override {
    Tape tape(stream_, Tape::Mode::off);
    const auto i = static_cast<size_t>(micro_batch);
    Var in = x.defined() ? tape.constant(std::move(x)) : Var();
    // Rows that fill a last batch up are padding, and experts do not compute them.
    const ModelInput input = input_of(stream_, batches_[i], true, Dropping::measured);
    ModelOutput out = model_.forward(tape, input, chunk, std::move(in));
    collect(micro_batch, chunk, out);
    if (out.x.defined()) return out.x.value();
    losses_[i] = evaluation_of(tape, model_, batches_[i], std::move(out.logits));
    return {};
  }
  Tensor backward(int64_t, int, Tensor) override {
    throw Error(ExitCode::internal, "an evaluation has no backward pass");
  }

  StageEvaluation found() {
    StageEvaluation all{std::move(losses_), {}};
    if (!routers_.defined() || stream_.is_meta()) return all;
    std::vector<double> read(static_cast<size_t>(routers_.elements()));
    stream_.read(read.data(), routers_);
    for (auto begin = read.begin(); begin != read.end(); begin += values())
      all.routers.emplace_back(begin, begin + values());
    return all;
  }

 private:
  int64_t values() const { return static_cast<int64_t>(sizes_.held(stage_).size()) * sizes_.statistics().values(); }
  void collect(int64_t micro_batch, int chunk, const ModelOutput& out) const {
    std::vector<Tensor> sources;
    for (const RouterRecord& router : out.routers)
      for (const Tensor& value : sizes_.statistics().pack(router)) sources.push_back(value);
    if (sources.empty()) return;
    int64_t begin = micro_batch * values();
    for (int before = 0; before < chunk; ++before)
      begin += static_cast<int64_t>(sizes_.held(stage_, before).size()) * sizes_.statistics().values();
    const int64_t count = static_cast<int64_t>(out.routers.size()) * sizes_.statistics().values();
    kernels::collect(stream_, routers_.narrow(0, begin, count), sources);
  }

  std::vector<Evaluation> losses_;  // by batch
  Stream& stream_;
  Transformer& model_;
  std::span<const Batch> batches_;
  const ReportSizes& sizes_;
  const int stage_;
  Tensor routers_;  // [batches * values()] float64; undefined: the stage has no experts
};

}  // namespace

Evaluation evaluate(Stream& stream, Transformer& model, const Batch& batch, bool padded) {
  Tape tape(stream, Tape::Mode::off);
  return evaluation_of(tape, model, batch,
                       model.forward(tape, input_of(stream, batch, padded, Dropping::never)).logits);
}

StageEvaluation evaluate(Stream& stream, Transformer& model, PipelineChannel& channel, std::span<const Batch> batches,
                         const ReportSizes& sizes, int stage) {
  Looks looks(stream, model, batches, sizes, stage);
  channel.run(stream, looks);
  return looks.found();
}

}  // namespace witan
