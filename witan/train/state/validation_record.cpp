#include "witan/train/state/validation_record.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"

namespace witan {

void ValidationRecord::add(int64_t step, double loss, const TrainConfig& config) {
  if (config.eval_interval == 0 || step % config.eval_interval != 0) return;
  if (std::isfinite(loss) && (best_step == 0 || loss < best))
    *this = {loss, step, 0};
  else
    ++since_best;
}

Json ValidationRecord::to_json() const {
  return {{"best", best}, {"best_step", best_step}, {"since_best", since_best}};
}

ValidationRecord ValidationRecord::from_json(const Json& scalars) {
  const auto found = scalars.find("validation");
  if (found == scalars.end()) return {};
  try {
    ValidationRecord record{found->at("best"), found->at("best_step"), found->at("since_best")};
    require<CheckpointError>(record.best_step >= 0 && record.since_best >= 0,
                             "the checkpoint's validation has a negative number of steps or evaluations");
    return record;
  } catch (const Json::exception&) {
    throw CheckpointError("the checkpoint's validation must have numbers best, best_step and since_best");
  }
}

}  // namespace witan
