// The progress line of training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace witan {

struct TrainStatus {
  int64_t step = 0, total_steps = 0;
  double loss = 0;
  std::optional<double> held_out_loss, bits_per_byte;  // of the last evaluation
  double tokens_per_s = 0;
  double gflops = 0;
  std::optional<double> ceiling_share;                                           // 0 to 1
  std::optional<double> load_max_over_mean;                                      // models with experts
  std::optional<double> dropped_share = {};                                      // as in StepEvent
  double data_wait_share = 0;                                                    // of the step's time, 0 to 1
  std::optional<double> params_norm = {}, num_zeros = {}, megatron_tflops = {};  // as in StepEvent
  std::optional<double> eta_s;
};

// "step 120/500  loss 4.512  held-out 4.630  2.413 bits/byte  12.3 K tok/s  38.2 GFLOP/s (61 % of ceiling)
//  load max/mean 1.32  data wait 0 %  params norm 315.023  zero gradients 56.8 M  0.0381 TFLOP/s/rank  ETA 2 min 10 s"
//  on one line. Where it is wider than `width` columns (0: no limit)
// whole items are left out, the least needed first; step and loss always stay. `colour` dims the labels.
std::string format_train_line(const TrainStatus& status, int width, bool colour);

}  // namespace witan
