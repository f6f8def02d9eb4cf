// Compares measured steps on H100s and H200s with their predictions for these GPUs. The figures are those of
// docs/performance.md and docs/performance-log.md; each states whether the typical speeds were fitted to it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "witan/base/config/fields.h"
#include "witan/planner/plan.h"
#include "witan/planner/speeds/cluster.h"
#include "witan/planner/time/step_time.h"

namespace witan {
namespace {

constexpr double kPromise = 0.10;  // largest error relative to the measured time

enum class Use : uint8_t { fitted, held_out };

struct Reference {
  const char* name;
  const char* recipe;  // path below recipes/
  const char* gpu;
  int64_t gpus;
  double milliseconds;
  Use use;
  std::function<void(RunConfig&)> change = {};
};

constexpr const char *kDense = "reference/dense.toml", *kMoe = "reference/moe.toml",
                     *kQwen = "presets/qwen3-30b-a3b.toml";

std::function<void(RunConfig&)> batches(int64_t global, int64_t micro, std::function<void(RunConfig&)> change = {}) {
  return [=](RunConfig& config) {
    config.train.global_batch_size = global;
    config.train.micro_batch_size = micro;
    if (change) change(config);
  };
}
void experts_over_all(RunConfig& config) {
  config.parallel.expert_model_parallel_size = config.parallel.ranks;
}
void distributed_optimizer(RunConfig& config) {
  config.parallel.use_distributed_optimizer = true;
}
void fsdp(RunConfig& config) {
  config.parallel.data_parallel_sharding_strategy = "optim_grads_params";
}
void pipeline(RunConfig& config) {
  config.parallel.pipeline_model_parallel_size = config.parallel.ranks;
}
std::function<void(RunConfig&)> tensor(int64_t ranks, bool peer_memory) {
  return [=](RunConfig& config) {
    config.parallel.tensor_model_parallel_size = ranks;
    config.parallel.sequence_parallel = true;
    config.parallel.peer_memory = peer_memory;
  };
}
std::function<void(RunConfig&)> overlapping(std::function<void(RunConfig&)> layout) {
  return [=](RunConfig& config) {
    layout(config);
    config.parallel.tp_comm_overlap = true;
  };
}
std::function<void(RunConfig&)> context(int64_t ranks, const char* exchange = "p2p") {
  return [=](RunConfig& config) {
    config.parallel.context_parallel_size = ranks;
    config.parallel.cp_comm_type = exchange;
  };
}
std::function<void(RunConfig&)> layers(int64_t number, std::function<void(RunConfig&)> change = {}) {
  return [=](RunConfig& config) {
    config.model.num_layers = number;
    if (change) change(config);
  };
}
std::function<void(RunConfig&)> optimizer(const char* name) {
  return [=](RunConfig& config) { config.optimizer.optimizer = name; };
}
void wide_gradients(RunConfig& config) {
  config.parallel.gradient_dtype = "float32";
}
void narrow_gradients(RunConfig& config) {
  config.parallel.gradient_dtype = "bfloat16";
}
// GEMMs compute the block sums for the norm, as on GPUs today.
std::function<void(RunConfig&)> fused(std::function<void(RunConfig&)> change = {}) {
  return [=](RunConfig& config) {
    config.parallel.gradient_norm_fusion = "auto";
    if (change) change(config);
  };
}
void narrow_moments(RunConfig& config) {
  config.optimizer.exp_avg_dtype = config.optimizer.exp_avg_sq_dtype = "bfloat16";
}

// Most steps were measured before GEMMs computed block sums, and are predicted without them. Tensor-parallel steps on
// H200s were measured when NCCL carried their collectives, as it does today with WITAN_COMM_PEERS=0.
const std::vector<Reference>& references() {
  static const std::vector<Reference> all = {
      {"dense", kDense, "h200", 1, 41.1, Use::fitted},
      {"dense", kDense, "h100", 1, 43.4, Use::held_out},
      {"experts on one GPU", kMoe, "h200", 1, 79.6, Use::fitted},
      {"experts on one GPU", kMoe, "h100", 1, 95.0, Use::held_out},
      {"experts on one GPU, gradients in float32", kMoe, "h100", 1, 104.9, Use::held_out, wide_gradients},
      {"experts on one GPU, 12 layers", kMoe, "h100", 1, 54.0, Use::held_out, layers(12)},
      {"experts on one GPU, Muon", kMoe, "h200", 1, 151.4, Use::fitted, optimizer("muon")},
      {"dense, Muon", kDense, "h200", 1, 43.1, Use::held_out, optimizer("muon")},
      {"dense, Lion", kDense, "h200", 1, 41.1, Use::held_out, optimizer("lion")},
      {"dense, AdEMAMix", kDense, "h200", 1, 42.4, Use::held_out, optimizer("ademamix")},
      {"experts over 2", kMoe, "h200", 2, 67.8, Use::fitted, batches(16, 8, experts_over_all)},
      {"experts over 2", kMoe, "h100", 2, 77.8, Use::held_out, batches(16, 8, experts_over_all)},
      {"experts over 4", kMoe, "h200", 4, 63.1, Use::fitted, batches(32, 8, experts_over_all)},
      {"experts on one GPU, fused norm", kMoe, "h100", 1, 92.8, Use::held_out, fused()},
      {"the same, moments in bfloat16", kMoe, "h100", 1, 80.7, Use::held_out, fused(narrow_moments)},
      {"experts over 2, fused norm", kMoe, "h100", 2, 74.9, Use::held_out, batches(16, 8, fused(experts_over_all))},
      {"experts over 4, fused norm", kMoe, "h100", 4, 67.5, Use::held_out, batches(32, 8, fused(experts_over_all))},
      {"distributed optimizer over 2", kDense, "h200", 2, 42.9, Use::held_out, batches(16, 8, distributed_optimizer)},
      {"distributed optimizer over 4", kDense, "h200", 4, 41.6, Use::fitted, batches(32, 8, distributed_optimizer)},
      {"FSDP over 4", kDense, "h200", 4, 44.4, Use::fitted, batches(32, 8, fsdp)},
      {"pipeline 4", kDense, "h200", 4, 86.1, Use::held_out, batches(32, 4, pipeline)},
      {"tensor 2 x replicate 2, NCCL", kDense, "h200", 4, 87.7, Use::fitted, batches(32, 8, tensor(2, false))},
      {"tensor 4, NCCL", kDense, "h200", 4, 144, Use::held_out, batches(32, 8, tensor(4, false))},
      {"tensor 2", kDense, "h100", 2, 67.3, Use::fitted, batches(16, 8, tensor(2, true))},
      {"tensor 2, half the batch", kDense, "h100", 2, 34.3, Use::held_out, batches(8, 8, tensor(2, true))},
      {"tensor 2, one micro-batch", kDense, "h200", 2, 54.9, Use::held_out, batches(16, 16, tensor(2, true))},
      {"tensor 2, one micro-batch, overlap", kDense, "h200", 2, 53.1, Use::held_out,
       batches(16, 16, overlapping(tensor(2, true)))},
      {"tensor 4, one micro-batch", kDense, "h200", 4, 86.2, Use::held_out, batches(32, 32, tensor(4, true))},
      {"tensor 4, one micro-batch, overlap", kDense, "h200", 4, 64.7, Use::held_out,
       batches(32, 32, overlapping(tensor(4, true)))},
      {"context 4", kDense, "h200", 4, 137, Use::fitted, batches(32, 8, context(4))},
      {"context 2 x replicate 2", kDense, "h200", 4, 64.3, Use::held_out, batches(32, 8, context(2))},
      {"context 2 by heads", kDense, "h100", 2, 51.2, Use::held_out, batches(16, 16, context(2, "a2a"))},
      {"context 2 by heads", kDense, "h200", 2, 47.5, Use::held_out, batches(16, 16, context(2, "a2a"))},
      {"context 4 by heads", kDense, "h200", 4, 50.8, Use::held_out, batches(32, 32, context(4, "a2a"))},
      {"GPT-2", "presets/gpt2-124m.toml", "h200", 1, 114.1, Use::held_out, batches(64, 64)},
      {"Qwen3, 6 layers", kQwen, "h200", 1, 186, Use::fitted, batches(4, 4, layers(6))},
      {"Qwen3, 6 layers, 4 micro-batches", kQwen, "h200", 1, 646, Use::held_out, batches(16, 4, layers(6))},
      {"Qwen3, 5 layers, fused norm", kQwen, "h100", 1, 164.1, Use::held_out,
       batches(4, 4, layers(5, fused(narrow_gradients)))},
      {"Qwen3, 8 layers", kQwen, "h200", 1, 230, Use::held_out, batches(4, 4, layers(8))},
      {"Qwen3, 12 layers, experts over 2", kQwen, "h200", 2, 323, Use::held_out,
       batches(8, 4, layers(12, experts_over_all))},
  };
  return all;
}

ResolvedConfig config_of(const Reference& reference) {
  RunConfig config;
  read_toml(config.fields(), cat(WITAN_SOURCE_DIR "/recipes/", reference.recipe));
  config.train.sample_tokens = 0;
  config.parallel.device = "cuda";
  config.parallel.ranks = reference.gpus;
  config.parallel.threads = 1;
  config.parallel.gradient_norm_fusion = "false";
  config.parallel.peer_islands.assign(static_cast<size_t>(reference.gpus), 0);
  if (reference.change) reference.change(config);
  return resolve(config, {});
}

double predicted_milliseconds(const Reference& reference) {
  const ResolvedConfig config = config_of(reference);
  const GpuModel& gpu = find_gpu(reference.gpu);
  const Cluster cluster{gpu, 8, gpu.link_bytes_s, 50e9};
  const Plan plan = make_plan(config, {.ranks = PlanOptions::Ranks::by_class, .spread = true});
  const Ceilings ceilings = cluster.ceilings({"bfloat16", static_cast<int>(reference.gpus), 1});
  return 1e3 * predict_step(plan, config, ceilings, &cluster).seconds;
}

TEST(ReferenceLayouts, ArePredictedWithinTenPercent) {
  for (const Reference& reference : references()) {
    const double predicted = predicted_milliseconds(reference), ratio = predicted / reference.milliseconds;
    EXPECT_NEAR(ratio, 1, kPromise) << reference.name << " on " << reference.gpu << ": predicted " << predicted
                                    << " ms, measured " << reference.milliseconds;
    std::printf("  %-42s %s  measured %6.1f  predicted %6.1f ms  %+5.1f %%  %s\n", reference.name, reference.gpu,
                reference.milliseconds, predicted, 100 * (ratio - 1),
                reference.use == Use::fitted ? "fitted" : "held out");
  }
}

// Predicting only the steps to which the speeds were fitted would prove nothing.
TEST(ReferenceLayouts, HalfAreHeldOutFromFitting) {
  const auto held_out = std::ranges::count(references(), Use::held_out, &Reference::use);
  EXPECT_GE(2 * held_out, std::ssize(references()));
}

// The layouts of four H200s are ordered by measured time.
TEST(ReferenceLayouts, AreRankedLikeTheirMeasurements) {
  std::vector<std::pair<double, double>> times;  // measured, predicted
  for (const Reference& one : references())
    if (one.gpus == 4 && std::string(one.recipe) == kDense)
      times.emplace_back(one.milliseconds, predicted_milliseconds(one));
  ASSERT_EQ(times.size(), 10U);
  std::ranges::sort(times);
  for (size_t i = 1; i < times.size(); ++i)
    if (times[i].first > 1.05 * times[i - 1].first) {
      EXPECT_GT(times[i].second, times[i - 1].second) << times[i - 1].first << " and " << times[i].first << " ms";
    }
}

}  // namespace
}  // namespace witan
