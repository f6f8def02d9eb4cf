// Shows what a training run is doing between its lines. On a terminal the progress line is updated within a step,
// including the first one; a log file gets a line whenever Progress has been silent for long.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "witan/base/threads/mutex.h"
#include "witan/report/progress/progress.h"
#include "witan/report/progress/timing.h"
#include "witan/report/progress/train_line.h"

namespace witan {

struct StepWatchOptions {
  int64_t total_steps = 0;
  double step_seconds = 0;              // predicted; 0: unknown
  std::function<bool()> stopping = {};  // whether the run was asked to stop after the current step
  double refresh_seconds = 0.25;        // of its own thread; 0: no thread, others call poll()
};

// Thread-safe.
class StepWatch {
 public:
  enum class Doing : uint8_t {
    nothing,
    set_up,  // of model and optimizer, or of loading them
    step,
    evaluation,
    sampling,
    saving,  // the part of a save that training waits for
  };

  StepWatch(Progress& progress, StepWatchOptions options);

  // Sets what the run is doing from now on, for `step`.
  void begin(Doing what, int64_t step);
  // Sets the finished share of the step, 0 to 1.
  void done(double share);
  // A step is finished; `line` is its status.
  void finished(TrainStatus line);

  // Redraws the line if the terminal has not changed for a while, or prints one into the log if it is due.
  void poll();
  // Seconds for which the process was stopped since the last call, as the thread of the watch missed them.
  double stopped();

 private:
  void note_stop() WITAN_REQUIRES(mutex_);
  void look_locked() WITAN_REQUIRES(mutex_);
  // The current activity: "step 3 at 40 %".
  std::string current_activity(double elapsed) const WITAN_REQUIRES(mutex_);
  std::string first_line(double elapsed) const WITAN_REQUIRES(mutex_);
  std::optional<double> step_seconds(double elapsed) const WITAN_REQUIRES(mutex_);

  Progress& progress_;
  const StepWatchOptions options_;
  Mutex mutex_;
  Doing doing_ WITAN_GUARDED_BY(mutex_) = Doing::nothing;
  int64_t step_ WITAN_GUARDED_BY(mutex_) = 0;
  double share_ WITAN_GUARDED_BY(mutex_) = 0;  // of the step
  double begun_ WITAN_GUARDED_BY(mutex_) = 0;
  StopClock stop_clock_ WITAN_GUARDED_BY(mutex_);
  std::optional<TrainStatus> line_ WITAN_GUARDED_BY(mutex_);  // of the last step; nothing before the first is finished
  Ticker ticker_;                                             // last: its thread ends first
};

}  // namespace witan
