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

  // The events that open a new run's file.
  void begin(const RunEvent& run, double bigram_bits_per_byte);
  // Forgets what lies beyond the checkpoint that the run goes on from.
  void resume(const TrainState& state, const std::string& checkpoint);

  void step(const TrainState& state, const StepResult& result, double step_s, double data_wait_s);
  void evaluation(const TrainState& state, const Evaluation& evaluation, double bytes);
  void saved(const std::string& checkpoint, double seconds);
  void sample(const TrainState& state, const std::string& text);
  void end(const std::string& reason);

  std::optional<double> bits_per_byte() const { return bits_per_byte_; }
  std::optional<double> baseline() const { return baseline_; }

 private:
  void show(const TrainState& state, const StepEvent& event);

  RunConfig config_;
  RunPlan plan_;
  MetricsWriter metrics_;
  Log log_;
  Progress& progress_;
  RateEstimator rate_;
  double interval_loss_ = 0;  // summed since the last line of metrics
  int64_t interval_steps_ = 0;
  std::optional<double> held_out_loss_, bits_per_byte_, baseline_;
};

}  // namespace witan
