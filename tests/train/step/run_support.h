// Runs an engine on thread ranks, on the CPU or a GPU each, with tokens from a counter-based generator.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "witan/base/numbers/rng.h"
#include "witan/base/threads/threads.h"
#include "witan/comm/threads/threads.h"
#include "witan/moe/routers/router.h"
#include "witan/parallel/peers.h"
#include "witan/planner/plan.h"
#include "witan/train/step/device.h"
#include "witan/train/step/engine.h"

namespace witan::testing {

// Micro-batch `number` of the endless stream: skewed random tokens, so that experts are not balanced by chance.
inline Batch random_batch(const RunConfig& config, int64_t number) {
  Batch batch;
  batch.sequences = config.train.micro_batch_size;
  batch.sequence_length = config.data.seq_length;
  const Philox rng(99, static_cast<uint64_t>(number));
  const auto tokens = static_cast<size_t>(batch.sequences * batch.sequence_length);
  const auto token = [&](size_t i) {
    const double u = rng.uniform(i);
    return static_cast<int32_t>(u * u * static_cast<double>(config.model.vocab_size));
  };
  for (size_t i = 0; i < tokens; ++i) {
    batch.tokens.push_back(token(i));
    batch.targets.push_back(token(i + 1));
    // Documents of 5 tokens if they are separated; the last one of a row is cut short.
    const auto place = static_cast<int32_t>(i % static_cast<size_t>(batch.sequence_length));
    batch.positions.push_back(config.data.reset_position_ids ? place % 5 : place);
    batch.sequence_ids.push_back(config.data.reset_attention_mask ? place / 5 : 0);
    // Micro-batches have different numbers of targets.
    batch.loss_mask.push_back((i + static_cast<size_t>(number)) % 7 == 3 ? 0.0f : 1.0f);
  }
  batch.loss_tokens = std::count(batch.loss_mask.begin(), batch.loss_mask.end(), 1.0f);
  return batch;
}

struct Trajectory {
  std::vector<double> losses, norms, dropped;
  std::vector<double> balances, zs;      // the router losses
  std::vector<double> layer_norms;       // for each step the gradient norms of the embedding, the layers and the head
  std::vector<double> activations;       // for each measured step and figure, by layer; -1: none
  std::vector<double> entropies, loads;  // for each MoE layer the router's entropy, and the largest load over the mean
  std::vector<std::vector<double>> weights;     // final global parameters or their codes, and buffers, by name
  std::vector<double> loss_scales, max_logits;  // of float16 models; with QK-clip
  std::vector<int64_t> passes;                  // passes of each rerun step; 1: not rerun
  std::vector<double> exchange_fills;           // for each step rerun with exact counts; 0: not rerun
  int64_t arena_high_water = 0;                 // of the rank that needed most
  int64_t planned_arena = 0;
};

// A rank's micro-batches of a step.
inline std::vector<Batch> own_batches(const RunConfig& config, const Layout& layout, int rank, int64_t step) {
  std::vector<Batch> batches;
  const int64_t own = config.micro_batches() / layout.data_ranks(), first = layout.data_rank(rank) * own;
  for (int64_t j = first; j < first + own; ++j)
    batches.push_back(random_batch(config, step * config.micro_batches() + j));
  return batches;
}

using MakeBatches = std::function<std::vector<Batch>(const RunConfig&, const Layout&, int rank, int64_t step)>;

// The largest difference, relative to the largest value or at least to a step's change: attention does not depend on
// the bias of keys, which is only changed by rounding errors.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double apart = 0, largest = 1e-3;
  for (size_t i = 0; i < a.size(); ++i) {
    apart = std::max(apart, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(a[i]));
  }
  return a.size() == b.size() ? apart / largest : 1;
}

inline void expect_equal(const Trajectory& a, const Trajectory& b, double tolerance, const std::string& what) {
  SCOPED_TRACE(what);
  const auto each_step = [&](const char* figure, const std::vector<double>& of_a, const std::vector<double>& of_b) {
    ASSERT_EQ(of_a.size(), of_b.size());
    for (size_t step = 0; step < of_a.size(); ++step)
      EXPECT_NEAR(of_a[step], of_b[step], tolerance * std::abs(of_a[step])) << figure << " of step " << step;
  };
  each_step("loss", a.losses, b.losses);
  each_step("gradient norm", a.norms, b.norms);
  each_step("gradient norm, layer by layer", a.layer_norms, b.layer_norms);
  each_step("load-balancing loss", a.balances, b.balances);
  each_step("z-loss", a.zs, b.zs);
  each_step("statistics of activations, figure by figure", a.activations, b.activations);
  each_step("router entropy, layer by layer", a.entropies, b.entropies);
  each_step("load, layer by layer", a.loads, b.loads);
  each_step("largest logit", a.max_logits, b.max_logits);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_LE(distance(a.weights[i], b.weights[i]), tolerance) << i;
}

