// Recomputation changes no bit and needs less memory; the meta device needs exactly as much memory as the CPU.
#include "model/model_support.h"
#include "support/model_variants.h"
#include "support/thread_world.h"

namespace witan {
namespace {

using testing::Alone;
using testing::bind_gradients;
using testing::loss_of;
using testing::micro_batch;
using testing::other_config;
using testing::Rank;
using testing::tiny_config;

ModelConfig with(ModelConfig config, const std::string& dtype, const std::string& recompute) {
  config.dtype = dtype;
  config.recompute_granularity = recompute;
  return config;
}

struct Memory {
  int64_t high_water = 0;
  std::vector<int64_t> peaks, live;  // by tag
  bool operator==(const Memory&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Memory& memory) {
  out << "high water " << memory.high_water << ", peaks";
  for (const int64_t peak : memory.peaks) out << ' ' << peak;
  out << ", live";
  for (const int64_t live : memory.live) out << ' ' << live;
  return out;
}

Memory memory_of(const Arena& arena) {
  Memory memory{arena.high_water(), {}, {}};
  for (int tag = 0; tag < kMemoryTags; ++tag) {
    memory.peaks.push_back(arena.peak(static_cast<MemoryTag>(tag)));
    memory.live.push_back(arena.live(static_cast<MemoryTag>(tag)));
  }
  return memory;
}

// Two micro-batches with accumulated gradients, on any device.
Memory steps(Stream& stream, const ModelConfig& config, Group& group, std::vector<double>* losses = nullptr,
             std::vector<std::vector<double>>* gradients = nullptr) {
  Transformer model(stream, config, 5, group);
  bind_gradients(stream, model);
  const auto batch = micro_batch(stream, config, 2, 40, 13);
  for (int pass = 0; pass < 2; ++pass) {
    Tape tape(stream);
    const Var loss = loss_of(tape, model, batch);
    tape.backward({{loss, {}}});
    if (losses) losses->push_back(testing::values(loss.value())[0]);
  }
  if (gradients) *gradients = testing::gradients_of(model);
  return memory_of(stream.arena());
}

struct Results {
  std::vector<double> losses;
  std::vector<std::vector<double>> gradients;
  Memory memory;
};
Results on_cpu(const ModelConfig& config) {
  Rank rank(2);
  Alone alone;
  Results results;
  results.memory = steps(rank.stream, config, alone, &results.losses, &results.gradients);
  return results;
}

// Uses the rank's number of threads, since kernels have workspaces per thread.
Memory on_meta(const ModelConfig& config) {
  ThreadPool pool(2);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  Alone alone;
  return steps(stream, config, alone);
}

std::vector<ModelConfig> models() {
  std::vector<ModelConfig> all = {tiny_config(0), tiny_config(4), other_config(0), other_config(4)};
  all[1].num_layers = all[0].num_layers = 4;
  all[3].moe.moe_layer_freq = "[1,0]";
  all.push_back(tiny_config(4));
  all.back().moe.moe_grouped_gemm = false;
  all.push_back(testing::gpt_config());
  all.push_back(testing::dropping_config(4));
  all.push_back(tiny_config(4));
  all.back().moe.moe_expert_add_bias = true;
  all.back().mlp.activation_func_clamp_value = 7;
  all.push_back(tiny_config(4));
  all.back().moe.moe_latent_size = 6;
  all.back().moe.moe_shared_expert_intermediate_size = 5;
  all.back().moe.moe_shared_expert_gate = true;
  for (const int64_t experts : {0, 4}) {
    testing::add_gemma4_features(all.emplace_back(tiny_config(experts)), "3,0");
    testing::add_small_gemma4_features(all.emplace_back(tiny_config(experts)), "3,0");
  }
  return all;
}

TEST(Recompute, ChangesNoBitOfLossAndGradients) {
  for (const ModelConfig& model : models())
    for (const std::string dtype : {"float32", "float64", "bfloat16"}) {
      const Results kept = on_cpu(with(model, dtype, "none"));
      EXPECT_EQ(kept.losses[0], kept.losses[1]);
      for (const std::string recompute : {"selective", "full"}) {
        const Results again = on_cpu(with(model, dtype, recompute));
        EXPECT_EQ(again.losses, kept.losses) << dtype << " " << recompute;
        EXPECT_EQ(again.gradients, kept.gradients) << dtype << " " << recompute;
      }
    }
}

TEST(Recompute, LowersThePeak) {
  for (const int64_t experts : {0, 4}) {
    ModelConfig model = tiny_config(experts);
    model.num_layers = 6;
    const auto peak = [&](const std::string& recompute) { return on_cpu(with(model, "float32", recompute)).memory; };
    const Memory none = peak("none"), selective = peak("selective"), full = peak("full");
    const auto activations = static_cast<size_t>(MemoryTag::activations);
    EXPECT_LT(selective.peaks[activations], none.peaks[activations]);
    EXPECT_LT(full.peaks[activations], selective.peaks[activations]);
    EXPECT_LT(selective.high_water, none.high_water);
    EXPECT_LT(full.high_water, selective.high_water);
  }
}

// Recomputing any one module keeps less memory than recomputing none, and a whole MoE layer less than its activation.
TEST(Recompute, EachModuleLowersTheKeptMemory) {
  ModelConfig model = tiny_config(4);
  model.num_layers = 6;
  model.moe.moe_layer_freq = "2";
  const auto kept = [&](const std::string& granularity, const std::string& modules) {
    model.recompute_modules = modules;
    return on_cpu(with(model, "float32", granularity)).memory.peaks[static_cast<size_t>(MemoryTag::activations)];
  };
  const auto none = kept("none", "");
  for (const char* module : {"layernorm", "mlp_act", "moe_act", "mlp", "moe"})
    EXPECT_LT(kept("selective", module), none) << module;
  EXPECT_LT(kept("selective", "moe"), kept("selective", "moe_act"));
  EXPECT_LT(kept("selective", "mlp"), kept("selective", "mlp_act"));
  EXPECT_EQ(kept("selective", ""), kept("selective", "layernorm,mlp_act,moe_act"));
}

TEST(Memory, IsFreedAfterTheStep) {
  Rank rank;
  Alone alone;
  for (const std::string recompute : {"none", "selective", "full"}) {
    steps(rank.stream, with(tiny_config(4), "float32", recompute), alone);
    EXPECT_EQ(rank.stream.arena().live(), 0) << recompute;
  }
}

TEST(Memory, OnTheMetaDeviceEqualsTheCpu) {
  for (const ModelConfig& model : models())
    for (const std::string dtype : {"float32", "bfloat16", "float64"})
      for (const std::string recompute : {"none", "selective", "full"}) {
        const ModelConfig config = with(model, dtype, recompute);
        EXPECT_EQ(on_meta(config), on_cpu(config).memory)
            << dtype << " " << recompute << " " << model.moe.num_experts << " experts";
      }
  for (const char* modules : {"layernorm", "mlp_act", "moe_act", "mlp", "moe", "moe,mlp,layernorm"}) {
    ModelConfig config = with(models()[3], "float32", "selective");
    config.recompute_modules = modules;
    EXPECT_EQ(on_meta(config), on_cpu(config).memory) << modules;
  }
}

TEST(Memory, OnTheMetaDeviceEqualsEveryRankWithExpertParallelism) {
  for (const std::string recompute : {"none", "selective", "full"})
    testing::on_ranks(2, [&](testing::ThreadRank& rank) {
      const ModelConfig config = with(tiny_config(4), "float32", recompute);
      const auto group = rank.everyone("expert");
      const Memory cpu = steps(rank.stream, config, *group);
      ThreadPool pool(1);
      Stream stream({Device::Kind::meta}, Arena::meta(), pool);
      MetaGroup planned(2, rank.rank, "expert");
      EXPECT_EQ(steps(stream, config, planned), cpu) << recompute << ", rank " << rank.rank;
      EXPECT_EQ(planned.sent(), group->sent());
    });
}

}  // namespace
}  // namespace witan
