// Rank 0's records of a run: metrics.jsonl, the progress line or another program's log format, train.log, TensorBoard.
#pragma once

#include <optional>

#include "witan/base/files/log.h"
#include "witan/checkpoint/background_save.h"
#include "witan/report/events/events.h"
#include "witan/report/events/metrics.h"
#include "witan/report/progress/log_lines.h"
#include "witan/report/progress/progress.h"
#include "witan/report/progress/step_watch.h"
#include "witan/report/progress/timing.h"
#include "witan/train/config/resolve.h"
#include "witan/train/config/run_plan.h"
#include "witan/train/record/gpu_monitor.h"
#include "witan/train/record/megatron_recorder.h"
#include "witan/train/record/tensorboard_recorder.h"
#include "witan/train/state/run_folder.h"
#include "witan/train/state/train_state.h"
#include "witan/train/step/engine.h"

namespace witan {

// The evaluation of a set of valid_data.
struct SetEvaluation {
  std::string name;
  Evaluation evaluation;
  double bytes = 0;  // of the targets' text
};

class Recorder {
 public:
  Recorder(const ResolvedConfig& config, const RunPlan& plan, const RunFolder& folder, Progress& progress);

  // Opens metrics.jsonl, or truncates it to `step`, the checkpoint's. The run's own event is written again if the run
  // has a new length or layout.
  void begin(const RunEvent& run, double bigram_bits_per_byte, int64_t step);

  // Sets the source of the samples, so that lines report epochs, with a warning when one begins again.
  void reads(std::shared_ptr<const SampleSource> train) { train_ = std::move(train); }

  // Writes a warning to the progress line's stream and to train.log.
  void warn(const std::string& line);
  void tell(const std::string& line);  // the same without the word
  // Write only to train.log, what was reported before there was a log.
  void log_warning(const std::string& line) { log_.warn(line); }
  void note(const std::string& line) { log_.info(line); }
  // The activity of the run until the next call, for messages while no line appears.
  void begins(StepWatch::Doing what, int64_t step);
  // The share of the current step that is done, 0 to 1.
  void done(double share) { watch_.done(share); }

  enum class Line : uint8_t {
    now,
    with_evaluation,  // after the evaluation that follows the step
  };
  void step(const TrainState& state, const StepResult& result, double step_s, double data_wait_s,
            Line line = Line::now);
  // With log_format = megatron, after set-up and after the steps that end a log interval.
  void setup(const SetupReport& report, const SampleSource& samples);
  void interval(const TrainState& state, const megatron_log::Memory& memory,
                const std::vector<megatron_log::RankTimes>& times);
  // With log_memory_to_tensorboard, after the steps that close an interval. `blocks`: allocated ones.
  void memory_in_use(int64_t step, const megatron_log::Memory& memory, int64_t blocks);
  // `times`: empty unless log_format = megatron. `sets`: of valid_data.
  void evaluation(const TrainState& state, const Evaluation& evaluation, double bytes,
                  const std::vector<megatron_log::RankTimes>& times = {}, const std::vector<SetEvaluation>& sets = {});
  // The checkpoint of `state` is complete. `paused_s`: the pause of training for it.
  void saved(const TrainState& state, const BackgroundSave::Saved& checkpoint, double paused_s);
  // check_states found no difference after a step (its reduction and update), or after initialization (0).
  void states_checked(int64_t step);
  // A step overflowed and was skipped, to find the loss scale.
  void overflowed(int64_t step, double loss_scale);
  // An anomalous step, or a slow rank.
  void anomaly(const AnomalyEvent& event);
  // The run returned to the checkpoint of `step`: removes the records of later steps.
  void rewound(int64_t step);
  // What is saved when the run is asked to end. Nothing if it went back to a checkpoint, or if it stopped before a step
  // was done after one.
  enum class Saves : uint8_t { step, nothing_after_rewind, nothing_new };
  void record_end(RunEnd why, Saves saves);
  // The continuation of the prompt at the end of the run.
  void last_sample(int64_t step, uint64_t seed, const std::string& prompt, const std::string& text);
  // The continuations of the prompts at a step of sample_interval.
  void samples(int64_t step, uint64_t seed, const std::vector<std::string>& prompts,
               const std::vector<std::string>& texts);
  void memory(const std::vector<MemoryEvent>& measured);  // of each rank
  // Training is over.
  void end(RunEnd why, std::optional<uint64_t> peak_resident);
  // An error ended the run. Before begin() it is only written to train.log.
  void failed(const std::string& error);

