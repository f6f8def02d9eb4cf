// The progress line of training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "witan/report/events/step_scalars.h"

namespace witan {

struct TrainStatus {
  int64_t step = 0, total_steps = 0;
  std::string current_activity = {};  // "step 121 at 40 %"; empty: nothing that takes long
  double loss = 0;
  std::optional<double> validation_loss = {}, bits_per_byte = {};  // of the last evaluation,
  int64_t evaluated_at = 0;                                        // at this step
  std::optional<double> learning_rate = {}, grad_norm = {};
  double tokens_per_s = 0;
  double gflops = 0;
  std::optional<double> ceiling_share = {};       // 0 to 1
  std::optional<double> load_max_over_mean = {};  // MoE models
  std::optional<double> dropped_share = {};       // as in StepEvent
  double data_wait_share = 0;                     // of the step's time, 0 to 1
  StepScalars scalars = {};  // of which those are shown that are declared to be (StepScalar::progress)
  std::optional<double> eta_s = {};
  std::optional<double> epochs = {};  // as in StepEvent; shown from the second epoch on
};

// "step 120/500  loss 4.512  validation 4.630  2.413 bits/byte at step 100  lr 0.000981  grad norm 0.873  12.3 K tok/s
// 38.2 GFLOP/s (61 % of ceiling)  load max/mean 1.32  data wait 0 %  params norm 315.023  zero gradients 56.8 M 0.0381
// TFLOP/s/rank  ETA 2 min 10 s" on one line. The step of the evaluation is shown if it differs from that of the line.
// If the line is wider than `width` columns (0: no limit), whole items are dropped, the least important first; step and
// loss always stay. `colour` dims the labels.
std::string format_train_line(const TrainStatus& status, int width, bool colour);

}  // namespace witan
