#include "witan/train/trace/launch_trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/temp_folder.h"
#include "train/step/run_support.h"
#include "witan/kernels/common/launch.h"
#include "witan/train/trace/step_tracer.h"

namespace witan {
namespace {

using Json = nlohmann::json;
using testing::own_batches;
using testing::small_config;

// A device whose timestamps the test sets. As in captured work, each replay changes those of the same marks.
class FakeTimestamps : public Timestamps {
 public:
  explicit FakeTimestamps(std::vector<int64_t>& times) : times_(times) {}
  void start(Queue&) override {}
  size_t mark(Queue&) override { return marks_++; }
  std::vector<int64_t> read() override {
    EXPECT_EQ(marks_, times_.size()) << "one for each moment, and only one between consecutive launches";
    return times_;
  }
  void clear() override { marks_ = 0; }

 private:
  std::vector<int64_t>& times_;
  size_t marks_ = 0;
};

// The slices of a track: name, begin and duration in microseconds.
std::vector<std::string> slices(const Json& events, const std::string& track) {
  int number = -1;
  for (const Json& event : events)
    if (event["name"] == "thread_name" && event["args"]["name"] == track) number = event["tid"];
  std::vector<std::string> found;
  for (const Json& event : events)
    if (event["ph"] == "X" && event["tid"] == number)
      found.push_back(
          cat(event["name"].get<std::string>(), " ", event["ts"].get<double>(), " ", event["dur"].get<double>()));
  return found;
}
using Slices = std::vector<std::string>;

Json json_of(RankTrace& trace) {
  return Json::parse(trace.json()).at("traceEvents");
}

struct Fake {
  explicit Fake(std::vector<int64_t> at) : times(std::move(at)), launches(std::make_unique<FakeTimestamps>(times)) {
    main.watch_launches(&launches);
  }
  void launch(Stream& stream, const char* name) {
    kernels::charge(stream, name, {2, 3}, [] {});
  }
  Json written() {
    RankTrace trace(main, 0, "rank 0", 0);
    launches.write(trace);
    return json_of(trace);
  }

