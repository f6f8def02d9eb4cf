#include "witan/optim/config.h"

#include "witan/base/error.h"

namespace witan {

Fields OptimizerConfig::fields() {
  return {
      Field{"optimizer", &optimizer, "adam: AdamW with decoupled weight decay; sgd: with momentum"}.one_of(
          {"adam", "sgd"}),
      Field{"lr", &lr, "the largest learning rate"}.at_least(0),
      Field{"min_lr", &min_lr, "where the learning rate ends"}.at_least(0),
      Field{"lr_decay_style", &lr_decay_style, "how the learning rate comes down after warm-up"}.one_of(
          {"constant", "linear", "cosine"}),
      Field{"lr_warmup_iters", &lr_warmup_iters, "iterations over which the learning rate rises from 0"}.at_least(0),
      Field{"lr_decay_iters", &lr_decay_iters, "iteration at which min_lr is reached; 0: train_iters"}.at_least(0),
      Field{"weight_decay", &weight_decay, "of matrices; of norms and biases only with decay_norms_and_biases"}
          .at_least(0),
      Field{"decay_norms_and_biases", &decay_norms_and_biases,
            "all parameters decay alike, as with PyTorch's optimizers"},
      Field{"adam_beta1", &adam_beta1, "decay of the mean of gradients"}.between(0, 1),
      Field{"adam_beta2", &adam_beta2, "decay of the mean of squared gradients"}.between(0, 1),
      Field{"adam_eps", &adam_eps, "added to the root of the latter"}.above(0),
      Field{"sgd_momentum", &sgd_momentum, "decay of the sum of gradients"}.between(0, 1),
      Field{"clip_grad", &clip_grad, "the largest norm of all gradients; 0: no limit"}.at_least(0),
  };
}

void OptimizerConfig::validate() const {
  require<ConfigError>(min_lr <= lr, "min_lr = ", min_lr, " is above lr = ", lr, "; lower min_lr");
  const auto below_one = [](const char* key, double value) {
    require<ConfigError>(value < 1, key, " = ", value, " would never forget a gradient; take a value below 1, as 0.9");
  };
  below_one("adam_beta1", adam_beta1);
  below_one("adam_beta2", adam_beta2);
  below_one("sgd_momentum", sgd_momentum);
  require<ConfigError>(lr_decay_iters == 0 || lr_decay_style == "constant" || lr_decay_iters > lr_warmup_iters,
                       "lr_decay_iters = ", lr_decay_iters, " must be more than lr_warmup_iters = ", lr_warmup_iters,
                       ", or 0 for train_iters");
}

}  // namespace witan
