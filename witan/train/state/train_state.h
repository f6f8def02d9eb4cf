// The progress of a run that a checkpoint saves besides tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/base/json.h"
#include "witan/data/samples/sample_source.h"
#include "witan/optim/loss_scaler.h"
#include "witan/optim/spike_skip.h"
#include "witan/train/state/validation_record.h"

namespace witan {

// A return to a checkpoint after a step that was not to be (on_nan, on_spike): the samples that were read since then
// are left out from there on.
struct Rewind {
  int64_t checkpoint = 0;                          // step
  int64_t at = 0;                                  // the step that was not to be
  int64_t first_sample = 0, consumed_samples = 0;  // the cursor of the checkpoint, and from there on

  bool operator==(const Rewind&) const = default;
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

}  // namespace witan
