// One whole training step of the default recipe (forward, backward, clip, AdamW) on random tokens, against the measured
// float32 peak of the threads that run it.
#include <benchmark/benchmark.h>

#include "witan/base/threads/threads.h"
#include "witan/kernels/gemm/ceiling.h"
#include "witan/planner/plan.h"
#include "witan/planner/speeds/random_batch.h"
#include "witan/train/step/engine.h"

namespace witan {
namespace {

// Arguments: experts, threads.
void whole_step(benchmark::State& state) {
  RunConfig config;
  config.model.vocab_size = config.data.bpe.vocab_size;
  config.model.moe.num_experts = state.range(0);
  config.parallel = {1, 1, state.range(1)};
  const Plan plan = make_plan(resolve(config, {}));
  ThreadPool pool(static_cast<int>(state.range(1)));
  const double peak = kernels::measure_fma_gflops(pool);
  Stream stream({Device::Kind::cpu}, Arena::reserve(plan.arena_bytes()), pool);
  const Groups groups = make_meta_groups(Layout(config.parallel, 1, config.model.moe.num_experts), 0);
  Engine engine(stream, groups, resolve(config, {}));
  std::vector<Batch> batches;
  for (int64_t i = 0; i < config.micro_batches(); ++i)
    batches.push_back(random_batch(config, static_cast<uint64_t>(i)));
  int64_t step = 0;
  for (auto _ : state) {
    ++step;
    benchmark::DoNotOptimize(engine.step(batches, step, step - 1).loss);
  }
  const double gflop = plan.step_flops * 1e-9;
  state.counters["GFLOP/s"] = benchmark::Counter(gflop, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of peak"] = benchmark::Counter(gflop / peak, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(plan.tokens_per_step), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(whole_step)
    ->ArgNames({"experts", "threads"})
    ->ArgsProduct({{0, 8}, {1, 2}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace witan

BENCHMARK_MAIN();
