#include "witan/report/events/metrics_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "report/synthetic.h"
#include "support/message_of.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using synthetic::TempFolder;
using ::testing::HasSubstr;

void append(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

std::string step_line(int64_t n) {
  return format_event(synthetic::step(n, 1000, false)) + "\n";
}

std::vector<int64_t> steps_of(const Metrics& metrics) {
  std::vector<int64_t> steps;
  for (const StepEvent& event : metrics.steps) steps.push_back(event.step);
  return steps;
}

TEST(MetricsFollower, ReadsAppendedLines) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  MetricsFollower follower(path);
  EXPECT_FALSE(follower.read_more()) << "no file yet";
  append(path, format_event(*synthetic::run(9, 0, 0).run) + "\n" + step_line(1));
  EXPECT_TRUE(follower.read_more());
  EXPECT_FALSE(follower.read_more()) << "nothing new";
  append(path, step_line(2) + format_event(EvalEvent{2, 3, 2}) + "\n");
  EXPECT_TRUE(follower.read_more());
  EXPECT_EQ(follower.metrics().run->name, "first-light");
  EXPECT_EQ(steps_of(follower.metrics()), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(follower.metrics().evals.size(), 1u);
}

TEST(MetricsFollower, ReadsTornLinesOnceWhole) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  MetricsFollower follower(path);
  const std::string second = step_line(2);
  append(path, step_line(1));
  for (const char letter : second) {
    follower.read_more();
    EXPECT_EQ(follower.metrics().steps.size(), 1u);
    append(path, std::string(1, letter));
  }
  EXPECT_TRUE(follower.read_more());
  EXPECT_EQ(follower.metrics().steps.size(), 2u);
}

// As a run does that resumes from a checkpoint.
TEST(MetricsFollower, RefusesPipesWithoutWaitingForAWriter) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "m.jsonl").c_str(), 0600), 0);
  EXPECT_THAT(test::message_of<IoError>([&] { MetricsFollower(folder / "m.jsonl").read_more(); }),
              HasSubstr("m.jsonl: it is not a regular file"));
}

TEST(MetricsFollower, RereadsTruncatedFiles) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  for (int64_t n = 1; n <= 5; ++n) append(path, step_line(n));
  MetricsFollower follower(path);
  follower.read_more();
  fs::resize_file(path, step_line(1).size() + step_line(2).size());
  EXPECT_TRUE(follower.read_more());
  EXPECT_EQ(steps_of(follower.metrics()), (std::vector<int64_t>{1, 2}));
  // It has grown beyond the place before it is looked at again.
  StepEvent other = synthetic::step(2, 1000, false);
  other.elapsed_s = 77;
  fs::resize_file(path, step_line(1).size());
  append(path, format_event(other) + "\n" + step_line(3) + step_line(4));
  EXPECT_TRUE(follower.read_more());
  EXPECT_EQ(steps_of(follower.metrics()), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(follower.metrics().steps[1].elapsed_s, 77);
}

TEST(MetricsFollower, KeepsEventsOfAMissingFile) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl", elsewhere = folder / "moved.jsonl";
  append(path, step_line(1) + step_line(2));
  MetricsFollower follower(path);
  follower.read_more();
  const auto expect_gone = [&] {
    try {
      follower.read_more();
      ADD_FAILURE();
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), HasSubstr("m.jsonl is gone"));
    }
    EXPECT_EQ(steps_of(follower.metrics()), (std::vector<int64_t>{1, 2}));
  };
  fs::rename(path, elsewhere);
  expect_gone();
  fs::rename(elsewhere, path);
  append(path, step_line(3));
  EXPECT_TRUE(follower.read_more());
  EXPECT_EQ(steps_of(follower.metrics()), (std::vector<int64_t>{1, 2, 3})) << "the file is back and has grown";
  fs::resize_file(path, 0);
  EXPECT_TRUE(follower.read_more());
  EXPECT_TRUE(follower.metrics().steps.empty()) << "the file is empty";
}

