// The optimizer's configuration, with Megatron-LM's keys. The defaults suit a small MoE of some ten million parameters
// that is trained for a few hundred steps of a few thousand tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "witan/base/config/fields.h"

namespace witan {

// Inserts fields after the one with this key.
void insert_fields_after(Fields& fields, std::string_view key, Fields more);

// How parameters are updated: those of a group, or those that no group takes.
struct OptimizerSettings {
  std::string optimizer = "adam";
  double lr = 1e-3;
  double min_lr = 1e-4;
  double weight_decay = 0.1;
  bool decay_norms_and_biases = false;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  std::string exp_avg_dtype = "float32";     // Adam's first moment
  std::string exp_avg_sq_dtype = "float32";  // Adam's second moment
  double sgd_momentum = 0.9;
  double lion_beta1 = 0.9;
  double lion_beta2 = 0.99;
  double ademamix_beta3 = 0.9999;
  double ademamix_alpha = 5;
  int64_t ademamix_warmup_iters = 0;  // for alpha and beta3; 0: none
  double muon_momentum = 0.95;
  bool muon_nesterov = true;
  int64_t muon_num_ns_steps = 5;
  std::string muon_coefficient_type = "quintic";
  std::string muon_scale_mode = "moonlight";
  double muon_extra_scale_factor = 0.2;
  double normuon_beta2 = 0.95;
  int64_t precondition_frequency = 10;  // in steps, for Shampoo and SOAP
  int64_t start_preconditioning_step = 0;
  int64_t max_preconditioner_dim = 8192;
  double shampoo_beta = 0.999;
  double shampoo_eps = 1e-12;
  double shampoo_exponent = 0;  // a preconditioner's inverse root; 0: 1 / (2 order)
  std::string shampoo_root = "eigen";
  std::string shampoo_grafting = "adam";

  Fields fields();
  void validate() const;  // throws ConfigError
};

struct OptimizerConfig : OptimizerSettings {
  std::string lr_decay_style = "cosine";
  int64_t lr_warmup_iters = 20;
  int64_t lr_warmup_samples = 0;
  double lr_warmup_init = 0;
  std::string lr_schedule_counter = "iterations";
  int64_t lr_decay_iters = 0;    // 0: train_iters
  int64_t lr_decay_samples = 0;  // above 0: schedules count samples; resolve() sets it if train_samples is set
  std::string lr_wsd_decay_style = "exponential";
  int64_t lr_wsd_decay_iters = 0;
  int64_t lr_wsd_decay_samples = 0;
  std::string weight_decay_incr_style = "constant";
  double start_weight_decay = 0;  // for styles other than constant, which end at weight_decay
  bool qk_clip = false;
  double qk_clip_threshold = 100, qk_clip_alpha = 0.5;
  double loss_scale = 0;  // for float16 models; 0: dynamic
  double initial_loss_scale = 4294967296;
  double min_loss_scale = 1;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  double clip_grad = 1.0;      // 0: off
  double skip_step_sigma = 0;  // 0: off
  int64_t skip_step_window = 128;
  // Parameter groups; the first that matches a parameter takes it (param_groups.h).
  std::vector<TableKeys> groups;

  // Bounds of the learning rate's schedule, in samples or iterations, whichever it counts. An end of 0 is the run's
  // end.
  bool counts_samples() const { return lr_decay_samples > 0; }
  int64_t warmup() const { return counts_samples() ? lr_warmup_samples : lr_warmup_iters; }
  int64_t decay_end() const { return counts_samples() ? lr_decay_samples : lr_decay_iters; }
  int64_t wsd_decay() const { return counts_samples() ? lr_wsd_decay_samples : lr_wsd_decay_iters; }

  Fields fields();
  void validate() const;  // throws ConfigError
};

}  // namespace witan
