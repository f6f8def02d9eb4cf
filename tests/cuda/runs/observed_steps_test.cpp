// Observations of steps on GPUs: statistics of activations, and traces, of steps that are one recorded graph.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "cuda/runs/engine_support.h"
#include "support/run_files.h"
#include "support/temp_folder.h"
#include "witan/train/trace/step_tracer.h"

namespace witan::testing {
namespace {

using Json = nlohmann::json;

class ObservedOnGpus : public EngineOnGpus {};

TEST_F(ObservedOnGpus, ActivationsAgreeWithTheCpu) {
  RunConfig config = gpu_config("float64");
  config.log.log_activations = 1;
  const Trajectory gpu = run_engine(config, 4), cpu = on_cpu(config, 4);
  ASSERT_EQ(gpu.activations.size(), 4u * 7 * 2);
  expect_near(gpu.activations, cpu.activations, 1e-9);
  EXPECT_EQ(gpu.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
}

// Steps 2, 4 and 6 use another graph than steps 3 and 5, and must measure the same as a run of that graph alone.
TEST_F(ObservedOnGpus, MeasuringChangesNoBitOfTraining) {
  RunConfig config = gpu_config("bfloat16");
  config.parallel.deterministic = true;
  const Trajectory none = run_engine(config, 6);
  config.log.log_activations = 2;
  const Trajectory some = run_engine(config, 6);
  config.log.log_activations = 1;
  const Trajectory all = run_engine(config, 6);
  const auto unmeasured = [](Trajectory trajectory) {
    trajectory.activations.clear();
    return trajectory;
  };
  expect_same_bits(unmeasured(some), none);
  expect_same_bits(unmeasured(all), none);
  ASSERT_EQ(some.activations.size(), 3u * 14);
  ASSERT_EQ(all.activations.size(), 6u * 14);
  for (size_t line = 0; line < 3; ++line)
    for (size_t i = 0; i < 14; ++i) {
      const double value = some.activations[line * 14 + i];
      EXPECT_TRUE(std::isfinite(value));
      EXPECT_EQ(value, all.activations[(2 * line + 1) * 14 + i]) << "line " << line << ", " << i;
    }
}

struct Traced {
  std::vector<double> losses;
  Json events;
};

// Trains eight steps, some of which are traced.
Traced traced(const RunConfig& given, const std::optional<StepRange>& range) {
  const ResolvedConfig config = resolve(given, {});
  const int ranks = static_cast<int>(config->parallel.ranks);
  const Layout layout(config->parallel, ranks, config->model.moe.num_experts);
  const int64_t arena = make_plan(config).arena_bytes();
  const test::TempFolder temp;
  const RunFolder folder(temp.path(), "a");
  Traced found;
  ThreadWorld world(ranks);
  world.run([&](int rank) {
    ThreadPool pool(1);
    Stream stream(device_of(*config, rank), reserve_arena(device_of(*config, rank), arena), pool);
    const Groups groups = make_groups(world, layout, rank, stream, sums_of(*config));
    Engine engine(stream, groups, config);
    StepTracer tracer(world, folder, groups, stream, range);
    tracer.note_launches([&](LaunchTrace* launches) { engine.note_launches(launches); });
    for (int64_t step = 0; step < 8; ++step) {
      tracer.before_step(step + 1);
      const StepResult result = engine.step(own_batches(*config, layout, rank, step), step + 1, step);
      tracer.after_step(step + 1);
      if (rank == 0) found.losses.push_back(result.loss);
    }
  });
  if (range) found.events = events_of(folder.trace());
  return found;
}

void expect_whole(const Json& events, int rank, size_t steps) {
  const auto kernels = slices(events, rank, "computation"), of_steps = slices(events, rank, "steps");
  ASSERT_EQ(of_steps.size(), steps);
  double before = 0, busy = 0;
  std::set<std::string> modules;
  for (const Json& kernel : kernels) {
    EXPECT_GE(kernel["ts"].get<double>(), before - 1) << kernel << ": one after the other, to a microsecond";
    EXPECT_GE(kernel["dur"].get<double>(), 0) << kernel;
    before = kernel["ts"].get<double>() + kernel["dur"].get<double>();
    busy += kernel["dur"].get<double>();
    modules.insert(kernel["args"].value("module", ""));
  }
  double steps_us = 0;
  for (const Json& step : of_steps) steps_us += step["dur"].get<double>();
  EXPECT_LT(busy, steps_us) << "kernels take no longer than their steps";
  EXPECT_GT(busy, 0);
  EXPECT_TRUE(modules.contains("layers.1.attention")) << "names of the model";
  // Each lies within a step, up to the inaccuracy of two clocks.
  constexpr double kApart = 200;
  EXPECT_GE(kernels.front()["ts"].get<double>(), of_steps.front()["ts"].get<double>() - kApart);
  EXPECT_LE(before, of_steps.back()["ts"].get<double>() + of_steps.back()["dur"].get<double>() + kApart);
  EXPECT_GT(std::count_if(events.begin(), events.end(), [](const Json& event) { return event["ph"] == "C"; }), 10)
      << "memory over time";
}

// Traces from the first, eager step on into replays, and replays alone after others. No bit changes, not even in the
// steps after the trace.
TEST_F(ObservedOnGpus, RecordedStepsAreTracedKernelByKernel) {
  RunConfig config = gpu_config("bfloat16");
  config.parallel.deterministic = true;
  const Traced plain = traced(config, std::nullopt);
  for (const StepRange& range : {StepRange{1, 3}, StepRange{4, 6}}) {
    SCOPED_TRACE(range.first);
    const Traced seen = traced(config, range);
    EXPECT_EQ(seen.losses, plain.losses);
    expect_whole(seen.events, 0, 3);
    // Each step has the same kernels.
    std::map<std::string, int> names;
    for (const Json& kernel : slices(seen.events, 0, "computation")) ++names[kernel["name"]];
    EXPECT_GT(names.size(), 20u);
    for (const auto& [name, count] : names) EXPECT_EQ(count % 3, 0) << name;
  }
}

TEST_F(ObservedOnGpus, EagerStepsAreTraced) {
  RunConfig config = gpu_config("bfloat16");
  config.parallel.cuda_graph = false;
  const Traced seen = traced(config, StepRange{2, 3});
  expect_whole(seen.events, 0, 2);
}

TEST_F(ObservedOnGpus, TracesIncludeTheMeasuringOfActivations) {
  RunConfig config = gpu_config("bfloat16");
  config.log.log_activations = 2;
  const Traced seen = traced(config, StepRange{3, 6});
  int measured = 0;
  for (const Json& kernel : slices(seen.events, 0, "computation")) measured += kernel["name"] == "activation_moments";
  EXPECT_EQ(measured, 2 * 4 * 2 * 3) << "in two steps, four micro-batches, two layers, three activations";
}

TEST_F(ObservedOnGpus, TracesShowCollectivesAndSideStreamsOfRanks) {
  if (cuda::devices() < 2) GTEST_SKIP() << "two GPUs are needed";
  RunConfig config = gpu_config("bfloat16");
  config.parallel.ranks = 2;
  config.parallel.expert_model_parallel_size = 2;
  const Traced plain = traced(config, std::nullopt), seen = traced(config, StepRange{3, 4});
  EXPECT_EQ(seen.losses.size(), plain.losses.size());
  for (const int rank : {0, 1}) {
    expect_whole(seen.events, rank, 2);
    size_t calls = 0;
    for (const char* track : {"communication", "beside 1"})
      for (const Json& call : slices(seen.events, rank, track)) calls += call["args"].contains("axis") ? 1 : 0;
    EXPECT_GT(calls, 2u);
  }
}

}  // namespace
}  // namespace witan::testing