inline void expect_same_bits(const Trajectory& a, const Trajectory& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.balances, b.balances);
  EXPECT_EQ(a.zs, b.zs);
  EXPECT_EQ(a.activations, b.activations);
  EXPECT_EQ(a.loss_scales, b.loss_scales);
  EXPECT_EQ(a.max_logits, b.max_logits);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_TRUE(a.weights[i] == b.weights[i]) << "parameter " << i;
}

// A step's router statistics as an engine reports them, with these values of the model and `counts` of experts.
inline StepStatistics router_values(const MoeConfig& moe, const std::map<std::string, double>& values,
                                    const std::vector<std::vector<double>>& counts = {{1}}) {
  const StatisticsLayout layout(router_statistics(moe), static_cast<int64_t>(counts.front().size()));
  std::vector<std::vector<double>> packed;
  for (const std::vector<double>& layer : counts)
    for (std::vector<double>& one = packed.emplace_back(); const RouterStatistic& statistic : layout.declared()) {
      if (statistic.derived) continue;
      if (statistic.shape == RouterStatistic::Shape::expert)
        one.insert(one.end(), layer.begin(), layer.end());
      else
        one.push_back(0);
    }
  std::vector<StepStatistics::Value> all = StepStatistics(layout, {packed}).values();
  for (StepStatistics::Value& value : all)
    if (const auto given = values.find(value.declared.name); given != values.end()) value.model = given->second;
  return StepStatistics(std::move(all));
}

// Takes `steps` steps of the config on its ranks. batches(config, layout, rank, step) makes the rank's micro-batches.
inline Trajectory run_engine(const RunConfig& given, int64_t steps, const MakeBatches& batches = own_batches) {
  const ResolvedConfig resolved = resolve(given, {});
  const RunConfig& config = *resolved;
  const int ranks = static_cast<int>(config.parallel.ranks);
  const Layout layout(config.parallel, ranks, config.model.moe.num_experts);
  const int64_t arena = make_plan(resolved).arena_bytes();
  ThreadWorld world(ranks);
  Trajectory result;
  std::vector<int64_t> peaks(static_cast<size_t>(ranks));
  std::map<std::string, std::vector<double>> weights;
  std::mutex mutex;
  world.run([&](int rank) {
    ThreadPool pool(static_cast<int>(config.parallel.threads));
    Stream stream(device_of(config, rank), reserve_arena(device_of(config, rank), arena), pool);
    const Groups groups =
        make_groups(world, layout, rank, stream, sums_of(config), peers_of(config.parallel, layout, rank));
    Engine engine(stream, groups, resolved);
    for (int64_t step = 0; step < steps; ++step) {
      const StepResult out = engine.step(batches(config, layout, rank, step), step + 1, step);
      if (rank != 0) continue;
      const auto layers_of = [&](const char* name, std::vector<double>& into) {
        if (const StepStatistics::Value* value = out.router.find(name))
          for (const std::vector<double>& layer : value->layers) into.push_back(layer.front());
      };
      layers_of(kRouterEntropy, result.entropies);
      layers_of(kLoadMaxOverMean, result.loads);
      result.losses.push_back(out.loss);
      result.passes.push_back(out.passes);
      result.exchange_fills.push_back(out.exchange_fill);
      result.norms.push_back(out.gradient_norm);
      const LayerNorms norms = engine.layer_norms(out);
      result.layer_norms.push_back(norms.embedding);
      result.layer_norms.insert(result.layer_norms.end(), norms.layers.begin(), norms.layers.end());
      result.layer_norms.push_back(norms.head);
      for (const auto& [name, layers] : out.activations)
        for (const double value : layers) result.activations.push_back(std::isnan(value) ? -1 : value);
      if (const auto scale = out.scalars.get(kLossScale)) result.loss_scales.push_back(*scale);
      if (const auto logit = out.scalars.get(kMaxAttentionLogit)) result.max_logits.push_back(*logit);
      result.dropped.push_back(out.router.model("dropped_share").value_or(0));
      result.balances.push_back(out.router.model("load_balancing_loss").value_or(0));
      result.zs.push_back(out.router.model("z_loss").value_or(0));
    }
    peaks[static_cast<size_t>(rank)] = stream.arena().high_water();
    for (const StateTensor& tensor : engine.state()) {
      const bool compared = tensor.kind == StateTensor::Kind::value || tensor.kind == StateTensor::Kind::buffer;
      const bool words = tensor.local.dtype() == DType::i32;  // of codes
      if (!tensor.writes || !compared || !(words || is_floating(tensor.local.dtype()))) continue;
      const std::scoped_lock lock(mutex);
      std::vector<double>& whole = weights[tensor.name];
      whole.resize(static_cast<size_t>(tensor.global_shape.elements()));
      const auto read = [&]<class T>() {
        std::vector<T> own(static_cast<size_t>(tensor.local.elements()));
        stream.read(own.data(), tensor.local);
        for (int64_t j = 0; j < tensor.local.elements(); ++j)
          whole[static_cast<size_t>(tensor.region.global(j))] = static_cast<double>(own[static_cast<size_t>(j)]);
      };
      if (words)
        read.template operator()<int32_t>();
      else
        dispatch_floating(tensor.local.dtype(), read);
    }
  });
  for (auto& [name, values] : weights) result.weights.push_back(std::move(values));
  result.planned_arena = arena;
  result.arena_high_water = *std::max_element(peaks.begin(), peaks.end());
  return result;
}

