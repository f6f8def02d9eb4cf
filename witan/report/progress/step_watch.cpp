#include "witan/report/progress/step_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "witan/base/text.h"

namespace witan {
namespace {

constexpr double kShort = 1;             // seconds for which a line may stand still
constexpr double kShareThatTells = 0.2;  // of a step: from here on it foretells the step better than the plan does

}  // namespace

StepWatch::StepWatch(Progress& progress, StepWatchOptions options)
    : progress_(progress),
      options_(std::move(options)),
      stop_clock_(options_.refresh_seconds),
      ticker_(options_.refresh_seconds, [this] { poll(); }) {}

void StepWatch::begin(Doing what, int64_t step) {
  const MutexLock lock(mutex_);
  note_stop();
  doing_ = what;
  step_ = step;
  share_ = 0;
  begun_ = progress_.now();
}

void StepWatch::done(double share) {
  const MutexLock lock(mutex_);
  share_ = share;
}

void StepWatch::finished(TrainStatus line) {
  const MutexLock lock(mutex_);
  doing_ = Doing::nothing;
  line_ = std::move(line);
}

void StepWatch::poll() {
  const MutexLock lock(mutex_);
  look_locked();
}

double StepWatch::stopped() {
  const MutexLock lock(mutex_);
  note_stop();
  return stop_clock_.take();
}

// The time for which the process was stopped does not count for the current activity.
void StepWatch::note_stop() {
  begun_ += stop_clock_.poll(progress_.now());
}

void StepWatch::look_locked() {
  note_stop();
  if (doing_ == Doing::nothing) return;
  const double elapsed = progress_.now() - begun_;
  const int64_t steps_done = line_ ? line_->step : step_ - 1;
  const double done = static_cast<double>(steps_done) / static_cast<double>(std::max<int64_t>(options_.total_steps, 1));
  if (!line_) {
    progress_.update(done, [&](int) {
      mutex_.assert_held();
      return first_line(elapsed);
    });
  } else if (elapsed >= kShort) {
    TrainStatus now = *line_;
    now.current_activity = current_activity(elapsed);
    if (now.eta_s) now.eta_s = std::max(*now.eta_s - elapsed, 0.0);
    progress_.update(done, [&](int width) { return format_train_line(now, width, progress_.colour()); });
  }
}

std::optional<double> StepWatch::step_seconds(double elapsed) const {
  if (share_ >= kShareThatTells) return elapsed / share_;
  if (options_.step_seconds > 0) return options_.step_seconds;
  return std::nullopt;
}

std::string StepWatch::current_activity(double elapsed) const {
  std::string text;
  switch (doing_) {
    case Doing::nothing:
      break;
    case Doing::set_up:
      text = "setting up for " + format_duration(elapsed);
      break;
    case Doing::step:
      text = fmt::format("step {} ", step_);
      text += share_ > 0 ? fmt::format("at {:.0f} %", std::min(100 * share_, 99.0)) : "for " + format_duration(elapsed);
      break;
    case Doing::evaluation:
      text = "validation for " + format_duration(elapsed);
      break;
    case Doing::sampling:
      text = "generating samples for " + format_duration(elapsed);
      break;
    case Doing::saving:
      text = "saving for " + format_duration(elapsed);
      break;
  }
  if (options_.stopping && options_.stopping()) text += ", then exits";
  return text;
}

// Before there is a loss to show.
std::string StepWatch::first_line(double elapsed) const {
  std::string text = fmt::format("step {}/{}  ", step_, options_.total_steps);
  if (doing_ != Doing::step) return text + current_activity(elapsed);
  text += "running for " + format_duration(elapsed);
  if (options_.step_seconds > 0) text += fmt::format(" of {} expected", format_duration(options_.step_seconds));
  if (share_ > 0) text += fmt::format("  {:.0f} % done", std::min(100 * share_, 99.0));
  if (options_.stopping && options_.stopping()) return text + "  then exits";
  if (const auto step = step_seconds(elapsed)) {
    const double left = *step * static_cast<double>(options_.total_steps - step_ + 1) - elapsed;
    if (left > 0) text += "  ETA " + format_duration(left);
  }
  return text;
}

}  // namespace witan
