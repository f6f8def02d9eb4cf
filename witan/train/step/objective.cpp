#include "witan/train/step/objective.h"

#include <utility>

#include "witan/base/text.h"
#include "witan/kernels/common/step_report.h"
#include "witan/train/step/sequence_objectives.h"

namespace witan {
namespace {

constexpr const char *kMtp = "mtp_", *kMtpLoss = " loss";

// The cross entropy of the next token, and with a smaller coefficient that of the tokens that modules of multi-token
// prediction predict.
class CrossEntropy : public Objective {
 public:
  explicit CrossEntropy(const ModelConfig& model) {
    const double coefficient = model.mtp_loss_scaling_factor / static_cast<double>(model.mtp_num_layers);
    for (int64_t module = 1; module <= model.mtp_num_layers; ++module)
      losses_.push_back({mtp_loss_name(module), coefficient});
  }

  std::vector<LossSpec> losses() const override { return losses_; }

  void record(const ObjectivePass& pass, ModelOutput& out) const override {
    // A loss without coefficient and scale lets the gradient of the logits be computed along with it.
    add(pass, std::move(out.logits), 0, pass.scaled_losses ? ops::LossGradient::any : ops::LossGradient::one);
    for (size_t i = 0; i < out.ahead.size(); ++i) add(pass, std::move(out.ahead[i]), i + 1, ops::LossGradient::any);
  }

 private:
  void add(const ObjectivePass& pass, Var logits, size_t which, ops::LossGradient gradient) const {
    const auto ahead = static_cast<int64_t>(which);
    const Tensor weights = target_weights(pass, ahead);
    const Tensor& targets = pass.inputs.targets(pass.micro_batch, ahead);
    pass.tape.add_loss(losses_[which], pass.model.loss(pass.tape, std::move(logits), targets, weights, gradient).loss);
  }

  std::vector<LossSpec> losses_ = {{kLanguageLoss}};  // then those of MTP modules
};

}  // namespace

std::unique_ptr<Objective> make_objective(const RunConfig& config) {
  if (config.objective.objective == "policy") return make_policy_objective(config);
  if (config.objective.objective == "preference") return make_dpo_objective(config);
  return std::make_unique<CrossEntropy>(config.model);
}

Batch sized_batch(const RunConfig& config) {
  Batch batch;
  batch.sequences = config.train.micro_batch_size;
  batch.sequence_length = config.data.seq_length;
  batch.loss_tokens = batch.sequences * batch.sequence_length;
  batch.loss_sequences = batch.sequences;
  for (const ColumnSpec& column : make_objective(config)->columns()) batch.columns.push_back({column});
  return batch;
}

std::string mtp_loss_name(int64_t module) {
  return cat(kMtp, module, kMtpLoss);
}

bool is_mtp_loss(std::string_view name) {
  return name.starts_with(kMtp) && name.ends_with(kMtpLoss);
}

Tensor target_weights(const ObjectivePass& pass, int64_t ahead) {
  Stream& stream = pass.tape.stream();
  const Tensor& mask = pass.inputs.mask(pass.micro_batch, ahead);
  const Tensor weights = stream.empty(mask.shape(), accumulator(pass.model.config().compute_dtype()));
  kernels::loss_weights(stream, weights, mask, pass.inputs.target_count(ahead));
  return weights;
}

}  // namespace witan
