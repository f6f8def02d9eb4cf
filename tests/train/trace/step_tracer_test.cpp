#include "witan/train/trace/step_tracer.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "support/message_of.h"
#include "support/rank.h"
#include "support/run_files.h"
#include "support/temp_folder.h"
#include "support/thread_world.h"
#include "train/step/run_support.h"

namespace witan {
namespace {

using Json = nlohmann::json;
using test::message_of;
using testing::events_of;
using testing::on_ranks;
using testing::own_batches;
using testing::slices;
using testing::small_config;
using testing::ThreadRank;

RunConfig traced_config() {
  RunConfig config = small_config();
  config.parallel = {4, 2, 1};
  config.validate();
  return config;
}

struct Expected {
  double flops = 0, bytes_sent = 0;
};

// Three steps, some of which are traced. A rank may fail at the end of the second one.
std::vector<Expected> run(const RunFolder& folder, const StepRange& range, int failing = -1) {
  const RunConfig config = traced_config();
  const Layout layout(config.parallel, 4, config.model.moe.num_experts);
  std::vector<Expected> expected(4);
  ThreadWorld world(4, {.deadline_seconds = 20});
  world.run([&](int rank) {
    ThreadPool pool(1);
    Stream stream({Device::Kind::cpu}, Arena::reserve(int64_t{1} << 28), pool);
    const Groups groups = make_groups(world, layout, rank);
    Engine engine(stream, groups, resolve(config, {}));
    StepTracer tracer(world, folder, groups, stream, range);
    for (int64_t step = 0; step < 3; ++step) {
      stream.reset_costs();
      for (Group* group : groups.all()) group->reset_sent();
      tracer.before_step(step + 1);
      { const StepTracer::Wait wait(tracer, "data"); }
      if (step == 1 && rank == failing) throw DataError("no more text");
      engine.step(own_batches(config, layout, rank, step), step + 1, step);
      tracer.after_step(step + 1);
      if (step + 1 < range.first || step + 1 > range.last) continue;
      Expected& own = expected[static_cast<size_t>(rank)];
      own.flops += stream.flops();
      for (const Group* group : groups.all())
        for (const auto& [operation, bytes] : group->sent()) own.bytes_sent += bytes;
    }
    tracer.finish();
  });
  return expected;
}

double sum(const std::vector<Json>& slices, const char* arg) {
  double sum = 0;
  for (const Json& slice : slices) sum += slice["args"][arg].get<double>();
  return sum;
}

TEST(StepTracer, HasAllKernelsAndCallsOfTheStepsOnAllRanks) {
  const test::TempFolder temp;
  const RunFolder folder(temp.path(), "a");
  const auto expected = run(folder, {2, 3});
  const Json events = events_of(folder.trace());
  for (int rank = 0; rank < 4; ++rank) {
    const auto kernels = slices(events, rank, "computation"), calls = slices(events, rank, "communication");
    const Expected& own = expected[static_cast<size_t>(rank)];
    EXPECT_GT(own.flops, 0);
    EXPECT_NEAR(sum(kernels, "flops"), own.flops, 1e-6 * own.flops);
    EXPECT_NEAR(sum(calls, "bytes_sent"), own.bytes_sent, 1e-6 * own.bytes_sent);
    double before = 0;
    for (const Json& kernel : kernels) {
      EXPECT_GE(kernel["ts"].get<double>(), before) << "one after another";
      before = kernel["ts"].get<double>() + kernel["dur"].get<double>() - 1e-2;
    }
    const auto steps = slices(events, rank, "steps");
    ASSERT_EQ(steps.size(), 2u);
    EXPECT_EQ(steps[0]["name"], "step 2");
    EXPECT_LE(steps[0]["ts"].get<double>(), kernels.front()["ts"].get<double>());
    EXPECT_GE(steps[1]["ts"].get<double>() + steps[1]["dur"].get<double>() + 1, before);
    EXPECT_EQ(slices(events, rank, "waits").front()["name"], "data");
  }
}

TEST(StepTracer, NamesThePlaceOfEverySlice) {
  const test::TempFolder temp;
  const RunFolder folder(temp.path(), "a");
  run(folder, {1, 1});
  const Json events = events_of(folder.trace());
  std::set<std::string> modules, axes, passes, names;
  bool in_backward = false;
  for (const Json& kernel : slices(events, 1, "computation"))
    in_backward =
        in_backward || (kernel["args"].value("op", "") == "add_rmsnorm" &&
                        kernel["args"]["module"] == "layers.1.mlp_norm" && kernel["args"]["micro_batch"] == 1);
  for (const Json& module : slices(events, 1, "modules")) modules.insert(module["name"]);
  for (const Json& call : slices(events, 1, "communication")) axes.insert(call["args"]["axis"]);
  for (const Json& pass : slices(events, 1, "passes")) passes.insert(pass["name"]);
  for (const Json& event : events)
    if (event["name"] == "process_name") names.insert(event["args"]["name"]);
  EXPECT_TRUE(in_backward);
  EXPECT_TRUE(modules.contains("layers.0.attention"));
  EXPECT_TRUE(modules.contains("layers.1.moe.router"));
  EXPECT_TRUE(axes.contains("expert"));
  EXPECT_TRUE(passes.contains("forward of micro-batch 1"));
  EXPECT_TRUE(passes.contains("optimizer"));
  EXPECT_EQ(names, (std::set<std::string>{"rank 0: replicate 0", "rank 1: replicate 1", "rank 2: replicate 2",
                                          "rank 3: replicate 3"}));
  const auto is_memory = [](const Json& event) { return event["ph"] == "C" && event["args"]["weights"] > 0; };
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), is_memory));
}

