// What rank 0 tells of a run: metrics.jsonl, the progress line, and lines that stay.
#pragma once

#include <optional>

#include "witan/base/log.h"
#include "witan/report/eta.h"
#include "witan/report/metrics.h"
#include "witan/report/progress.h"
#include "witan/train/engine.h"
#include "witan/train/train_state.h"
#include "witan/train/trainer.h"

namespace witan {

class Recorder {
 public:
  Recorder(const RunConfig& config, const RunPlan& plan, const RunFolder& folder, Progress& progress);

  // Opens the file, or goes on with it as it was at `step`, the checkpoint's: what lies beyond is forgotten. The run's
  // own event is written anew where the run was given another length.
  void begin(const RunEvent& run, double bigram_bits_per_byte, int64_t step);

  void step(const TrainState& state, const StepResult& result, double step_s, double data_wait_s);
  void evaluation(const TrainState& state, const Evaluation& evaluation, double bytes);
  void saved(const std::string& checkpoint, double seconds);
  void sample(const TrainState& state, const std::string& text);
  void end(const std::string& reason);

  std::optional<double> bits_per_byte() const { return bits_per_byte_; }
  int64_t evaluated_at() const { return evaluated_at_; }  // the step of bits_per_byte()

 private:
  void show(const TrainState& state, const StepEvent& event);
  bool closes_interval(int64_t step) const;

  RunConfig config_;
  RunPlan plan_;
  fs::path path_;
  MetricsWriter metrics_;
  Log log_;
  Progress& progress_;
  RateEstimator rate_;
  double interval_loss_ = 0;  // summed since the last line of metrics
  int64_t interval_steps_ = 0;
  std::optional<double> held_out_loss_, bits_per_byte_;
  int64_t evaluated_at_ = 0;
};

}  // namespace witan
