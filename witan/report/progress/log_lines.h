// Formats Megatron-LM's log lines character for character, so that tools that parse them work with Witan.
// docs/formats/megatron_log.md shows the lines. Functions return lines without the last line feed.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "witan/base/files/growing_file.h"
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

namespace witan::nanogpt_log {

// Formats the log lines of modded-nanogpt (Jordan et al., 2024) and of Tutel's variant of it with experts, so that
// scripts for their logs can read Witan's. docs/formats/nanogpt_log.md shows the lines. Functions return lines without
// the last line feed.
struct Progress {
  int64_t step = 0, train_steps = 0;  // counted from 1
  double seconds = 0;                 // all steps together, without evaluations
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

namespace witan {

// progress.txt: Megatron-LM's record of a run over all its jobs, a line at every start and every checkpoint, fields
// separated by tabs (docs/formats/megatron_log.md).
class ProgressLog {
 public:
  // Opens or creates the file. `ranks` and the FLOPs of an iteration, by Megatron-LM's formula, are those of this job.
  // Throws IoError, DiskFullError.
  ProgressLog(const fs::path& path, int64_t ranks, double iteration_flops);

  // The progress of the run. `batches`: iterations in units of `iteration_flops`, fewer than iterations if the first
  // ones were smaller.
  struct Done {
    int64_t iteration = 0;
    double batches = 0;
    int64_t tokens = 0;
  };

  // "Starting job", after so many batches. Once, before saved().
  void start(std::time_t now, double batches);
  // "Saved checkpoint", with the throughput of this job, and of all jobs since the first one with this number of ranks.
  void saved(std::time_t now, const Done& done);

  // The start of the period over which throughput is computed.
  struct Since {
    std::time_t time = 0;
    double flops = 0;  // done before that
  };

 private:
  void append(std::time_t now, const std::string& text);

  AppendFile file_;
  int64_t ranks_;
  double iteration_flops_;
  Since job_, series_;
};

}  // namespace witan
