#include "witan/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace witan {
namespace {

// The remaining share of the decay from lr to min_lr once the share `done`, 0 … 1, of its time has passed.
double left_of(const std::string& style, double done) {
  if (style == "linear") return 1 - done;
  if (style == "exponential") return 2 * std::pow(0.5, done) - 1;
  if (style == "minus_sqrt") return 1 - std::sqrt(done);
  return 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace

int64_t schedule_position(const OptimizerConfig& config, int64_t iteration, int64_t updates) {
  return config.lr_schedule_counter == "updates" ? updates : iteration;
}

double learning_rate(const OptimizerConfig& config, int64_t length, int64_t position) {
  const auto warmup = static_cast<double>(config.warmup()), now = static_cast<double>(position);
  if (config.warmup() > 0 && now <= warmup)
    return config.lr_warmup_init + (config.lr - config.lr_warmup_init) * now / warmup;
  if (config.lr_decay_style == "constant") return config.lr;
  const auto end = static_cast<double>(config.decay_end() > 0 ? config.decay_end() : length);
  if (now > end) return config.min_lr;
  if (config.lr_decay_style == "inverse-square-root")
    return std::max(config.min_lr, config.lr * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(now, 1.0)));
  const bool stable = config.lr_decay_style == "WSD";
  const double start = stable ? end - static_cast<double>(config.wsd_decay()) : warmup;
  if (now == end) return config.min_lr;
  const double done = std::max(0.0, (now - start) / (end - start));  // below 1; end > now here
  const double left = left_of(stable ? config.lr_wsd_decay_style : config.lr_decay_style, done);
  return config.min_lr + left * (config.lr - config.min_lr);
}

double largest_weight_decay(const OptimizerConfig& config) {
  const bool constant = config.weight_decay_incr_style == "constant";
  return constant ? config.weight_decay : std::max(config.start_weight_decay, config.weight_decay);
}

double weight_decay_share(const OptimizerConfig& config, int64_t length, int64_t position) {
  const double largest = largest_weight_decay(config);
  if (config.weight_decay_incr_style == "constant" || largest == 0) return 1;
  const double done = std::min(1.0, static_cast<double>(position) / static_cast<double>(length));
  const double left = left_of(config.weight_decay_incr_style, done);
  return (config.weight_decay + left * (config.start_weight_decay - config.weight_decay)) / largest;
}

}  // namespace witan
