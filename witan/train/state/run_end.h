// Why a run ends: asked of every rank in each step, decided once for all of them, and taken from there by whatever
// tells of it: train.log, metrics.jsonl, TensorBoard, the summary, the exit code.
#pragma once

#include <cstdint>
#include <string_view>

#include "witan/base/error.h"

namespace witan {

// Of several reasons the last in this order is the run's.
enum class RunEnd : uint8_t {
  none,  // the run continues
  // What a rank may ask for after a step, which the run can be resumed from.
  exit_duration_in_mins,  // its process is that old
  exit_interval,          // the step is a multiple of it
  preempted,              // its process received SIGTERM, SIGUSR1, SIGUSR2 or SIGHUP
  interrupted,            // its process received SIGINT
  // What all ranks know by themselves.
  stopped_early,  // early_stopping_patience
  finished,       // the last step is done
};

// Nothing is left to be done: neither `none` nor what can be resumed.
bool is_finished(RunEnd end);

// The key by which the run was ended; empty: it was not by one.
std::string_view key_of(RunEnd end);

// "stopped by exit_interval", as metrics.jsonl has it (EndEvent::reason).
std::string_view reason_of(RunEnd end);

// What the process returns.
ExitCode exit_code_of(RunEnd end);

}  // namespace witan
