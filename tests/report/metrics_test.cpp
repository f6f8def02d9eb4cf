#include "witan/report/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "report/synthetic.h"
#include "witan/base/error.h"

namespace witan {
namespace {

using synthetic::TempFolder;

void put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

EvalEvent eval(int64_t step) {
  return {step, 3, 2};
}

// The lines of a run from step `first` to `last`, with a checkpoint's worth of every kind of event.
void train(MetricsWriter& out, int64_t first, int64_t last) {
  for (int64_t n = first; n <= last; ++n) {
    out.append(synthetic::step(n, 20, true));
    if (n % 5 == 0) out.append(eval(n));
    if (n % 5 == 0) out.append(SaveEvent{n, 0.5, 0.25});
    if (n % 2 == 0) out.append(synthetic::experts(n, 20, 2, 4));
  }
}

TEST(Metrics, WhatIsWrittenIsRead) {
  const TempFolder folder;
  const Metrics run = synthetic::run(20, 2, 4);
  {
    MetricsWriter out(folder / "metrics.jsonl");
    out.append(*run.run);
    for (const auto& e : run.memory) out.append(e);
    for (const auto& e : run.baselines) out.append(e);
    train(out, 1, 20);
    out.append(run.samples[0]);
    EXPECT_EQ(read_metrics(folder / "metrics.jsonl").steps.size(), 20u) << "an event is on disk once appended";
    out.append(*run.end);
  }
  const Metrics back = read_metrics(folder / "metrics.jsonl");
  EXPECT_EQ(back.run->name, "first-light");
  EXPECT_EQ(back.memory.size(), 2u);
  EXPECT_EQ(back.steps.size(), 20u);
  EXPECT_EQ(back.steps[6].loss, run.steps[6].loss);
  EXPECT_EQ(back.experts.size(), 10u);
  EXPECT_EQ(back.evals.size(), 4u);
  EXPECT_EQ(back.saves.size(), 4u);
  EXPECT_EQ(back.baselines.size(), 1u);
  EXPECT_EQ(back.samples[0].text, run.samples[0].text);
  EXPECT_EQ(back.end->reason, "finished");
}

TEST(Metrics, TornLastLineIsIgnoredAndCutOffAtEveryByte) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  const std::string first = format_event(eval(1)) + "\n", second = format_event(eval(2)) + "\n";
  for (size_t n = 0; n < second.size(); ++n) {
    put(path, first + second.substr(0, n));
    EXPECT_EQ(read_metrics(path).evals.size(), 1u) << n;
    MetricsWriter(path).append(eval(3));
    EXPECT_EQ(read_file(path), first + format_event(eval(3)) + "\n") << n;
  }
}

TEST(Metrics, TornOnlyLineLeavesAnEmptyFile) {
  const TempFolder folder;
  put(folder / "m.jsonl", "{\"kind\":\"ru");
  const MetricsWriter out(folder / "m.jsonl");
  EXPECT_EQ(fs::file_size(folder / "m.jsonl"), 0u);
}

TEST(Metrics, ResumedFileEqualsTheUndisturbedOne) {
  const TempFolder folder;
  const RunEvent run = *synthetic::run(20, 2, 4).run;
  {
    MetricsWriter out(folder / "whole.jsonl");
    out.append(run);
    train(out, 1, 20);
    out.append(EndEvent{"finished"});
  }
  for (const int64_t checkpoint : {0, 1, 10, 13}) {
    {
      MetricsWriter out(folder / "resumed.jsonl");
      out.append(run);
      train(out, 1, 13);
      out.append(MeasuredMemoryEvent{{0, {{"weights", 8}}, 12}});
      out.append(EndEvent{"interrupted"});
    }
    {
      MetricsWriter out(folder / "resumed.jsonl");
      out.truncate_after(checkpoint);
      train(out, checkpoint + 1, 20);
      out.append(EndEvent{"finished"});
    }
    EXPECT_EQ(read_file(folder / "resumed.jsonl"), read_file(folder / "whole.jsonl")) << checkpoint;
    fs::remove(folder / "resumed.jsonl");
  }
}

// A run that goes on in another layout has other ranks; with another length alone it has the same.
TEST(Metrics, AnotherLayoutHasItsOwnMemory) {
  const TempFolder folder;
  RunEvent run = *synthetic::run(20, 2, 4).run;
  run.world_size = 2;
  run.layout = "shard=2";
  MetricsWriter out(folder / "m.jsonl");
  out.append(run);
  for (const int64_t rank : {0, 1}) out.append(MemoryEvent{rank, {{"weights", 8}}, 8});
  run.total_steps = 40;
  out.append(run);
  EXPECT_EQ(read_metrics(folder / "m.jsonl").memory.size(), 2u);
  run.layout = "tensor=2";
  out.append(run);
  out.append(MemoryEvent{0, {{"weights", 4}}, 4});
  const Metrics metrics = read_metrics(folder / "m.jsonl");
  ASSERT_EQ(metrics.memory.size(), 1u);
  EXPECT_EQ(metrics.memory[0].peak, 4);
  EXPECT_EQ(metrics.run->layout, "tensor=2");
}

TEST(Metrics, TruncateKeepsKindsItDoesNotKnowAndNamesADamagedLine) {
  const TempFolder folder;
  const std::string known = "{\"kind\":\"gpu\"}\n" + format_event(eval(4)) + "\n";
  put(folder / "m.jsonl", known);
  MetricsWriter(folder / "m.jsonl").truncate_after(4);
  EXPECT_EQ(read_file(folder / "m.jsonl"), known);
  put(folder / "m.jsonl", known + "garbage\n");
  MetricsWriter out(folder / "m.jsonl");
  EXPECT_THROW(out.truncate_after(4), CorruptionError);
}

// Lines that were not flushed when the power failed read as zeros.
TEST(Metrics, TruncateCutsZerosBehindTheLastStep) {
  const TempFolder folder;
  const std::string known = format_event(eval(4)) + "\n", zeros(100, '\0');
  put(folder / "m.jsonl", known + zeros + format_event(eval(5)) + "\n");
  MetricsWriter(folder / "m.jsonl").truncate_after(4);
  EXPECT_EQ(read_file(folder / "m.jsonl"), known);
  put(folder / "m.jsonl", zeros + "\n" + known);
  MetricsWriter out(folder / "m.jsonl");
  EXPECT_THROW(out.truncate_after(4), CorruptionError) << "what was flushed is damaged";
}

void expect_corrupt(const std::string& text, const std::string& message) {
  const TempFolder folder;
  put(folder / "m.jsonl", text);
  try {
    read_metrics(folder / "m.jsonl");
    ADD_FAILURE() << text << " was accepted";
  } catch (const CorruptionError& e) {
    EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
  }
}

TEST(Metrics, DamageIsNamedByLine) {
  const std::string good = format_event(eval(2)) + "\n";
  expect_corrupt(good + "nonsense\n" + good, "m.jsonl: line 2");
  expect_corrupt(good + "\n", "m.jsonl: line 2");
  expect_corrupt(good + good + "{\"kind\":\"end\"}\n", "line 3: the key \"reason\" is missing");
  expect_corrupt(good + format_event(eval(1)) + "\n", "line 2: step 1 comes after step 2");
  const std::string step = format_event(synthetic::step(3, 10, false)) + "\n";
  expect_corrupt(step + step, "line 2: step 3 comes after step 3");
}

TEST(Metrics, OfADamagedFileWhatCanBeReadIsKept) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  const auto step = [](int64_t n) { return format_event(synthetic::step(n, 10, false)) + "\n"; };
  const std::string good = step(1) + "{\"kind\":\"gpu\"}\n" + step(2) + step(5), bad = step(3).substr(0, 20) + "\n";
  // Of the two lines of step 99 the first one would have all that follow come too early.
  const std::string text = step(1) + "{\"kind\":\"gpu\"}\n" + step(2) + bad + step(99) + step(2) + step(5) + step(7) +
                           "{\"kind\":\"end\",\"reason\":\"finished\"}\n" + "{\"kind\":\"st";
  put(path, text);
  DamagedLines damaged;
  const Metrics before = read_undamaged_metrics(path, damaged);
  EXPECT_EQ(before.steps.size(), 3u) << "1, 2, 99";
  EXPECT_EQ(damaged.count, 4) << damaged.first;
  EXPECT_EQ(damaged.of, 9);
  damaged = repair_metrics(path, 5);
  EXPECT_EQ(damaged.count, 2);
  EXPECT_NE(damaged.first.find("m.jsonl: line 4: "), std::string::npos) << damaged.first;
  EXPECT_EQ(read_file(path), good);
  EXPECT_EQ(read_file(path.string() + ".damaged"), text);
  EXPECT_EQ(read_metrics(path).steps.size(), 3u);
}

TEST(Metrics, FilesThatCannotBeOpened) {
  const TempFolder folder;
  EXPECT_THROW(read_metrics(folder / "missing.jsonl"), IoError);
  EXPECT_THROW(MetricsWriter(folder / "no" / "m.jsonl"), IoError);
  EXPECT_THROW(MetricsWriter{folder.path()}, IoError);
}

// No file of this process may grow beyond `bytes` while this lives: a disk without room, for a test.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(Metrics, AWriteThatFailsHalfwayLeavesWholeLines) {
  const TempFolder folder;
  const std::string line = format_event(eval(1)) + "\n";
  MetricsWriter out(folder / "m.jsonl");
  out.append(eval(1));
  {
    const FileSizeLimit limit(line.size() + 10);
    EXPECT_THROW(out.append(eval(1)), IoError);
  }
  EXPECT_EQ(read_file(folder / "m.jsonl"), line);
  out.append(eval(1));
  EXPECT_EQ(read_file(folder / "m.jsonl"), line + line);
}

}  // namespace
}  // namespace witan