  std::optional<double> bits_per_byte() const { return bits_per_byte_; }
  int64_t evaluated_at() const { return evaluated_at_; }  // the step of bits_per_byte()
  double best_gflops() const { return best_gflops_; }     // of the fastest step; 0: there was none

 private:
  // `stays`: whether the line stays on the terminal, as that of the last step does.
  void show(const TrainState& state, const StepEvent& event, bool stays);
  TrainStatus status_of(const TrainState& state, const StepEvent& event) const;
  // Raises the ceiling to the speed of a step that exceeds it, so that no share is above 1.
  void raise_ceiling(double gflops);
  void note_overflow(int64_t step, int64_t passes);
  void note_exchange_overflow(int64_t step, double fill);
  void warn_of_repetition(const TrainState& state, int64_t samples);
  void note_batch_size(int64_t step, int64_t samples);
  int64_t samples_of(const StepResult& result) const { return result.samples > 0 ? result.samples : ramp_.full(); }
  // The samples of a step relative to a full global batch, for which the plan was made.
  double share_of(int64_t samples) const { return static_cast<double>(samples) / static_cast<double>(ramp_.full()); }
  double gflops_of(const StepResult& result, double step_s) const;
  void open_tensorboard(int64_t first_step);  // with new files
  StepEvent step_event(const TrainState& state, const StepResult& result, double step_s, double data_wait_s) const;
  void print(const std::string& text);
  void print_nanogpt_step(const TrainState& state);
  nanogpt_log::Progress nanogpt_progress(const TrainState& state) const {
    return {state.step, config_->train.train_iters, state.elapsed_s};
  }

  const ResolvedConfig config_;
  const BatchRamp ramp_;
  const int64_t all_samples_;  // of all steps of the run
  RunPlan plan_;
  const RunFolder& folder_;
  std::shared_ptr<const SampleSource> train_;   // null: unknown
  std::optional<std::vector<SourceUse>> uses_;  // of its datasets, after the last step
  std::optional<MetricsWriter> metrics_;        // from begin() on
  std::optional<MetricsWriter> samples_;        // of sample_interval
  Log log_;
  Progress& progress_;
  RateEstimator rate_;
  std::optional<ResumeEvent> resume_;  // written with the first step, which shows that the run was resumed
  int64_t first_step_ = 1;             // of this call
  int64_t last_step_ = 0;              // done so far
  int64_t last_samples_ = 0;           // of the last step of this call; 0: there was none
  int64_t overflows_ = 0;              // steps of this call that were rerun because receive buffers overflowed
  int64_t exchange_overflows_ = 0;     // and because send buffers did
  double interval_loss_ = 0;           // summed since the last line of metrics
  double interval_s_ = 0;
  int64_t interval_steps_ = 0;
  std::optional<double> validation_loss_, bits_per_byte_;
  int64_t evaluated_at_ = 0;
  double best_gflops_ = 0;
  bool ceiling_raised_ = false;  // and reported
  struct Waiting {
    TrainState state;
    StepEvent event;
    bool stays;
  };
  std::optional<Waiting> waiting_;  // the line of a step that is being evaluated
  StepScalars scalars_;             // the latest value of each
  std::optional<MegatronRecorder> megatron_;
  std::optional<TensorboardRecorder> tensorboard_;
  std::optional<ProgressLog> progress_log_;
  std::optional<GpuMonitor> gpus_;  // of runs on GPUs
  StepWatch watch_;                 // last: its thread ends first
};

}  // namespace witan
