// How the time of a training step grows with experts, sequence length, layers and ranks, each varied alone in the
// default recipe. Prints a table for each: the median wall time and the minimum processor time (all threads) of a step,
// which other load disturbs little. Arguments: the tables wanted; none: all.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "witan/base/threads/threads.h"
#include "witan/comm/threads/threads.h"
#include "witan/planner/plan.h"
#include "witan/planner/speeds/random_batch.h"
#include "witan/train/step/engine.h"

namespace witan {
namespace {

constexpr int kWarmUp = 2, kSteps = 7;

struct Times {
  double wall_ms = 0, processor_ms = 0;
};

// Every rank is a thread with its own thread pool; rank 0 measures time.
Times measure(const RunConfig& config, const Plan& plan) {
  const auto ranks = static_cast<int>(config.parallel.ranks);
  ThreadWorld world(ranks);
  const Layout layout(config.parallel, ranks, config.model.moe.num_experts);
  std::vector<double> wall, processor;
  world.run([&](int rank) {
    ThreadPool pool(static_cast<int>(config.parallel.threads));
    Stream stream({Device::Kind::cpu}, Arena::reserve(plan.arena_bytes()), pool);
    const Groups groups = make_groups(world, layout, rank);
    Engine engine(stream, groups, resolve(config, {}));
    std::vector<Batch> batches;
    for (int64_t i = 0; i < config.micro_batches() / ranks; ++i)
      batches.push_back(random_batch(config, static_cast<uint64_t>(rank * 1000 + i)));
    for (int step = 0; step < kWarmUp + kSteps; ++step) {
      const auto start = std::chrono::steady_clock::now();
      const std::clock_t used = std::clock();
      engine.step(batches, step + 1, step);
      if (rank != 0 || step < kWarmUp) continue;
      wall.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
      processor.push_back(1e3 * static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC);
    }
  });
  std::ranges::nth_element(wall, wall.begin() + kSteps / 2);
  return {wall[kSteps / 2], *std::ranges::min_element(processor)};
}

RunConfig default_config() {
  RunConfig config;
  config.model.vocab_size = config.data.bpe.vocab_size;
  config.parallel = {1, 1, 1};
  return config;
}

// A row for each value, after `set(config, value)`.
template <class Set>
void table(const char* what, const std::vector<int64_t>& values, const Set& set) {
  fmt::print("| {} | parameters | tokens of a step | GFLOP | wall | processor | GFLOP/s of processor time |\n", what);
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const int64_t value : values) {
    RunConfig config = default_config();
    set(config, value);
    config.validate();
    const Plan plan = make_plan(resolve(config, {}));
    const Times times = measure(config, plan);
    const double gflop = plan.step_flops * 1e-9;
    fmt::print("| {} | {:.1f} M | {} | {:.1f} | {:.0f} ms | {:.0f} ms | {:.0f} |\n", value,
               static_cast<double>(plan.counts.exact) * 1e-6, plan.tokens_per_step, gflop, times.wall_ms,
               times.processor_ms, gflop / times.processor_ms * 1e3);
    std::fflush(stdout);
  }
  fmt::print("\n");
}

void grow_experts() {
  table("experts, top-2 (2 layers)", {8, 16, 32, 64, 128, 256}, [](RunConfig& config, int64_t experts) {
    config.model.num_layers = 2;  // 256 experts of 4 layers would not fit into small machines
    config.model.moe.num_experts = experts;
  });
}

void grow_sequence() {
  table("sequence length, 4096 tokens", {128, 256, 512, 1024, 2048, 4096}, [](RunConfig& config, int64_t length) {
    config.data.seq_length = length;
    config.train.micro_batch_size = config.train.global_batch_size = 4096 / length;
  });
}

void grow_layers() {
  table("layers", {1, 2, 4, 8, 16}, [](RunConfig& config, int64_t layers) { config.model.num_layers = layers; });
}

// The same work split over ranks: the increase of total processor time is the cost of ranks.
void grow_ranks() {
  table("ranks of one thread, experts sharded", {1, 2, 4, 8}, [](RunConfig& config, int64_t ranks) {
    config.parallel = {ranks, ranks, 1};
    config.train.micro_batch_size = 1;
  });
}

}  // namespace
}  // namespace witan

int main(int argc, char** argv) {
  const auto wanted = [&](const char* name) {
    return argc == 1 || std::any_of(argv + 1, argv + argc, [&](const char* arg) { return !std::strcmp(arg, name); });
  };
  if (wanted("experts")) witan::grow_experts();
  if (wanted("sequence")) witan::grow_sequence();
  if (wanted("layers")) witan::grow_layers();
  if (wanted("ranks")) witan::grow_ranks();
}