  ThreadPool pool{1};
  Stream main{{Device::Kind::cpu}, Arena::reserve(int64_t{1} << 20), pool};
  Stream side{main, 512};
  std::vector<int64_t> times;
  LaunchTrace launches;
};

TEST(LaunchTrace, ALaunchBeginsWhereThePreviousOneEnded) {
  Fake fake({1'000, 3'000, 7'000, 8'000});
  {
    const TraceContextScope scope(fake.main, TraceContext::Phase::forward, 0);
    fake.main.trace_context().module = "layers.0.mlp";
    fake.launch(fake.main, "gemm");
    fake.launch(fake.main, "silu");
    fake.main.trace_context().module = "layers.1.mlp";
    fake.launch(fake.main, "gemm");
  }
  const Json events = fake.written();
  EXPECT_EQ(slices(events, "computation"), (Slices{"gemm 1 2", "silu 3 4", "gemm 7 1"}));
  EXPECT_EQ(slices(events, "modules"), (Slices{"layers.0.mlp 1 6", "layers.1.mlp 7 1"}));
  EXPECT_EQ(slices(events, "passes"), (Slices{"forward of micro-batch 0 1 7"}));
  for (const Json& event : events)
    if (event["name"] == "silu") {
      EXPECT_EQ(event["args"], (Json{{"module", "layers.0.mlp"}, {"micro_batch", 0}, {"flops", 2}, {"bytes", 3}}));
    }
  // Another replay of the same work.
  fake.times = {2'000, 2'500, 2'600, 9'000};
  EXPECT_EQ(slices(fake.written(), "computation"), (Slices{"gemm 2 0.5", "silu 2.5 0.1", "gemm 2.6 6.4"}));
}

// 0, 1: gemm; then the side stream waits for it (2) and reduces (3); silu on the main stream (4), which then waits for
// the side stream (5) and updates (6).
TEST(LaunchTrace, SideStreamsHaveTracksAndWaitsAreShown) {
  Fake fake({0, 10'000, 10'500, 40'000, 20'000, 41'000, 45'000});
  fake.launch(fake.main, "gemm");
  fake.side.follow(fake.main);
  fake.launch(fake.side, "reduce");
  fake.launch(fake.main, "silu");
  fake.main.follow(fake.side);
  fake.launch(fake.main, "update");
  const Json events = fake.written();
  EXPECT_EQ(slices(events, "computation"), (Slices{"gemm 0 10", "silu 10 10", "update 41 4"}));
  EXPECT_EQ(slices(events, "beside 1"), (Slices{"reduce 10.5 29.5"}));
  EXPECT_EQ(slices(events, "waits"), (Slices{"work beside 20 21"}));
}

// In eager steps the host may be late.
TEST(LaunchTrace, UncapturedLaunchesBeginWhenTheyStart) {
  Fake fake({1'000, 2'000, 5'000, 6'000});
  fake.launches.clear(LaunchTrace::Work::queued);
  fake.launch(fake.main, "first");
  fake.launch(fake.main, "second");
  EXPECT_EQ(slices(fake.written(), "computation"), (Slices{"first 1 1", "second 5 1"}));
}

TEST(LaunchTrace, NestedLaunchesAreNested) {
  Fake fake({0, 5'000, 9'000});
  kernels::charge(fake.main, "outer", {}, [&] { fake.launch(fake.main, "inner"); });
  EXPECT_EQ(slices(fake.written(), "computation"), (Slices{"inner 0 5", "outer 0 9"}));
}

// Live memory is recorded when a launch is queued, and shown at the time when the device has reached it.
TEST(LaunchTrace, MemoryFollowsTheLaunch) {
  Fake fake({0, 1'000, 2'000});
  std::optional<Tensor> tensor = fake.main.empty({128}, DType::f32);
  fake.launch(fake.main, "first");
  tensor.reset();
  fake.launch(fake.main, "second");
  std::vector<std::pair<double, int64_t>> live;
  for (const Json& event : fake.written())
    if (event["ph"] == "C") live.emplace_back(event["ts"].get<double>(), event["args"]["activations"].get<int64_t>());
  EXPECT_EQ(live, (std::vector<std::pair<double, int64_t>>{{1, 512}, {2, 0}}));
}

// In steps of four ranks, traces of recorded launches and of observed ones have the same kernels and calls.
TEST(LaunchTrace, RecordedStepsMatchObservedOnes) {
  RunConfig config = small_config();
  config.parallel = {4, 2, 1};
  config.validate();
  std::array<std::map<std::string, int>, 2> kernels, calls;
  for (const bool noted : {false, true}) {
    const test::TempFolder temp;
    const RunFolder folder(temp.path(), "a");
    const Layout layout(config.parallel, 4, config.model.moe.num_experts);
    ThreadWorld world(4, {.deadline_seconds = 20});
    world.run([&](int rank) {
      ThreadPool pool(1);
      Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 28), pool);
      const Groups groups = make_groups(world, layout, rank);
      Engine engine(stream, groups, resolve(config, {}));
      StepTracer tracer(world, folder, groups, stream, StepRange{2, 3});
      if (noted) tracer.note_launches([&](LaunchTrace* launches) { engine.note_launches(launches); });
      for (int64_t step = 0; step < 4; ++step) {
        tracer.before_step(step + 1);
        engine.step(own_batches(config, layout, rank, step), step + 1, step);
        tracer.after_step(step + 1);
      }
    });
    const Json events = Json::parse(read_file(folder.trace())).at("traceEvents");
    std::map<std::pair<int, int>, double> behind;  // by rank and track
    for (const Json& event : events) {
      if (event["ph"] != "X") continue;
      const Json& args = event["args"];
      const std::string key =
          cat(event["pid"].get<int>(), " ", event["name"].get<std::string>(), " ", args.value("module", ""));
      if (args.contains("flops")) ++kernels[noted ? 1 : 0][key];
      if (!args.contains("axis")) continue;
      EXPECT_GT(args["ranks"], 1);
      ++calls[noted ? 1 : 0][key];
    }
    int steps = 0;
    for (const Json& event : events) steps += event["ph"] == "X" && event["name"] == "step 2";
    EXPECT_EQ(steps, 4);
  }
  EXPECT_GT(kernels[0].size(), 50u);
  EXPECT_EQ(kernels[0], kernels[1]);
  EXPECT_GT(calls[0].size(), 10u);
  EXPECT_EQ(calls[0], calls[1]);
}

}  // namespace
}  // namespace witan