TEST(StepTracer, OfAFailedRunIsCompleteAndShowsTheUnfinishedCall) {
  const test::TempFolder temp;
  const RunFolder folder(temp.path(), "a");
  EXPECT_EQ(message_of<DataError>([&] { run(folder, {1, 3}, /*failing=*/2); }), "rank 2: no more text");
  EXPECT_FALSE(fs::exists(folder.trace())) << "the process that runs the ranks merges them";
  merge_traces(folder, 4);
  const Json events = events_of(folder.trace());
  for (const int rank : {0, 1, 3}) {
    const auto calls = slices(events, rank, "communication");
    ASSERT_FALSE(calls.empty());
    EXPECT_EQ(calls.back()["args"].value("ended", true), false);
    EXPECT_EQ(slices(events, rank, "steps").size(), 1u);
  }
  remove_traces(folder);
  EXPECT_FALSE(fs::exists(folder.trace()));
  merge_traces(folder, 4);
  EXPECT_FALSE(fs::exists(folder.trace())) << "nothing to merge";
}

TEST(StepTracer, AKilledRunLeavesWholeSteps) {
  const test::TempFolder temp;
  const RunFolder folder(temp.path(), "a");
  const RunConfig config = small_config();
  const Layout layout(config.parallel, 1, config.model.moe.num_experts);
  ThreadWorld world(1);
  world.run([&](int rank) {
    testing::Rank own(1);
    const Groups groups = make_groups(world, layout, rank);
    Engine engine(own.stream, groups, resolve(config, {}));
    StepTracer tracer(world, folder, groups, own.stream, StepRange{1, 9});
    tracer.before_step(1);
    engine.step(own_batches(config, layout, rank, 0), 1, 0);
    tracer.after_step(1);
    EXPECT_EQ(slices(events_of(folder.traces() / "rank-0.json"), 0, "steps").size(), 1u) << "eight more follow";
  });
}

TEST(StepTracer, WithoutARangeNothingIsTraced) {
  const test::TempFolder temp;
  const RunFolder folder(temp.path(), "a");
  run(folder, {7, 9});
  EXPECT_FALSE(fs::exists(folder.trace()));
  EXPECT_FALSE(fs::exists(folder.traces()));
}

TEST(Clocks, OfOneHostAreEqual) {
  on_ranks(3, [](ThreadRank& rank) { EXPECT_EQ(first_clock_ahead_ns(rank.stream, *rank.everyone()), 0); });
}

TEST(Clocks, DifferencesAreEstimatedFromRoundTrips) {
  constexpr int64_t kSecond = 1'000'000'000;
  on_ranks(3, [&](ThreadRank& rank) {
    const auto clock = [&] { return steady_ns() + rank.rank * 7 * kSecond; };
    const int64_t ahead = first_clock_ahead_ns(rank.stream, *rank.everyone(), clock);
    EXPECT_NEAR(static_cast<double>(ahead), -7e9 * rank.rank, 0.2e9) << "a busy machine's round trip";
  });
}

// The traces of hosts with different clocks begin at a common moment.
TEST(Clocks, MapACommonMomentToEachClock) {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t before = steady_ns();
  on_ranks(3, [&](ThreadRank& rank) {
    const int64_t skew = rank.rank * 7 * kSecond;
    const int64_t moment = common_moment_ns(rank.stream, *rank.everyone(), [&] { return steady_ns() + skew; });
    EXPECT_GE(moment - skew, before - kSecond);
    EXPECT_LE(moment - skew, steady_ns() + kSecond) << "a busy machine's round trip";
  });
}

}  // namespace
}  // namespace witan
