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

// A return to a checkpoint after an anomalous step (on_nan, on_spike). The samples that were read since the checkpoint
// are left out.
struct Rewind {
  int64_t checkpoint = 0;                          // step
  int64_t at = 0;                                  // the anomalous step
  int64_t first_sample = 0, consumed_samples = 0;  // the data cursor in the checkpoint, and after the rewind

  bool operator==(const Rewind&) const = default;
};

// The evaluations on the validation split so far, for early stopping. Each checkpoint saves it, so that a resumed run
// stops at the same step.
struct ValidationRecord {
  double best = 0;         // lowest loss, nats per token
  int64_t best_step = 0;   // its step; 0: no evaluation yet
  int64_t since_best = 0;  // evaluations since then

  // Adds the evaluation after `step`. A non-finite loss is never better. Only multiples of eval_interval count: there
  // are further evaluations where a call ends or saves, which must not change the decision.
  void add(int64_t step, double loss, const TrainConfig& config);
  // Whether early_stopping_patience evaluations in a row were no better than the best.
  bool stops(const TrainConfig& config) const {
    return config.early_stopping_patience > 0 && since_best >= config.early_stopping_patience;
  }

  Json to_json() const;
  // Reads it from a checkpoint's scalars; empty if they have none. Throws CheckpointError.
  static ValidationRecord from_json(const Json& scalars);
  bool operator==(const ValidationRecord&) const = default;
};

// Steps whose answers were sampled together, before the first of them (steps_per_generation), in RUN/rollouts.
struct SampledSteps {
  int64_t first = 0, last = 0;  // both 0: there are none yet
  double temperature = 1;       // of the policy

  bool operator==(const SampledSteps&) const = default;
};

struct TrainState {
  int64_t step = 0;              // iterations done
  int64_t consumed_samples = 0;  // the data cursor
  int64_t updates = 0;           // iterations that changed the parameters
  int64_t skipped_in_a_row = 0;  // steps since the last update
  double elapsed_s = 0;          // training time, over all resumptions
  std::string data;              // fingerprint of the tokens it trains on
  SpikeSkip::History spikes{};   // for skip_step_sigma
  LossScaler::State loss_scaler{};
  std::vector<SourceUse> sources{};  // how consumed_samples divide among the datasets
  ValidationRecord validation{};
  std::vector<Rewind> rewinds{};            // all so far
  int64_t updated_samples = 0;              // samples of steps that changed the parameters, for schedules in samples
  std::optional<double> validation_loss{};  // of an evaluation after this step; saved if it is finite, never read back
  SampledSteps sampled{};                   // with rollouts: the last ones

  Json to_json() const;
  // Throws CheckpointError naming what is missing or out of range.
  static TrainState from_json(const Json& json);
};

Json rewinds_to_json(const std::vector<Rewind>& rewinds);
// Throws CheckpointError for anything but such a list.
std::vector<Rewind> rewinds_from_json(const Json& json);

// The scalar with the validation loss of the checkpoint's weights, if they were evaluated.
inline constexpr const char* kValidationLoss = "validation_loss";

}  // namespace witan
