#include "witan/train/state/run_end.h"

namespace witan {

bool is_finished(RunEnd end) {
  return end == RunEnd::stopped_early || end == RunEnd::finished;
}

std::string_view key_of(RunEnd end) {
  if (end == RunEnd::exit_interval) return "exit_interval";
  return end == RunEnd::exit_duration_in_mins ? "exit_duration_in_mins" : "";
}

std::string_view reason_of(RunEnd end) {
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

ExitCode exit_code_of(RunEnd end) {
  if (end == RunEnd::none || is_finished(end)) return ExitCode::done;
  return end == RunEnd::interrupted ? ExitCode::interrupted : ExitCode::preempted;
}

}  // namespace witan
