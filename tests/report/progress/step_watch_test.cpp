#include "witan/report/progress/step_watch.h"

#include <gtest/gtest.h>

#include <future>
#include <utility>

#include "report/progress/screen.h"

namespace witan {
namespace {

using test::Screen;

using Doing = StepWatch::Doing;

StepWatchOptions by_hand(double step_seconds) {
  return {.total_steps = 10, .step_seconds = step_seconds, .refresh_seconds = 0};
}

TEST(StepWatch, ShowsTheFirstStepBeforeItsEnd) {
  Screen screen;
  Progress progress(screen.out, screen.options(true, 120));
  StepWatch watch(progress, by_hand(40));
  watch.begin(Doing::set_up, 1);
  screen.now += 2;
  watch.poll();
  EXPECT_EQ(screen.line(), "step 1/10  setting up for 2 s");
  watch.begin(Doing::step, 1);
  screen.now += 10;
  watch.poll();
  EXPECT_EQ(screen.line(), "step 1/10  running for 10 s of 40 s expected  ETA 6 min 30 s") << "as predicted";
  watch.done(0.25);
  screen.now += 10;
  watch.poll();
  EXPECT_EQ(screen.line(), "step 1/10  running for 20 s of 40 s expected  25 % done  ETA 13 min 0 s")
      << "10 steps of 80 s, less 20";
}

TEST(StepWatch, ShowsTheTimeOfAStepWithoutAPrediction) {
  Screen screen;
  Progress progress(screen.out, screen.options(true, 120));
  StepWatch watch(progress, by_hand(0));
  watch.begin(Doing::step, 1);
  screen.now += 3;
  watch.poll();
  EXPECT_EQ(screen.line(), "step 1/10  running for 3 s");
}

TEST(StepWatch, UpdatesTheLineWithinALongStep) {
  Screen screen;
  Progress progress(screen.out, screen.options(true, 120));
  StepWatch watch(progress, by_hand(40));
  watch.begin(Doing::step, 1);
  watch.finished({.step = 1, .total_steps = 10, .loss = 5, .tokens_per_s = 100, .gflops = 3, .eta_s = 360});
  screen.now += 5;
  watch.poll();
  EXPECT_EQ(screen.shown(), "") << "nothing is printed between steps";
  watch.begin(Doing::step, 2);
  screen.now += 0.5;
  watch.poll();
  EXPECT_EQ(screen.shown(), "") << "nor while the line is recent";
  screen.now += 9.5;
  watch.poll();
  EXPECT_TRUE(screen.line().starts_with("step 1/10  (step 2 for 10 s)  loss 5.000  ")) << screen.line();
  EXPECT_TRUE(screen.line().ends_with("  ETA 5 min 50 s")) << screen.line();
  watch.done(0.999);
  screen.now += 1;
  watch.poll();
  EXPECT_TRUE(screen.line().starts_with("step 1/10  (step 2 at 99 %)  loss ")) << screen.line();
  watch.begin(Doing::evaluation, 2);
  screen.now += 2;
  watch.poll();
  EXPECT_TRUE(screen.line().starts_with("step 1/10  (validation for 2 s)  loss ")) << screen.line();
  watch.begin(Doing::step, 3);
  screen.now += 4;
  watch.poll();
  EXPECT_TRUE(screen.line().starts_with("step 1/10  (step 3 for 4 s)  loss ")) << screen.line();
}

TEST(StepWatch, ShowsThatTheRunStops) {
  Screen screen;
  Progress progress(screen.out, screen.options(true, 120));
  bool stopping = false;
  StepWatchOptions options = by_hand(40);
  options.stopping = [&] { return stopping; };
  StepWatch watch(progress, options);
  watch.begin(Doing::step, 1);
  stopping = true;
  screen.now += 10;
  watch.poll();
  EXPECT_EQ(screen.line(), "step 1/10  running for 10 s of 40 s expected  then exits");
  watch.finished({.step = 1, .total_steps = 10});
  watch.begin(Doing::saving, 1);
  screen.now += 2;
  watch.poll();
  EXPECT_TRUE(screen.line().starts_with("step 1/10  (saving for 2 s, then exits)  ")) << screen.line();
}

TEST(StepWatch, WritesToALogEveryHalfMinute) {
  Screen screen;
  ProgressOptions options = screen.options(false, 120);
  options.quiet_seconds = 2;
  Progress progress(screen.out, options);
  StepWatch watch(progress, by_hand(40));
  const auto pass = [&](int seconds) {
    for (int second = 0; second < seconds; ++second) {
      screen.now += 1;
      watch.poll();
    }
  };
  watch.begin(Doing::set_up, 1);
  pass(35);
  watch.begin(Doing::step, 1);
  pass(60);
  EXPECT_EQ(screen.shown(),
            "step 1/10  setting up for 2 s\n"
            "step 1/10  setting up for 32 s\n"
            "step 1/10  running for 27 s of 40 s expected  ETA 6 min 13 s\n"
            "step 1/10  running for 57 s of 40 s expected  ETA 5 min 43 s\n");
  progress.milestone(0.1, [](int) { return std::string("the first step's line"); });
  watch.finished({.step = 1, .total_steps = 10, .loss = 5});
  watch.begin(Doing::evaluation, 1);
  size_t before = screen.shown().size();
  const auto said_since = [&] { return screen.shown().substr(std::exchange(before, screen.shown().size())); };
  pass(29);
  EXPECT_EQ(said_since(), "");
  pass(1);
  const std::string evaluating = said_since();
  EXPECT_TRUE(evaluating.starts_with("step 1/10  (validation for 30 s)  loss 5.000")) << evaluating;
  watch.begin(Doing::step, 2);
  pass(30);
  const std::string training = said_since();
  EXPECT_TRUE(training.starts_with("step 1/10  (step 2 for 30 s)  loss 5.000")) << training;
}

// After SIGSTOP or Ctrl-Z the watch was not polled, and that time does not count as work.
TEST(StepWatch, StepTimesExcludeStopsOfTheProcess) {
  Screen screen;
  Progress progress(screen.out, screen.options(true, 120));
  StepWatchOptions options = by_hand(0);
  options.refresh_seconds = 3600;  // its thread does not poll within this test
  StepWatch watch(progress, options);
  watch.begin(Doing::step, 1);
  screen.now += 3600;
  watch.poll();
  screen.now += 3600 + 5000;
  watch.poll();
  EXPECT_EQ(screen.line(), "step 1/10  running for 2 h 0 min") << "without the 5000 s";
  EXPECT_EQ(watch.stopped(), 5000);
  EXPECT_EQ(watch.stopped(), 0);
  screen.now += 3600 + 100;
  EXPECT_EQ(watch.stopped(), 100) << "the query does not wait for a poll";
}

// The thread ends with the watch.
TEST(StepWatch, PollsOnItsOwnThread) {
  Screen screen;
  Progress progress(screen.out, screen.options(true, 120));
  std::promise<void> looked;
  StepWatchOptions options = by_hand(40);
  options.refresh_seconds = 0.001;
  options.stopping = [&, once = false]() mutable {
    if (!std::exchange(once, true)) looked.set_value();
    return false;
  };
  {
    StepWatch watch(progress, options);
    watch.begin(Doing::step, 1);
    looked.get_future().wait();
  }
  EXPECT_TRUE(screen.line().starts_with("step 1/10  running for ")) << screen.line();
}

}  // namespace
}  // namespace witan
