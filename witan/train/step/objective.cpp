#include "witan/train/step/objective.h"

#include <utility>

#include "witan/base/text.h"
#include "witan/kernels/common/step_report.h"

namespace witan {
namespace {

// The next token's, and with less weight that of the tokens that modules of multi-token prediction look ahead to.
class CrossEntropy : public Objective {
 public:
  explicit CrossEntropy(const ModelConfig& model) {
    if (model.mtp_num_layers > 0)
      mtp_coefficient_ = model.mtp_loss_scaling_factor / static_cast<double>(model.mtp_num_layers);
  }

  void record(const ObjectivePass& pass, ModelOutput& out) const override {
    // A loss without coefficient and scale lets the gradient of the logits be computed along with it.
    add(pass, std::move(out.logits), {kLanguageLoss, {}},
        pass.scaled_losses ? ops::LossGradient::any : ops::LossGradient::one);
    for (size_t i = 0; i < out.ahead.size(); ++i) {
      const auto module = static_cast<int64_t>(i) + 1;
      add(pass, std::move(out.ahead[i]), {mtp_loss_name(module), {}, mtp_coefficient_}, ops::LossGradient::any, module);
    }
  }

 private:
  static void add(const ObjectivePass& pass, Var logits, LossRecord loss, ops::LossGradient gradient,
                  int64_t ahead = 0) {
    const Tensor weights = target_weights(pass, ahead);
    loss.value =
        pass.model.loss(pass.tape, std::move(logits), pass.inputs.targets(pass.micro_batch, ahead), weights, gradient)
            .loss;
    pass.tape.add_loss(std::move(loss));
  }

  double mtp_coefficient_ = 0;
};

}  // namespace

std::unique_ptr<Objective> make_objective(const RunConfig& config) {
  return std::make_unique<CrossEntropy>(config.model);
}

Batch sized_batch(const RunConfig& config) {
  Batch batch;
  batch.sequences = config.train.micro_batch_size;
  batch.sequence_length = config.data.seq_length;
  batch.loss_tokens = batch.sequences * batch.sequence_length;
  for (const ColumnSpec& column : make_objective(config)->columns()) batch.columns.push_back({column});
  return batch;
}

std::string mtp_loss_name(int64_t module) {
  return cat("mtp_", module, " loss");
}

Tensor target_weights(const ObjectivePass& pass, int64_t ahead) {
  Stream& stream = pass.tape.stream();
  const Tensor& mask = pass.inputs.mask(pass.micro_batch, ahead);
  const Tensor weights = stream.empty(mask.shape(), accumulator(pass.model.config().compute_dtype()));
  kernels::loss_weights(stream, weights, mask, pass.inputs.target_count(ahead));
  return weights;
}

}  // namespace witan
