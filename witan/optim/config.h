// The optimizer's configuration, with Megatron-LM's keys. The defaults suit a small MoE of some ten million parameters
// that is trained for a few hundred steps of a few thousand tokens.
#pragma once

#include "witan/base/fields.h"

namespace witan {

// How some of the parameters are updated: those of a group, or all that no group takes.
struct OptimizerSettings {
  std::string optimizer = "adam";
  double lr = 1e-3;
  double min_lr = 1e-4;
  double weight_decay = 0.1;
  bool decay_norms_and_biases = false;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;

  void validate() const;  // throws ConfigError
};

struct OptimizerConfig : OptimizerSettings {
  std::string lr_decay_style = "cosine";
  int64_t lr_warmup_iters = 20;
  int64_t lr_decay_iters = 0;  // 0: train_iters
  double clip_grad = 1.0;      // 0: off
  // Parameter groups in order, of which the first that matches a parameter takes it; param_groups.h reads them.
  std::vector<TableKeys> groups;

  Fields fields();
  void validate() const;  // throws ConfigError
};

}  // namespace witan
