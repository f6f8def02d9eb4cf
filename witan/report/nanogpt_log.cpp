#include "witan/report/nanogpt_log.h"

#include <fmt/core.h>

#include <algorithm>

namespace witan::nanogpt_log {
namespace {

std::string times_of(const Progress& progress) {
  const double ms = 1000 * progress.seconds;
  return fmt::format("train_time:{:.0f}ms step_avg:{:.2f}ms", ms,
                     ms / static_cast<double>(std::max<int64_t>(progress.step, 1)));
}

}  // namespace

std::string format_step(const Progress& progress) {
  return fmt::format("step:{}/{} {}", progress.step, progress.train_steps, times_of(progress));
}

std::string format_validation(const Progress& progress, double loss, std::optional<double> balance_loss) {
  const std::string balance = balance_loss ? fmt::format(" val_balance_loss:{:.4f}", *balance_loss) : "";
  return fmt::format("step:{}/{} val_loss:{:.4f}{} {}", progress.step, progress.train_steps, loss, balance,
                     times_of(progress));
}

std::string format_check(const std::string& stage) {
  return fmt::format("[DEBUG({0})] Validating all parameters are in proper states..\n[DEBUG({0})] Validation passed. ✅",
                     stage);
}

}  // namespace witan::nanogpt_log
