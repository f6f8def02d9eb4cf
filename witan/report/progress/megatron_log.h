// Formats Megatron-LM's log lines character for character, so that tools that parse them work with Witan.
// docs/formats/megatron_log.md shows the lines. Functions return lines without the last line feed.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "witan/report/events/step_scalars.h"

namespace witan::megatron_log {

// "2024-10-24 21:02:27", local time.
std::string format_time(std::time_t time);

// The values of a log interval. Means are over the interval, all others are of its last iteration.
struct Interval {
  std::time_t time = 0;
  int64_t iteration = 0, train_iters = 0;  // counted from 1
  int64_t consumed_samples = 0;
  double ms = 0;                 // per iteration, mean
  std::optional<double> tflops;  // of one rank, by Megatron-LM's formula
  double learning_rate = 0;
  int64_t global_batch_size = 0;
  std::vector<std::pair<std::string, double>> losses;  // "lm loss" …; means over iterations that were not skipped
  double grad_norm = 0;                                // before clipping
  double loss_scale = 1;                               // of models that need none
  StepScalars scalars = {};                            // of which those are printed that have StepScalar::megatron
  int64_t skipped = 0, nan = 0;  // iterations; `nan` are those among the skipped whose loss was not finite
};
// " [2024-10-24 21:02:27] iteration       40/   40000 | consumed samples: …". A loss of 0 is omitted.
std::string format_interval(const Interval& interval);

// "Number of parameters in transformer layers in billions:  0.08" and three more lines.
std::string format_parameters(double transformer_layers, double embedding_layers);
// "Theoretical memory footprints: weight and optimizer=1524.73 MB"
std::string format_theoretical_memory(double weight_and_optimizer_bytes);

// "[Rank 0] (after 20 iterations) memory (MB) | allocated: …"
struct Memory {
  int64_t allocated = 0, max_allocated = 0, reserved = 0, max_reserved = 0;  // bytes
};
std::string format_memory(int64_t rank, int64_t iteration, const Memory& memory);

// "Number of buckets for gradient all-reduce / reduce-scatter: 2", then each bucket's size and parameters.
struct Bucket {
  int64_t elements = 0;
  std::vector<std::string> parameters;
};
std::string format_buckets(const std::vector<Bucket>& buckets);

// "(min, max) time across ranks (ms):", then a line for every timer that ran.
struct RankTimes {
  std::string name;  // "forward-backward"
  double min_ms = 0, max_ms = 0;
};
std::string format_times(const std::vector<RankTimes>& times);

// " validation loss at iteration 1000 | lm loss value: … | lm loss PPL: … | " between two rules.
std::string format_validation(int64_t iteration, double loss);

// "[after training is done] datetime: 2024-10-24 21:02:27 "
std::string format_datetime(const std::string& event, std::time_t time);

}  // namespace witan::megatron_log
