// Formats the log lines of modded-nanogpt (Jordan et al., 2024), and those of Tutel's example of it with experts, so
// that scripts that read their logs read Witan's. docs/formats/nanogpt_log.md shows the lines. Functions return lines
// without the last line feed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace witan::nanogpt_log {

// How far a run is, and how long its steps took: all of them, in seconds, evaluations left out.
struct Progress {
  int64_t step = 0, train_steps = 0;  // counted from 1
  double seconds = 0;
};
// "step:50/1750 train_time:7012ms step_avg:140.24ms"
std::string format_step(const Progress& progress);
// "step:50/1750 val_loss:7.6209 train_time:7012ms step_avg:140.24ms" of a dense model, and as Tutel's example has it,
// "step:50/1750 val_loss:7.6209 val_balance_loss:1.0234 step_time:140.24ms", of one with experts. The time of a step is
// the mean of all so far.
std::string format_validation(const Progress& progress, double loss, std::optional<double> balance_loss);

// Two lines of a check of states: "weights-init", "gradients" or "weights-upd" passed.
std::string format_check(const std::string& stage);

}  // namespace witan::nanogpt_log