// Runs of the config on one thread and on several threads give the same bits.
inline void expect_repeats(RunConfig config, int64_t steps) {
  const Trajectory first = run_engine(config, steps);
  for (const int64_t threads : {1, 3}) {
    config.parallel.threads = threads;
    SCOPED_TRACE(cat(threads, " threads"));
    expect_same_bits(first, run_engine(config, steps));
  }
}

// A small model with every kind of part, for tests that need many runs.
inline RunConfig small_config() {
  RunConfig config;
  config.model.num_layers = 2;
  config.model.hidden_size = 32;
  config.model.vocab_size = 61;
  config.model.mlp.ffn_hidden_size = 24;
  config.data.seq_length = 12;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 16;
  config.train.train_iters = 30;
  config.train.sample_tokens = 4;
  config.optimizer.lr_warmup_iters = 3;
  config.parallel = {1, 1, 1};
  return config;
}

// With a distributed optimizer and matrices of several chunks, so that owners share them.
inline RunConfig sharded_config(int ranks, int expert_ranks, int instances) {
  RunConfig config = small_config();
  config.model.vocab_size = 6007;
  config.model.mlp.ffn_hidden_size = 1100;
  config.parallel = {ranks, expert_ranks, 1};
  config.parallel.use_distributed_optimizer = true;
  config.parallel.num_distributed_optimizer_instances = instances;
  return config;
}

// The same model, dense and with Megatron-LM's defaults: learned positions, biases, dropout.
inline RunConfig gpt_run_config() {
  RunConfig config = small_config();
  config.model.moe.num_experts = 0;
  config.model.norm.normalization = "LayerNorm";
  config.model.norm.norm_bias = true;
  config.model.mlp.swiglu = false;
  config.model.add_bias_linear = true;
  config.model.hidden_dropout = 0.1;
  config.model.attention.attention_dropout = 0.1;
  config.model.attention.position_embedding_type = "learned_absolute";
  config.model.attention.max_position_embeddings = 16;
  return config;
}

inline void drop(RunConfig& config) {
  config.model.hidden_dropout = 0.1;
  config.model.attention.attention_dropout = 0.2;
}

// Runs body(world, stream, groups, engine) on the config's ranks, each with the arena that the plan reserves.
template <class Body>
void with_engines_in_world(const RunConfig& given, const Body& body) {
  const ResolvedConfig config = resolve(given, {});
  const int ranks = static_cast<int>(config->parallel.ranks);
  const Layout layout(config->parallel, ranks, config->model.moe.num_experts);
  const int64_t arena = make_plan(config).arena_bytes();
  ThreadWorld world(ranks);
  world.run([&](int rank) {
    ThreadPool pool(1);
    const Device device = device_of(*config, rank);
    Stream stream(device, reserve_arena(device, arena), pool);
    const Groups groups = make_groups(world, layout, rank, stream, sums_of(config));
    Engine engine(stream, groups, config);
    body(world, stream, groups, engine);
  });
}

// A rank's actions on its engine.
using RankBody = std::function<void(Stream&, const Groups&, Engine&, int rank)>;

inline void with_rank_engines(const RunConfig& config, const RankBody& body) {
  with_engines_in_world(config, [&](ThreadWorld&, Stream& stream, const Groups& groups, Engine& engine) {
    body(stream, groups, engine, groups.rank());
  });
}

}  // namespace witan::testing
