// Why a run ends. Each rank is asked in every step, all ranks agree on one reason, and train.log, metrics.jsonl,
// TensorBoard, the summary and the exit code report it.
#pragma once

#include <cstdint>
#include <string_view>

#include "witan/base/error.h"

namespace witan {

// If several apply, the run ends for the one that comes last here.
enum class RunEnd : uint8_t {
  none,  // the run continues
  // A rank may ask for these after a step. The run can be resumed.
  exit_duration_in_mins,  // its process is that old
  exit_interval,          // the step is a multiple of it
  preempted,              // its process received SIGTERM, SIGUSR1, SIGUSR2 or SIGHUP
  interrupted,            // its process received SIGINT
  // All ranks find these by themselves.
  stopped_early,  // early_stopping_patience
  finished,       // the last step is done
};

// Whether nothing is left to do, so that the run is not resumed.
inline bool is_finished(RunEnd end) {
  return end == RunEnd::stopped_early || end == RunEnd::finished;
}

// The configuration key that ended the run; empty if none did.
inline std::string_view key_of(RunEnd end) {
  if (end == RunEnd::exit_interval) return "exit_interval";
  return end == RunEnd::exit_duration_in_mins ? "exit_duration_in_mins" : "";
}

// "stopped by exit_interval": EndEvent::reason in metrics.jsonl.
inline std::string_view reason_of(RunEnd end) {
  switch (end) {
    case RunEnd::none:
      return "";
    case RunEnd::exit_duration_in_mins:
      return "stopped by exit_duration_in_mins";
    case RunEnd::exit_interval:
      return "stopped by exit_interval";
    case RunEnd::preempted:
    case RunEnd::interrupted:
      return "stopped by a signal";
    case RunEnd::stopped_early:
      return "stopped early";
    case RunEnd::finished:
      return "finished";
  }
  return "";
}

// The process's exit code.
inline ExitCode exit_code_of(RunEnd end) {
  if (end == RunEnd::none || is_finished(end)) return ExitCode::done;
  return end == RunEnd::interrupted ? ExitCode::interrupted : ExitCode::preempted;
}

}  // namespace witan
