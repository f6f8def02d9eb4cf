// The progress of a run that a checkpoint saves besides tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/base/json.h"
#include "witan/data/samples/sample_source.h"
#include "witan/optim/loss_scaler.h"
#include "witan/optim/spike_skip.h"
#include "witan/train/config/config.h"

namespace witan {

// A return to a checkpoint after a step that was not to be (on_nan, on_spike): the samples that were read since then
// are left out from there on.
struct Rewind {
  int64_t checkpoint = 0;                          // step
  int64_t at = 0;                                  // the step that was not to be
  int64_t first_sample = 0, consumed_samples = 0;  // the cursor of the checkpoint, and from there on

  bool operator==(const Rewind&) const = default;
};

// What a run's evaluations on the validation split have found until now: what early stopping goes by. It is saved with
// each checkpoint, so that a run that resumes decides as one that was never stopped.
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

struct TrainState {
  int64_t step = 0;              // iterations done
  int64_t consumed_samples = 0;  // the data cursor
  int64_t updates = 0;           // of them, those that changed the parameters
  int64_t skipped_in_a_row = 0;  // steps without an update since the last one
  double elapsed_s = 0;          // training time, over all resumptions
  std::string data;              // fingerprint of the tokens it trains on
  SpikeSkip::History spikes{};   // what skip_step_sigma compares with
  LossScaler::State loss_scaler{};
  std::vector<SourceUse> sources{};  // what consumed_samples took of each dataset
  ValidationRecord validation{};
  std::vector<Rewind> rewinds{};            // so far
  int64_t updated_samples = 0;              // of steps that changed the parameters: where schedules of samples stand
  std::optional<double> validation_loss{};  // of an evaluation after this step; saved where it is finite, and not read

  Json to_json() const;
  // Throws CheckpointError naming what is missing or out of range.
  static TrainState from_json(const Json& json);
};

Json rewinds_to_json(const std::vector<Rewind>& rewinds);
// Throws CheckpointError unless it is a list of them.
std::vector<Rewind> rewinds_from_json(const Json& json);

// The key of a checkpoint's scalars with the loss of an evaluation of these very weights, if there was one.
inline constexpr const char* kValidationLoss = "validation_loss";

}  // namespace witan
