#include "witan/report/progress/nanogpt_log.h"

#include <fmt/core.h>

#include <algorithm>

namespace witan::nanogpt_log {
namespace {

double step_ms(const Progress& progress) {
  return 1000 * progress.seconds / static_cast<double>(std::max<int64_t>(progress.step, 1));
}

std::string times_of(const Progress& progress) {
  return fmt::format("train_time:{:.0f}ms step_avg:{:.2f}ms", 1000 * progress.seconds, step_ms(progress));
}

}  // namespace

std::string format_step(const Progress& progress) {
  return fmt::format("step:{}/{} {}", progress.step, progress.train_steps, times_of(progress));
}

std::string format_validation(const Progress& progress, double loss, std::optional<double> balance_loss) {
  const std::string times =
      balance_loss ? fmt::format("val_balance_loss:{:.4f} step_time:{:.2f}ms", *balance_loss, step_ms(progress))
                   : times_of(progress);
  return fmt::format("step:{}/{} val_loss:{:.4f} {}", progress.step, progress.train_steps, loss, times);
}

std::string format_check(const std::string& stage) {
  return fmt::format("[DEBUG({0})] Validating all parameters are in proper states..\n[DEBUG({0})] Validation passed. ✅",
                     stage);
}

}  // namespace witan::nanogpt_log