TEST(MetricsFollower, KeepsEvenlySpreadStepsAndTheLast) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  MetricsFollower follower(path, {.steps = 10, .experts = 3, .layers = 4, .activations = 5});
  int64_t n = 0;
  for (const int64_t more : {7, 1, 40, 1, 1, 200, 3}) {
    for (int64_t i = 0; i < more; ++i) {
      ++n;
      append(path, step_line(n) + format_event(synthetic::experts(n, 1000, 1, 2)) + "\n" +
                       format_event(LayersEvent{n, {0.5}}) + "\n" +
                       format_event(ActivationsEvent{n, {{"mlp_rms", {0.5}}}}) + "\n");
    }
    follower.read_more();
    const std::vector<int64_t> steps = steps_of(follower.metrics());
    EXPECT_LE(steps.size(), 21u) << n;
    EXPECT_GE(steps.size(), std::min<size_t>(10, static_cast<size_t>(n))) << n;
    EXPECT_EQ(steps.front(), 1);
    EXPECT_EQ(steps.back(), n);
    for (size_t i = 2; i + 1 < steps.size(); ++i) EXPECT_EQ(steps[i] - steps[i - 1], steps[1] - steps[0]) << n;
    EXPECT_LE(follower.metrics().experts.size(), 7u);
    EXPECT_EQ(follower.metrics().experts.back().step, n);
    EXPECT_LE(follower.metrics().layers.size(), 9u);
    EXPECT_EQ(follower.metrics().layers.back().step, n);
    EXPECT_LE(follower.metrics().activations.size(), 11u);
    EXPECT_EQ(follower.metrics().activations.back().step, n);
  }
  EXPECT_EQ(n, 253);
  MetricsFollower at_once(path, {.steps = 10, .experts = 3, .layers = 4, .activations = 5});
  at_once.read_more();
  EXPECT_EQ(steps_of(at_once.metrics()), steps_of(follower.metrics())) << "read at once or in pieces";
}

// On a logarithmic axis the first steps take as much width as all others.
TEST(MetricsFollower, KeepsTheFirstSteps) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  MetricsFollower follower(path, {.steps = 100});
  for (int64_t n = 1; n <= 1000; ++n) {
    append(path, step_line(n));
    if (n % 7 == 0) follower.read_more();
  }
  follower.read_more();
  std::vector<int64_t> expected = {1, 2};  // 100 / 50; then intervals of 8 from step 3 on
  for (int64_t n = 3; n <= 1000; n += 8) expected.push_back(n);
  expected.push_back(1000);
  EXPECT_EQ(steps_of(follower.metrics()), expected);
}

// Read blocks end within lines, and a line may be longer than a block.
TEST(MetricsFollower, ReadsLongLinesAndFiles) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  const std::string text(size_t{9} << 20, 'a');
  append(path, step_line(1) + format_event(SampleEvent{1, "p", text}) + "\n" + step_line(2));
  for (int64_t n = 3; n < 12'000; ++n) append(path, step_line(n));
  MetricsFollower follower(path);
  EXPECT_TRUE(follower.read_more());
  EXPECT_EQ(follower.metrics().samples.at(0).text.size(), text.size());
  EXPECT_EQ(follower.metrics().steps.size(), 11'999u);
}

TEST(MetricsFollower, ReportsDamageAndReadsTheRepairedFile) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  append(path, step_line(1) + "garbage\n");
  MetricsFollower follower(path);
  try {
    follower.read_more();
    ADD_FAILURE();
  } catch (const CorruptionError& error) {
    EXPECT_THAT(error.what(), HasSubstr(cat("m.jsonl: byte ", step_line(1).size())));
  }
  fs::resize_file(path, step_line(1).size());
  EXPECT_TRUE(follower.read_more());
  EXPECT_EQ(follower.metrics().steps.size(), 1u);
  append(path, step_line(2) + "garbage\n");
  for (int look = 0; look < 3; ++look) {
    EXPECT_THROW(follower.read_more(), CorruptionError);
    EXPECT_EQ(follower.metrics().steps.front().step, 1) << "earlier lines are kept";
  }
  fs::resize_file(path, step_line(1).size());
  append(path, step_line(5));
  EXPECT_TRUE(follower.read_more());
  EXPECT_EQ(steps_of(follower.metrics()), (std::vector<int64_t>{1, 5})) << "each line once";
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_THROW(follower.read_more(), IoError) << "a folder is not a file";
}

TEST(MetricsFollower, SkipsDamagedLinesOnRequest) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  append(path, step_line(1) + "garbage\n" + step_line(2).substr(0, 30) + "\n" + step_line(3));
  MetricsFollower follower(path, {}, MetricsFollower::OnDamage::left_out);
  EXPECT_TRUE(follower.read_more());
  EXPECT_EQ(steps_of(follower.metrics()), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(follower.damaged().count, 2);
  EXPECT_EQ(follower.damaged().of, 4);
  EXPECT_THAT(follower.damaged().first, HasSubstr("m.jsonl: byte " + std::to_string(step_line(1).size()) + ": "));
  append(path, step_line(4));
  follower.read_more();
  EXPECT_EQ(follower.metrics().steps.back().step, 4);
  EXPECT_EQ(follower.damaged().of, 5);
}

}  // namespace
}  // namespace witan
