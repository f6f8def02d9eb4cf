#include "witan/report/events/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "report/synthetic.h"
#include "witan/base/error.h"
#include "witan/base/process.h"

namespace witan {
namespace {

using synthetic::TempFolder;

void put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

EvalEvent eval(int64_t step) {
  return {step, 3, 2};
}

// Writes the lines of a run from step `first` to `last`, with every kind of event that precedes a checkpoint.
void train(MetricsWriter& out, int64_t first, int64_t last) {
  for (int64_t n = first; n <= last; ++n) {
    out.append(synthetic::step(n, 20, true));
    if (n % 5 == 0) out.append(eval(n));
    if (n % 5 == 0) out.append(SaveEvent{n, 0.5, 0.25});
    if (n % 2 == 0) out.append(synthetic::experts(n, 20, 2, 4));
  }
}

TEST(Metrics, RoundTrips) {
  const TempFolder folder;
  const Metrics run = synthetic::run(20, 2, 4);
  {
    MetricsWriter out(folder / "metrics.jsonl");
    out.append(*run.run);
    for (const auto& e : run.memory) out.append(e);
    for (const auto& e : run.baselines) out.append(e);
    train(out, 1, 20);
    out.append(run.samples[0]);
    EXPECT_EQ(read_metrics(folder / "metrics.jsonl").steps.size(), 20u) << "an appended event is in the file at once";
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

TEST(Metrics, IgnoresAndRemovesALastLineTornAtAnyByte) {
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

TEST(Metrics, ATornOnlyLineLeavesAnEmptyFile) {
  const TempFolder folder;
  put(folder / "m.jsonl", "{\"kind\":\"ru");
  const MetricsWriter out(folder / "m.jsonl");
  EXPECT_EQ(fs::file_size(folder / "m.jsonl"), 0u);
}

TEST(Metrics, AResumedFileEqualsAnUninterruptedOne) {
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

// A run resumed in another layout has other ranks; with only another length it has the same ones.
TEST(Metrics, RecordsMemoryAnewInAnotherLayout) {
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

TEST(Metrics, TruncateKeepsUnknownKindsAndNamesDamagedLines) {
  const TempFolder folder;
  const std::string known = "{\"kind\":\"gpu\"}\n" + format_event(eval(4)) + "\n";
  put(folder / "m.jsonl", known);
  MetricsWriter(folder / "m.jsonl").truncate_after(4);
  EXPECT_EQ(read_file(folder / "m.jsonl"), known);
  put(folder / "m.jsonl", known + "garbage\n");
  MetricsWriter out(folder / "m.jsonl");
  EXPECT_THROW(out.truncate_after(4), CorruptionError);
}

// Lines that were not flushed before a power failure may read as zeros.
TEST(Metrics, TruncateRemovesZerosAfterTheLastStep) {
  const TempFolder folder;
  const std::string known = format_event(eval(4)) + "\n", zeros(100, '\0');
  put(folder / "m.jsonl", known + zeros + format_event(eval(5)) + "\n");
  MetricsWriter(folder / "m.jsonl").truncate_after(4);
  EXPECT_EQ(read_file(folder / "m.jsonl"), known);
  put(folder / "m.jsonl", zeros + "\n" + known);
  MetricsWriter out(folder / "m.jsonl");
  EXPECT_THROW(out.truncate_after(4), CorruptionError) << "flushed data is damaged";
}

// Save events of step n may follow later steps; samples, evaluations and router records of n precede them.
TEST(Metrics, TruncateCutsAtTheFirstEventOfALaterStep) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  const auto line = [](const Event& event) { return format_event(event) + "\n"; };
  const auto step = [&](int64_t n) { return line(synthetic::step(n, 100, false)); };
  const std::string begin = line(*synthetic::run(20, 2, 4).run) + step(1) + step(2) + line(eval(2)) +
                            "{\"kind\":\"later\",\"step\":99}\n" + line(SampleEvent{2, "a", "b"});
  const std::string end = step(5) + line(SaveEvent{2, 1, 0}) + line(EvalEvent{5, 3, 2, "math"}) + step(6) +
                          line(MeasuredMemoryEvent{{0, {{"weights", 8}}, 12}}) + line(EndEvent{"finished"});
  for (const std::string torn : {"", "{\"kind\":\"st", "\xff"})
    for (const int64_t at : {2, 3, 4}) {  // also a step without a line of its own, as with log_interval
      put(path, begin + end + torn);
      MetricsWriter(path).truncate_after(at);
      EXPECT_EQ(read_file(path), begin) << at;
    }
  put(path, begin + end);
  MetricsWriter(path).truncate_after(5);
  EXPECT_EQ(read_file(path), begin + step(5) + line(SaveEvent{2, 1, 0}) + line(EvalEvent{5, 3, 2, "math"}));
  put(path, begin + end);
  MetricsWriter(path).truncate_after(0);
  EXPECT_EQ(read_file(path), line(*synthetic::run(20, 2, 4).run));
  // A file without step lines, such as samples.jsonl.
  put(path, line(SampleEvent{2, "a", "b"}) + line(SampleEvent{4, "a", "b"}) + line(SampleEvent{4, "c", "d"}));
  MetricsWriter(path).truncate_after(3);
  EXPECT_EQ(read_file(path), line(SampleEvent{2, "a", "b"}));
  put(path, "");
  MetricsWriter(path).truncate_after(3);
  EXPECT_EQ(read_file(path), "");
}

// Truncating checks only what follows the last kept step; check_metrics() finds damage before it.
TEST(Metrics, TruncateReadsFromTheEnd) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  const auto step = [](int64_t n) { return format_event(synthetic::step(n, 100, false)) + "\n"; };
  const std::string begin = step(1) + "garbage\n" + step(2);
  put(path, begin + step(3) + step(4));
  MetricsWriter(path).truncate_after(2);
  EXPECT_EQ(read_file(path), begin);
  EXPECT_THROW(check_metrics(path), CorruptionError);
  check_metrics(path, step(1).size());
  put(path, begin + step(3));
  EXPECT_EQ(bytes_until(path, 2), begin.size());
  EXPECT_EQ(bytes_until(path, 3), fs::file_size(path));
}

TEST(Metrics, CheckFindsLostAndJoinedLines) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  const auto step = [](int64_t n) { return format_event(synthetic::step(n, 100, true)) + "\n"; };
  const auto message = [&](const std::string& text) {
    put(path, text);
    try {
      check_metrics(path);
      return std::string();
    } catch (const CorruptionError& error) {
      return std::string(error.what());
    }
  };
  const std::string at = path.string() + ": byte " + std::to_string(step(1).size()) + ": ";
  const std::string other = "{\"step\": 2, \"kind\": \"sample\", \"prompt\": \"{\\\"kind\\\":\", \"text\": \"\"}\n";
  EXPECT_EQ(message(step(1) + other + step(2) + format_event(synthetic::experts(2, 20, 2, 4)) + "\n" +
                    format_event(eval(2)) + "\n{\"kind\":\"later\"}\n" + step(3).substr(0, 50)),
            "");
  EXPECT_EQ(message(""), "");
  std::string zeros = step(2), joined = step(2);
  zeros.replace(40, 10, 10, '\0');
  joined.replace(40, std::string::npos, step(3));
  for (const std::string& bad : {zeros, joined, step(2).substr(0, 60) + "\n", std::string("\n"), "garbage\n" + step(2)})
    EXPECT_EQ(message(step(1) + bad + step(4)).substr(0, at.size()), at) << bad;
  EXPECT_EQ(message(step(1) + step(1)), at + "step 1 comes after step 1");
  EXPECT_EQ(message(step(1) + format_event(EvalEvent{0, 3, 2, "math"}) + "\n" + format_event(eval(2)) + "\n"), "")
      << "each set has an order of its own";
  EXPECT_NE(message(format_event(eval(2)) + "\n" + format_event(eval(1)) + "\n"), "");
}

TEST(Metrics, FindsTheLastRunEvent) {
  const TempFolder folder;
  RunEvent run = *synthetic::run(20, 2, 4).run;
  MetricsWriter out(folder / "m.jsonl");
  EXPECT_FALSE(last_run_event(folder / "m.jsonl"));
  out.append(run);
  run.total_steps = 40;
  out.append(run);
  train(out, 1, 3);
  EXPECT_EQ(last_run_event(folder / "m.jsonl")->total_steps, 40);
}

// With a file of 50,000 steps.
TEST(Metrics, LimitsMemoryWhenResuming) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  constexpr int64_t kSteps = 50'000;
  {
    AtomicFile file(path);
    for (int64_t n = 1; n <= kSteps; ++n) file.write(format_event(synthetic::step(n, kSteps, true)) + "\n");
    file.commit();
  }
  ASSERT_GT(fs::file_size(path), 18u << 20);
  restart_resident_peak();
  const auto before = read_resident();
  if (!before || before->peak > before->now + (uint64_t{4} << 20))
    GTEST_SKIP() << "the system does not report resident memory";
  MetricsWriter(path).truncate_after(kSteps - 100);
  check_metrics(path);
  last_run_event(path);
  std::ofstream(path, std::ios::app) << "garbage\n";
  EXPECT_THROW(check_metrics(path), CorruptionError);
  EXPECT_EQ(repair_metrics(path, kSteps - 200).count, 1);
  EXPECT_LT(read_resident()->peak, before->now + (uint64_t{8} << 20));
  EXPECT_EQ(read_thinned_metrics(path, 2).steps.back().step, kSteps - 200);
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

TEST(Metrics, ErrorsNameTheDamagedLine) {
  const std::string good = format_event(eval(2)) + "\n";
  expect_corrupt(good + "nonsense\n" + good, "m.jsonl: line 2");
  expect_corrupt(good + "\n", "m.jsonl: line 2");
  expect_corrupt(good + good + "{\"kind\":\"end\"}\n", "line 3: the key \"reason\" is missing");
  expect_corrupt(good + format_event(eval(1)) + "\n", "line 2: step 1 comes after step 2");
  const std::string step = format_event(synthetic::step(3, 10, false)) + "\n";
  expect_corrupt(step + step, "line 2: step 3 comes after step 3");
}

TEST(Metrics, KeepsReadableLinesOfADamagedFile) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  const auto step = [](int64_t n) { return format_event(synthetic::step(n, 10, false)) + "\n"; };
  const std::string good = step(1) + "{\"kind\":\"gpu\"}\n" + step(2) + step(5), bad = step(3).substr(0, 20) + "\n";
  // Keeping the first of the two lines of step 99 would put all that follow out of order.
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

// The process may be killed at any moment: the file must exist at all times.
TEST(Metrics, ExistsThroughoutARepair) {
  const TempFolder folder;
  const fs::path path = folder / "m.jsonl";
  std::atomic<bool> done = false;
  put(path, "damaged\n");
  std::jthread looking([&] {
    while (!done) EXPECT_TRUE(fs::exists(path));
  });
  for (int i = 0; i < 20; ++i) {
    std::ofstream(path, std::ios::app) << "damaged\n";
    EXPECT_EQ(repair_metrics(path, 5).count, i == 0 ? 2 : 1);
  }
  done = true;
}

TEST(Metrics, RefusesFilesThatCannotBeOpened) {
  const TempFolder folder;
  EXPECT_THROW(read_metrics(folder / "missing.jsonl"), IoError);
  EXPECT_THROW(MetricsWriter(folder / "no" / "m.jsonl"), IoError);
  EXPECT_THROW(MetricsWriter{folder.path()}, IoError);
}

// Limits the size of files of this process to `bytes` during its lifetime, to simulate a full disk.
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

TEST(Metrics, LeavesWholeLinesWhenAWriteFails) {
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

using synthetic::TempFolder;

class MetricsScanTest : public ::testing::Test {
 protected:
  // Writes a run with so many steps, with an evaluation after every tenth.
  void write(int64_t steps, bool ends) {
    MetricsWriter out(path_);
    out.append(*synthetic::run(20, 2, 4).run);
    for (int64_t n = 1; n <= steps; ++n) {
      out.append(synthetic::step(n, steps, true));
      out.append(synthetic::experts(n, steps, 2, 4));
      if (n % 10 != 0) continue;
      out.append(EvalEvent{n, 3.0 - 0.001 * static_cast<double>(n), 2});
      out.append(EvalEvent{n, 9, 8, "code"});
    }
    if (ends) out.append(EndEvent{"finished"});
  }
  void put(const std::string& text) const { std::ofstream(path_, std::ios::binary | std::ios::app) << text; }

  TempFolder folder_;
  const fs::path path_ = folder_ / "metrics.jsonl";
};

// Compares with the reader of whole files.
TEST_F(MetricsScanTest, FindsTheLatestEventsOfEachKind) {
  write(57, true);
  const Metrics whole = read_metrics(path_);
  const MetricsStanding standing = read_standing(path_);
  ASSERT_TRUE(standing.run && standing.step && standing.eval && standing.end);
  EXPECT_EQ(standing.run->tokens_per_step, whole.run->tokens_per_step);
  EXPECT_EQ(standing.step->step, 57);
  EXPECT_EQ(standing.step->loss, whole.steps.back().loss);
  EXPECT_EQ(standing.eval->step, 50);
  EXPECT_EQ(standing.eval->loss, whole.evals.back().loss) << "not that of a custom evaluation set";
  EXPECT_EQ(standing.end->reason, "finished");
}

TEST_F(MetricsScanTest, TreatsStepsAfterAnEndAsAResumedRun) {
  write(3, true);
  put(format_event(synthetic::step(4, 9, false)) + "\n");
  EXPECT_FALSE(read_standing(path_).end);
  EXPECT_EQ(read_standing(path_).step->step, 4);
}

TEST_F(MetricsScanTest, FindsTheLastSaveBeforeOtherEvents) {
  put("");
  EXPECT_FALSE(read_last_save(path_));
  put(format_event(synthetic::step(1, 9, false)) + "\n");
  EXPECT_FALSE(read_last_save(path_));
  put(format_event(SaveEvent{1, 0.5, 0}) + "\n" + format_event(synthetic::step(2, 9, false)) + "\n" +
      format_event(SaveEvent{2, 0.5, 0}) + "\n{\"kind\":\"save\",\"step\":what}\n{\"kind\":\"save\",\"st");
  ASSERT_TRUE(read_last_save(path_));
  EXPECT_EQ(read_last_save(path_)->step, 2);
}

TEST_F(MetricsScanTest, IgnoresTornLines) {
  write(3, false);
  put(R"({"kind":"step","step":4,"lo)");
  EXPECT_EQ(read_standing(path_).step->step, 3);
  EXPECT_EQ(read_losses(path_).training.size(), 3u);
}

TEST_F(MetricsScanTest, ReadsEmptyFiles) {
  put("");
  const MetricsStanding standing = read_standing(path_);
  EXPECT_FALSE(standing.run || standing.step || standing.eval || standing.end);
  EXPECT_TRUE(read_losses(path_).training.empty());
  put("\n");
  EXPECT_FALSE(read_standing(path_).step);
}

TEST_F(MetricsScanTest, LossesMatchThoseOfTheWholeFile) {
  write(57, true);
  const Metrics whole = read_metrics(path_);
  const LossCurves losses = read_losses(path_);
  ASSERT_EQ(losses.training.size(), whole.steps.size());
  for (size_t i = 0; i < whole.steps.size(); ++i)
    EXPECT_EQ(losses.training[i], (Point{static_cast<double>(whole.steps[i].step), whole.steps[i].loss}));
  ASSERT_EQ(losses.validation.size(), whole.evals.size());
  EXPECT_EQ(losses.validation.back(), (Point{50, whole.evals.back().loss}));
}

// Other programs may write blanks and another order of keys; non-finite losses are null.
TEST_F(MetricsScanTest, ParsesLinesOfOtherWriters) {
  StepEvent bad = synthetic::step(1, 9, false);
  bad.loss = NAN;
  put(format_event(bad) + "\n");
  std::string line = format_event(synthetic::step(2, 9, false));
  line.replace(line.find(R"("step":2)"), 8, R"("step": 2)");
  put(line + "\n" + R"({"kind":"eval","bits_per_byte":1,"loss":2.5,"step":2})" + "\n");
  const LossCurves losses = read_losses(path_);
  ASSERT_EQ(losses.training.size(), 1u);
  EXPECT_EQ(losses.training[0], (Point{2, synthetic::step(2, 9, false).loss}));
  EXPECT_EQ(losses.validation, (Curve{{2, 2.5}}));
}

TEST_F(MetricsScanTest, ReportsTheByteOfDamageAndSkipsIt) {
  write(2, false);
  EXPECT_EQ(read_standing(path_).damage, "");
  const std::string at = "byte " + std::to_string(fs::file_size(path_));
  put("{\"kind\":\"step\",\"step\":what}\n");
  const MetricsStanding standing = read_standing(path_);
  EXPECT_NE(standing.damage.find(at), std::string::npos) << standing.damage;
  ASSERT_TRUE(standing.step);
  EXPECT_EQ(standing.step->step, 2);
  const LossCurves losses = read_losses(path_);
  EXPECT_NE(losses.damage.find(at), std::string::npos) << losses.damage;
  EXPECT_EQ(losses.training.size(), 2u);
}

TEST_F(MetricsScanTest, ThinningKeepsTheLastStepAndAllEvaluations) {
  write(57, true);
  const Metrics whole = read_metrics(path_), thinned = read_thinned_metrics(path_, 10);
  EXPECT_LE(thinned.steps.size(), 10u);
  EXPECT_GE(thinned.steps.size(), 9u);
  EXPECT_EQ(thinned.steps.back().step, 57);
  EXPECT_LE(thinned.experts.size(), 10u);
  EXPECT_EQ(thinned.experts.back().step, 57);
  EXPECT_EQ(thinned.evals.size(), whole.evals.size());
  EXPECT_EQ(thinned.end->reason, "finished");
  EXPECT_EQ(read_thinned_metrics(path_, 57).steps.size(), 57u);
  EXPECT_EQ(read_thinned_metrics(path_, 1).steps.size(), 1u);
}

TEST_F(MetricsScanTest, ThinningKeepsTheFirstSteps) {
  write(1000, true);
  const Metrics thinned = read_thinned_metrics(path_, 150);
  ASSERT_LE(thinned.steps.size(), 150u);
  EXPECT_GE(thinned.steps.size(), 130u);
  for (int64_t n = 1; n <= 3; ++n) EXPECT_EQ(thinned.steps[static_cast<size_t>(n - 1)].step, n);
  for (size_t i = 4; i < thinned.steps.size(); ++i)
    EXPECT_EQ(thinned.steps[i].step - thinned.steps[i - 1].step, 7) << i;
  EXPECT_EQ(thinned.steps.back().step, 1000);
}

}  // namespace
}  // namespace witan
