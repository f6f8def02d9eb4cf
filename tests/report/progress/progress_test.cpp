#include "witan/report/progress/progress.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "report/progress/screen.h"

namespace witan {
namespace {

using test::Screen;

const std::string kErase = "\r\x1b[K";

auto says(std::string line) {
  return [line](int) { return line; };
}

// A full disk under the log must not end a run.
TEST(Progress, IgnoresWriteErrors) {
  for (const bool tty : {false, true}) {
    Screen screen;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> full(std::fopen("/dev/full", "w"), &std::fclose);
    std::setvbuf(full.get(), nullptr, _IONBF, 0);
    Progress progress(full.get(), screen.options(tty));
    EXPECT_NO_THROW(progress.update(0.5, says("half")));
    EXPECT_NO_THROW(progress.note("a line"));
    EXPECT_NO_THROW(progress.clear());
    EXPECT_NE(std::ferror(full.get()), 0) << "a write was attempted";
  }
}

TEST(Progress, RedrawsInPlaceAtMostFourTimesASecond) {
  Screen screen;
  Progress progress(screen.out, screen.options(true));
  progress.update(0, says("one"));
  progress.update(0.1, says("two"));
  screen.now += 0.24;
  progress.update(0.2, says("three"));
  screen.now += 0.02;
  progress.update(0.3, says("four"));
  EXPECT_EQ(screen.shown(), kErase + "one" + kErase + "four");
  progress.clear();
  EXPECT_EQ(screen.shown(), kErase + "one" + kErase + "four" + kErase);
}

TEST(Progress, ShortTasksWriteNoLinesToALog) {
  Screen screen;
  ProgressOptions options = screen.options(false);
  options.quiet_seconds = 2;
  Progress progress(screen.out, options);
  progress.update(0.5, says("short"));
  progress.update(1.0, says("short"));
  screen.now += 10;
  progress.update(0.0, says("another begins"));
  screen.now += 3;
  progress.update(0.2, says("another"));
  progress.update(0.4, says("too soon"));
  screen.now += 3;
  progress.update(0.4, says("later"));
  EXPECT_EQ(screen.shown(), "another\nlater\n");
}

TEST(Progress, LongWorkWritesALineEveryHalfMinute) {
  Screen screen;
  ProgressOptions options = screen.options(false);
  options.quiet_seconds = 2;
  Progress progress(screen.out, options);
  for (int second = 0; second <= 95; ++second, screen.now += 1)
    progress.update(0.001 * second, says("at " + std::to_string(second) + " s"));
  EXPECT_EQ(screen.shown(), "at 2 s\nat 32 s\nat 62 s\nat 92 s\n");
}

TEST(Progress, MilestonesStay) {
  Screen log;
  ProgressOptions options = log.options(false);
  options.quiet_seconds = 2;
  {
    Progress progress(log.out, options);
    progress.milestone(0.1, says("first"));
    progress.update(0.5, says("too soon"));
    progress.milestone(1.0, says("last"));
    log.now += 10;
    progress.update(1.0, says("said already"));
  }
  EXPECT_EQ(log.shown(), "first\nlast\n");

  Screen screen;
  {
    Progress progress(screen.out, screen.options(true, 6));
    progress.milestone(0.1, says("first"));
    progress.update(0.5, says("half"));
    progress.milestone(1.0, says("the last"));
  }
  EXPECT_EQ(screen.shown(), "first\n" + kErase + "half" + kErase + "the …\n") << "nothing left to clear";
}

TEST(Progress, IsClearedAtTheEnd) {
  Screen screen;
  { Progress(screen.out, screen.options(true)).update(0, says("one")); }
  EXPECT_EQ(screen.shown(), kErase + "one" + kErase);
}

TEST(Progress, PrintsNotesAboveTheLine) {
  Screen screen;
  Progress progress(screen.out, screen.options(true));
  progress.note("before");
  progress.update(0, says("line"));
  progress.note("note");
  EXPECT_EQ(screen.shown(), "before\n" + kErase + "line" + kErase + "note\n" + kErase + "line");
}

TEST(Progress, EscapesControlCharactersInNotes) {
  Screen screen;
  Progress progress(screen.out, screen.options(true));
  progress.note("warning: \x1b]0;title\a.txt\n\tis empty");
  EXPECT_EQ(screen.shown(), "warning: \\x1B]0;title\\x07.txt\n\tis empty\n");
}

TEST(Progress, IsCutToTheTerminalWidth) {
  Screen screen;
  Progress progress(screen.out, screen.options(true, 8));
  progress.update(0, [](int width) { return std::to_string(width) + "23456789"; });
  EXPECT_EQ(screen.shown(), kErase + "723456…");
}

TEST(Progress, LogsGetMilestonesAndNotesOnly) {
  Screen screen;
  {
    Progress progress(screen.out, screen.options(false));
    for (int i = 1; i <= 100; ++i) progress.update(i / 100.0, says(std::to_string(i)));
    progress.note("evaluated");
  }
  EXPECT_EQ(screen.shown(), "1\n10\n20\n30\n40\n50\n60\n70\n80\n90\n100\nevaluated\n");
}

TEST(Progress, FormatsOnlyPrintedLines) {
  Screen screen;
  Progress progress(screen.out, screen.options(false));
  int made = 0;
  for (int i = 0; i < 50; ++i) progress.update(0.05, [&](int) { return ++made, "x"; });
  EXPECT_EQ(made, 1);
}

TEST(Progress, FilesAreNotTerminals) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  const ProgressOptions options = progress_options(file.get());
  EXPECT_FALSE(options.is_tty);
  EXPECT_FALSE(options.colour);
}

TEST(TaskProgress, ShowsBarRateAndTimeLeft) {
  Screen screen;
  Progress progress(screen.out, screen.options(true, 80));
  TaskProgress task(progress, "tokenizing", 4000, "tokens", /*look_seconds=*/0);
  screen.now += 2;
  task.update(1000);
  EXPECT_EQ(screen.shown(), kErase + "tokenizing [######..................]  25 %  500 tokens/s  ETA 6 s");
}

// Ctrl-Z, then `fg` an hour later.
TEST(TaskProgress, TimeLeftExcludesStopsOfTheProcess) {
  Screen screen;
  Progress progress(screen.out, screen.options(true, 80));
  TaskProgress task(progress, "tokenizing", 4000, "tokens", /*look_seconds=*/100);  // no poll within this test
  screen.now += 100;
  task.update(1000);
  screen.now += 100 + 3600;
  task.update(2000);
  EXPECT_EQ(screen.line(), "tokenizing [############............]  50 %  10 tokens/s  ETA 3 min 20 s");
}

// Work without updates for a long time is not a stopped process.
TEST(TaskProgress, LongTimesWithoutAnUpdateCountAsWork) {
  std::atomic<double> now = 1000;
  std::atomic<int> looks = 0;
  Screen screen;
  ProgressOptions options = screen.options(true, 80);
  options.now = [&] {
    ++looks;
    looks.notify_all();
    return now.load();
  };
  Progress progress(screen.out, options);
  TaskProgress task(progress, "tokenizing", 4000, "tokens", /*look_seconds=*/0.001);
  for (int second = 0; second < 100; ++second) {
    now = now + 1;
    const int before = looks;
    for (int count = before; count < before + 2; count = looks) looks.wait(count);
  }
  task.update(1000);
  EXPECT_EQ(screen.line(), "tokenizing [######..................]  25 %  10 tokens/s  ETA 5 min 0 s");
}

TEST(TaskProgress, LogsHaveNoBar) {
  Screen screen;
  Progress progress(screen.out, screen.options(false));
  TaskProgress task(progress, "hashing", 4096, "B", /*look_seconds=*/0);
  screen.now += 1;
  task.update(4096);
  EXPECT_EQ(screen.shown(), "hashing 100 %  4.00 KiB/s\n");
}

TEST(FitWidth, CountsCodePointsAndSkipsColours) {
  EXPECT_EQ(display_width("a\x1b[2mé\x1b[0mx"), 3);
  EXPECT_EQ(display_width("\x1b["), 0);
  EXPECT_EQ(fit_width("abc", 3), "abc");
  EXPECT_EQ(fit_width("äöüß", 3), "äö…");
  EXPECT_EQ(fit_width("\x1b[2mabcdef\x1b[0m", 3), "\x1b[2mab…\x1b[0m");
  EXPECT_EQ(fit_width("abc", 0), "");
}

}  // namespace
}  // namespace witan
