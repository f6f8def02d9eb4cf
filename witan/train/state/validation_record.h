// What a run's evaluations on the validation split have found until now: what early stopping goes by. It is saved with
// each checkpoint, so that a run that resumes decides as one that was never stopped.
#pragma once

#include <cstdint>
#include <optional>

#include "witan/base/json.h"
#include "witan/train/config/config.h"

namespace witan {

struct ValidationRecord {
  double best = 0;         // loss, nats per token, of the evaluation at:
  int64_t best_step = 0;   // 0: there was none
  int64_t since_best = 0;  // evaluations since then, that were no better

  // After `step`. A loss that is not finite is no better than any. Only evaluations at multiples of eval_interval are
  // taken: where a call ends, or saves, there are others, which must change nothing.
  void add(int64_t step, double loss, const TrainConfig& config);
  // Whether early_stopping_patience evaluations in a row were no better than the best.
  bool stops(const TrainConfig& config) const {
    return config.early_stopping_patience > 0 && since_best >= config.early_stopping_patience;
  }

  Json to_json() const;
  // Of a checkpoint's scalars; empty where they have none. Throws CheckpointError.
  static ValidationRecord from_json(const Json& scalars);
  bool operator==(const ValidationRecord&) const = default;
};

// The key of a checkpoint's scalars with the loss of an evaluation of these very weights, if there was one.
inline constexpr const char* kValidationLoss = "validation_loss";

}  // namespace witan
