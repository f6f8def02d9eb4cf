// Says what a training run does while none of its lines is due: on a terminal the progress line moves on within a step,
// before the first one is finished too; in a log a first step that takes long is told of now and then.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "witan/base/mutex.h"
#include "witan/report/progress.h"
#include "witan/report/train_line.h"

namespace witan {

struct StepWatchOptions {
  int64_t total_steps = 0;
  double step_seconds = 0;                       // predicted; 0: unknown
  std::function<bool()> stopping = {};           // whether the run was asked to stop after the step under way
  double seconds_between_looks = 0.25;           // of a thread of its own; 0: none, look() is called by others
  double seconds_before_first_look_in_log = 10;  // afterwards at 2, 4, 8 ... times as much
};

// Thread-safe.
class StepWatch {
 public:
  enum class Doing : uint8_t {
    nothing,
    set_up,  // of model and optimizer, or of loading them
    step,
    evaluation,
    saving,  // what training waits for of it
  };

  StepWatch(Progress& progress, StepWatchOptions options);
  ~StepWatch();  // ends the thread
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // From now on the run does this, for `step`.
  void begin(Doing what, int64_t step);
  // So much of the step, 0 to 1, is done.
  void done(double share);
  // A step is finished, and this is its line.
  void finished(TrainStatus line);

  // Draws the line if the terminal has stood still, or prints one into the log if one is due.
  void look();

 private:
  void run();
  void look_locked() WITAN_REQUIRES(mutex_);
  // Of what goes on: "step 3 at 40 %".
  std::string under_way(double elapsed) const WITAN_REQUIRES(mutex_);
  std::string first_line(double elapsed) const WITAN_REQUIRES(mutex_);
  std::optional<double> step_seconds(double elapsed) const WITAN_REQUIRES(mutex_);

  Progress& progress_;
  const StepWatchOptions options_;
  Mutex mutex_;
  Doing doing_ WITAN_GUARDED_BY(mutex_) = Doing::nothing;
  int64_t step_ WITAN_GUARDED_BY(mutex_) = 0;
  double share_ WITAN_GUARDED_BY(mutex_) = 0;  // of the step
  double begun_ WITAN_GUARDED_BY(mutex_) = 0;
  std::optional<TrainStatus> line_ WITAN_GUARDED_BY(mutex_);  // of the last step; nothing before the first is finished
  double next_in_log_ WITAN_GUARDED_BY(mutex_);               // seconds after a step began
  bool ended_ WITAN_GUARDED_BY(mutex_) = false;
  CondVar end_;
  std::thread thread_;
};

}  // namespace witan
