// What a long metrics.jsonl says, without parsing all of it: where a run stands, from the end of the file, and its
// losses, which are taken from their lines as format_event() writes them. A file of 1e6 steps takes milliseconds for
// the one and a second or two for the other.
#pragma once

#include <optional>
#include <string>

#include "witan/base/files/file.h"
#include "witan/report/events/curve.h"
#include "witan/report/events/events.h"

namespace witan {

// The last event of each kind. Of evaluations, those on the validation split. `run` is the file's first, should the
// last one stand further from the end than kTail.
struct MetricsStanding {
  std::optional<RunEvent> run;
  std::optional<StepEvent> step;
  std::optional<EvalEvent> eval;  // nothing where it stands further from the end than kTail
  std::optional<EndEvent> end;    // only where nothing comes after it
  std::string damage;  // "FILE: byte N: why" of a line that cannot be read, of those looked at; it is passed over
  static constexpr size_t kTail = size_t{64} << 20;  // bytes
};

// Throws IoError.
MetricsStanding read_standing(const fs::path& path);

// The last checkpoint that is recorded as complete; lines that cannot be read are passed over. Throws IoError.
std::optional<SaveEvent> read_last_save(const fs::path& path);

// Finite losses over steps, nats per token: each recorded step's, and each evaluation's on the validation split.
struct LossCurves {
  Curve training, validation;
  std::string damage;  // of the first line that cannot be read, as of MetricsStanding
};

// Throws IoError.
LossCurves read_losses(const fs::path& path);

}  // namespace witan
