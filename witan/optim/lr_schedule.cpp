#include "witan/optim/lr_schedule.h"

#include <cmath>
#include <numbers>

namespace witan {

double learning_rate(const OptimizerConfig& config, int64_t train_iters, int64_t iteration) {
  const auto warmup = static_cast<double>(config.lr_warmup_iters), now = static_cast<double>(iteration);
  if (config.lr_warmup_iters > 0 && now <= warmup) return config.lr * now / warmup;
  if (config.lr_decay_style == "constant") return config.lr;
  const auto end = static_cast<double>(config.lr_decay_iters > 0 ? config.lr_decay_iters : train_iters);
  if (now >= end) return config.min_lr;
  const double done = (now - warmup) / (end - warmup);  // 0 … 1; end > now > warmup here
  const double left = config.lr_decay_style == "linear" ? 1 - done : 0.5 * (1 + std::cos(std::numbers::pi * done));
  return config.min_lr + left * (config.lr - config.min_lr);
}

}  // namespace witan
