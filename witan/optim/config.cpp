#include "witan/optim/config.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <iterator>

#include "witan/base/error.h"
#include "witan/optim/optimizer.h"

namespace witan {

void insert_fields_after(Fields& fields, std::string_view key, Fields more) {
  const auto found = std::ranges::find(fields, key, &Field::name);
  assert(found != fields.end());
  fields.insert(found + 1, std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

Fields OptimizerSettings::fields() {
  return {
      Field{"optimizer", &optimizer,
            "Optimizer: adam is AdamW; muon and normuon update the model's inner matrices and experts, and leave all "
            "other parameters to adam; shampoo and soap precondition matrices"}
          .one_of(optimizer_names()),
      Field{"lr", &lr, "Peak learning rate"}.at_least(0),
      Field{"min_lr", &min_lr,
            "Learning rate at the end of the decay; lr / 10 if it is not set and lr is below its default"}
          .at_least(0),
      Field{"weight_decay", &weight_decay,
            "Weight decay of matrices and embeddings; norms and biases: see decay_norms_and_biases"}
          .at_least(0),
      Field{"decay_norms_and_biases", &decay_norms_and_biases, "Apply weight decay to norms and biases too"},
      Field{"adam_beta1", &adam_beta1, "Adam's decay rate of the first moment"}.between(0, 1),
      Field{"adam_beta2", &adam_beta2, "Adam's decay rate of the second moment"}.between(0, 1),
      Field{"adam_eps", &adam_eps, "Epsilon added to Adam's denominator"}.above(0),
      Field{"exp_avg_dtype", &exp_avg_dtype, "Dtype in which Adam's first moment is kept"}.one_of(
          {"float32", "bfloat16"}),
      Field{"exp_avg_sq_dtype", &exp_avg_sq_dtype, "Dtype in which Adam's second moment is kept"}.one_of(
          {"float32", "bfloat16"}),
      Field{"sgd_momentum", &sgd_momentum, "Momentum of SGD"}.between(0, 1),
      Field{"lion_beta1", &lion_beta1, "Lion's share of the momentum in the sign"}.between(0, 1),
      Field{"lion_beta2", &lion_beta2, "Lion's decay rate of the momentum"}.between(0, 1),
      Field{"ademamix_beta3", &ademamix_beta3,
            "AdEMAMix's decay rate of the slow average; adam_beta1, adam_beta2 and adam_eps set the rest"}
          .between(0, 1),
      Field{"ademamix_alpha", &ademamix_alpha, "AdEMAMix's coefficient of the slow average"}.at_least(0),
      Field{"ademamix_warmup_iters", &ademamix_warmup_iters,
            "Updates over which AdEMAMix's alpha rises from 0 and beta3 from beta1 (0: none)"}
          .at_least(0),
      Field{"muon_momentum", &muon_momentum, "Momentum of Muon and NorMuon"}.between(0, 1),
      Field{"muon_nesterov", &muon_nesterov, "Use Nesterov momentum in Muon"},
      Field{"muon_num_ns_steps", &muon_num_ns_steps, "Newton-Schulz iterations of Muon"}.between(1, 100),
      Field{"muon_coefficient_type", &muon_coefficient_type, "Coefficients of Muon's Newton-Schulz iterations"}.one_of(
          {"quintic", "polar_express", "cubic", "deepseek"}),
      Field{"muon_scale_mode", &muon_scale_mode,
            "Scale of Muon's updates of a matrix [m, n]: moonlight, muon_extra_scale_factor * sqrt(max(m, n)); "
            "shape_scaling, sqrt(max(1, m/n)); unit_rms_norm, sqrt(m/n); none, 1"}
          .one_of({"moonlight", "shape_scaling", "unit_rms_norm", "none"}),
      Field{"muon_extra_scale_factor", &muon_extra_scale_factor, "Factor of muon_scale_mode = moonlight"}.above(0),
      Field{"normuon_beta2", &normuon_beta2, "NorMuon's decay rate of the second moment of rows"}.between(0, 1),
      Field{"precondition_frequency", &precondition_frequency,
            "Updates between two computations of Shampoo's or SOAP's preconditioners"}
          .at_least(1),
      Field{"start_preconditioning_step", &start_preconditioning_step,
            "Update at which Shampoo first computes preconditioners (0: precondition_frequency)"}
          .at_least(0),
      Field{"max_preconditioner_dim", &max_preconditioner_dim,
            "Maximum rows and columns of Shampoo's blocks; SOAP does not precondition longer dims"}
          .at_least(1),
      Field{"shampoo_beta", &shampoo_beta, "Decay rate of Shampoo's and SOAP's factors (1: Shampoo sums them)"}.between(
          0, 1),
      Field{"shampoo_eps", &shampoo_eps, "Epsilon added to Shampoo's factors before their roots"}.above(0),
      Field{"shampoo_exponent", &shampoo_exponent,
            "Shampoo raises factors to minus this power (0: 1/4 for matrices, 1/2 for vectors)"}
          .at_least(0),
      Field{"shampoo_root", &shampoo_root, "How Shampoo computes roots: eigen (CPU only) or newton"}.one_of(
          {"eigen", "newton"}),
      Field{"shampoo_grafting", &shampoo_grafting, "Update whose norm Shampoo gives to the update of a block"}.one_of(
          {"adam", "sgd", "none"}),
  };
}

Fields OptimizerConfig::fields() {
  Field tables{"optimizer_groups", &groups,
               "Parameter groups with their own settings, as [[optimizer.groups]] tables or [{kind = \"norms\", lr = "
               "1e-3}, ...]; a parameter belongs to the first group whose match and kind fit it"};
  tables.columns = ParamGroupConfig::columns();
  const Fields schedule = {
      Field{"lr_decay_style", &lr_decay_style, "Learning rate decay after warmup"}.one_of(
          {"constant", "linear", "cosine", "inverse-square-root", "WSD"}),
      Field{"lr_warmup_iters", &lr_warmup_iters, "Iterations of linear learning rate warmup from lr_warmup_init"}
          .at_least(0),
      Field{"lr_warmup_samples", &lr_warmup_samples,
            "Samples of linear learning rate warmup from lr_warmup_init, with train_samples"}
          .at_least(0),
      Field{"lr_warmup_init", &lr_warmup_init, "Learning rate at the start of the warmup"}.at_least(0),
      Field{"lr_schedule_counter", &lr_schedule_counter,
            "Counter of the learning rate's schedule: iterations, including the current one, or like Megatron-LM the "
            "updates made before, so that a warmup from 0 begins with an update of 0"}
          .one_of({"iterations", "updates"}),
      Field{"lr_decay_iters", &lr_decay_iters, "Iteration at which the learning rate reaches min_lr (0: train_iters)"}
          .at_least(0),
      Field{"lr_decay_samples", &lr_decay_samples,
            "Samples after which the learning rate reaches min_lr, with train_samples (0: train_samples)"}
          .at_least(0),
      Field{"lr_wsd_decay_style", &lr_wsd_decay_style, "Decay at the end of lr_decay_style = WSD"}.one_of(
          {"linear", "cosine", "exponential", "minus_sqrt"}),
      Field{"lr_wsd_decay_iters", &lr_wsd_decay_iters,
            "Iterations of the decay of lr_decay_style = WSD, which ends with lr_decay_iters"}
          .at_least(0),
      Field{"lr_wsd_decay_samples", &lr_wsd_decay_samples,
            "Samples of the decay of lr_decay_style = WSD, with train_samples; it ends with lr_decay_samples"}
          .at_least(0),
  };
  const Fields weight_decay_schedule = {
      Field{"weight_decay_incr_style", &weight_decay_incr_style,
            "How weight decay changes from start_weight_decay to weight_decay over all iterations"}
          .one_of({"constant", "linear", "cosine"}),
      Field{"start_weight_decay", &start_weight_decay,
            "Weight decay of the first update if weight_decay_incr_style is linear or cosine"}
          .at_least(0),
  };
  const Fields steps = {
      Field{"qk_clip", &qk_clip,
            "After an update, scale down the query and key projections of heads whose largest attention logit of the "
            "step exceeded qk_clip_threshold (MuonClip, with optimizer = muon)"},
      Field{"qk_clip_threshold", &qk_clip_threshold, "Attention logit above which qk_clip scales weights"}.above(0),
      Field{"qk_clip_alpha", &qk_clip_alpha, "Exponent of qk_clip's factor for queries; keys take the rest"}.between(0,
                                                                                                                     1),
      Field{"loss_scale", &loss_scale,
            "Factor on the losses of float16 models before the backward, by which gradients are divided (0: dynamic)"}
          .at_least(0),
      Field{"initial_loss_scale", &initial_loss_scale, "Initial dynamic loss scale"}.above(0),
      Field{"min_loss_scale", &min_loss_scale, "Smallest dynamic loss scale"}.above(0),
      Field{"loss_scale_window", &loss_scale_window,
            "Steps without overflowing gradients after which a dynamic loss scale doubles"}
          .at_least(1),
      Field{"hysteresis", &hysteresis, "Steps with overflowing gradients from which on a dynamic loss scale halves"}
          .at_least(1),
      Field{"clip_grad", &clip_grad, "Clip the global gradient norm to this value (0: no clipping)"}.at_least(0),
      Field{"skip_step_sigma", &skip_step_sigma,
            "Skip steps whose loss or gradient norm is more than this many standard deviations above the mean of the "
            "last skip_step_window steps (0: none)"}
          .at_least(0),
      Field{"skip_step_window", &skip_step_window, "Number of previous steps that skip_step_sigma compares with"}
          .at_least(2),
      std::move(tables),
  };
  Fields fields = OptimizerSettings::fields();
  insert_fields_after(fields, "min_lr", schedule);
  insert_fields_after(fields, "weight_decay", weight_decay_schedule);
  insert_fields_after(fields, "shampoo_grafting", steps);
  return fields;
}

namespace {

void validate_shampoo(const OptimizerSettings& of) {
  const int64_t start = of.start_preconditioning_step;
  require<ConfigError>(start == 0 || start >= of.precondition_frequency, "start_preconditioning_step = ", start,
                       " is below precondition_frequency = ", of.precondition_frequency,
                       "; raise it, or set 0 for the frequency");
  const double root = of.shampoo_exponent > 0 ? 1 / of.shampoo_exponent : 4;
  require<ConfigError>(of.shampoo_root != "newton" || std::abs(root - std::round(root)) < 1e-9,
                       "shampoo_exponent = ", of.shampoo_exponent,
                       " is not 1 over a whole number, which Newton's iteration needs; set shampoo_root = eigen");
}

}  // namespace

void OptimizerSettings::validate() const {
  require<ConfigError>(min_lr <= lr, "min_lr = ", min_lr, " is above lr = ", lr, "; lower min_lr");
  const auto below_one = [](const char* key, double value) {
    require<ConfigError>(value < 1, key, " = ", value,
                         " would never forget a gradient; use a value below 1, such as 0.9");
  };
  below_one("adam_beta1", adam_beta1);
  below_one("adam_beta2", adam_beta2);
  below_one("sgd_momentum", sgd_momentum);
  below_one("lion_beta1", lion_beta1);
  below_one("lion_beta2", lion_beta2);
  below_one("ademamix_beta3", ademamix_beta3);
  below_one("muon_momentum", muon_momentum);
  below_one("normuon_beta2", normuon_beta2);
  if (optimizer == "shampoo") validate_shampoo(*this);
  if (optimizer == "soap") below_one("shampoo_beta", shampoo_beta);
}

void OptimizerConfig::validate() const {
  OptimizerSettings::validate();
  const std::string_view unit = counts_samples() ? "samples" : "iters";
  require<ConfigError>(warmup() == 0 || lr_warmup_init <= lr, "lr_warmup_init = ", lr_warmup_init,
                       " is above lr = ", lr, "; lower lr_warmup_init");
  require<ConfigError>(decay_end() == 0 || lr_decay_style == "constant" || decay_end() > warmup(), "lr_decay_", unit,
                       " = ", decay_end(), " must be more than lr_warmup_", unit, " = ", warmup(), ", or 0 for train_",
                       unit);
  require<ConfigError>(lr_decay_style != "WSD" || wsd_decay() > 0, "lr_decay_style = WSD needs lr_wsd_decay_", unit,
                       ": over how many ", counts_samples() ? "samples" : "iterations",
                       " the learning rate decays at the end, such as a tenth of train_", unit);
  require<ConfigError>(lr_decay_style != "WSD" || decay_end() == 0 || wsd_decay() <= decay_end() - warmup(),
                       "lr_wsd_decay_", unit, " = ", wsd_decay(),
                       " would begin before the end of the warmup: "
                       "lr_decay_",
                       unit, " - lr_warmup_", unit, " is ", decay_end() - warmup());
  require<ConfigError>(min_loss_scale <= initial_loss_scale, "min_loss_scale = ", min_loss_scale,
                       " is above initial_loss_scale = ", initial_loss_scale, "; lower min_loss_scale");
  const ParamGroups checked(*this);
}

}  // namespace witan
