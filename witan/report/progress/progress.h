// A progress line for people. On a terminal it is redrawn in place; a log file gets a line at milestones, and otherwise
// every half minute.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

#include "witan/base/threads/mutex.h"
#include "witan/report/progress/timing.h"

namespace witan {

struct ProgressOptions {
  bool is_tty = false;
  bool colour = false;
  int width = 0;                // columns; 0: ask the terminal at every drawing
  int milestone_percent = 10;   // not on a terminal: a line each time that this much more is done,
  double quiet_seconds = 2;     // but not sooner than this after the last: short tasks leave no lines
  double longest_silence = 30;  // seconds; a line of work that takes longer is printed without a milestone
  std::FILE* data = stdout;     // where print() goes
  std::function<double()> now;  // monotonic seconds; empty: the system's steady clock
};

// The options for `out`: colours only on a terminal that supports them (TERM is not "dumb") and if NO_COLOR
// (no-color.org) is unset.
ProgressOptions progress_options(std::FILE* out);

// Thread-safe. One at a time per stream.
class Progress {
 public:
  Progress(std::FILE* out, ProgressOptions options);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows `make(width)` for work of which `fraction` (0 to 1) is done; make is only called when something is printed:
  // on a terminal at most four times a second, with its width, otherwise when a line is due, with 0 for no limit. A
  // smaller fraction than before starts a new task. A line that is wider than the terminal is truncated.
  void update(double fraction, const std::function<std::string(int width)>& make);
  // A permanent line, also on a terminal, independent of milestones: for the first and the last step.
  void milestone(double fraction, const std::function<std::string(int width)>& make);
  // A permanent line above the progress line; control characters in it are shown, not sent.
  void note(std::string_view line);
  // A line for programs: on options.data, after clearing the progress line, which may be on the same terminal.
  void print(std::string_view line);
  // Removes the progress line; the next update draws it again.
  void clear();

  bool colour() const { return options_.colour; }
  bool is_terminal() const { return options_.is_tty; }
  double now() const { return options_.now(); }

 private:
  void draw() WITAN_REQUIRES(mutex_);
  void erase() WITAN_REQUIRES(mutex_);
  int width() const;
  int milestone_of(double fraction) const;

  std::FILE* const out_;
  ProgressOptions options_;  // as the constructor completes them
  Mutex mutex_;
  std::string line_ WITAN_GUARDED_BY(mutex_);  // as drawn; empty: nothing stands on the terminal
  double drawn_at_ WITAN_GUARDED_BY(mutex_) = -1e9;
  int milestone_ WITAN_GUARDED_BY(mutex_) = -1;
  double fraction_ WITAN_GUARDED_BY(mutex_) = 0;
  double said_at_ WITAN_GUARDED_BY(mutex_) = 0;  // when the last milestone was printed, or its task began
};

// "tokenizing [#######.......]  52 %  3.1 MB/s  ETA 4.2 s" for work of a known size. Thread-safe.
class TaskProgress {
 public:
  // `total` > 0, in `unit`s ("B" shows as bytes). `look_seconds`: so often a thread of its own looks whether the
  // process was stopped, which is no time of the task; 0: never.
  TaskProgress(Progress& progress, std::string label, double total, std::string unit, double look_seconds = 0.25);
  ~TaskProgress() { progress_.clear(); }
  TaskProgress(const TaskProgress&) = delete;
  TaskProgress& operator=(const TaskProgress&) = delete;

  void update(double done);

 private:
  double note_stop() WITAN_REQUIRES(mutex_);  // returns the time
  std::string line(double done, int width) const WITAN_REQUIRES(mutex_);

  Progress& progress_;
  std::string label_, unit_;
  double total_;
  Mutex mutex_;
  RateEstimator rate_ WITAN_GUARDED_BY(mutex_);
  StopClock stop_clock_ WITAN_GUARDED_BY(mutex_);
  Ticker ticker_;  // last: its thread ends first
};

// Columns that `line` takes: a code point is one, a control sequence (ESC [ … letter) none.
int display_width(std::string_view line);
// The line truncated to `width` columns with an ellipsis at its end; colours that are open there are reset.
std::string fit_width(std::string_view line, int width);

}  // namespace witan
