// Frozen parameters and adapters on GPUs: as on the CPU, in the planned memory, and also in a recorded step.
#include <gtest/gtest.h>

#include <string>

#include "cuda/runs/engine_support.h"

namespace witan::testing {
namespace {

constexpr int64_t kSteps = 5;  // the last of them are replays

struct TrainedPart {
  std::string name;
  int64_t ranks;
  void (*change)(RunConfig&);
};

void adapt(RunConfig& config, int64_t rank = 8) {
  config.model.lora_rank = rank;
  config.optimizer.lr = 1e-2;
}

const TrainedPart kTrained[] = {
    {"LowLayersFrozen", 1, [](RunConfig& c) { c.model.freeze = "embeddings,layers.0.*"; }},
    {"ExpertsAndKeysFrozen", 1, [](RunConfig& c) { c.model.freeze = "experts,*.k_proj.*,norms"; }},
    {"HeadNormsFrozen", 1,
     [](RunConfig& c) {
       c.model.attention.qk_layernorm = true;
       c.model.freeze = "*.q_norm.*";
     }},
    {"FrozenFsdp", 2,
     [](RunConfig& c) {
       c.model.freeze = "embeddings,layers.0.*,routers";
       c.parallel.data_parallel_sharding_strategy = "optim_grads_params";
     }},
    {"FrozenStage", 2,
     [](RunConfig& c) {
       c.model.freeze = "embeddings,layers.0.*";
       c.model.untie_embeddings_and_output_weights = true;
       c.parallel.pipeline_model_parallel_size = 2;
     }},
    {"Adapters", 1, [](RunConfig& c) { adapt(c); }},
    {"AdaptersOfAnOddRank", 1, [](RunConfig& c) { adapt(c, 3); }},
    {"AdaptersRecomputed", 1,
     [](RunConfig& c) {
       adapt(c);
       c.model.recompute_granularity = "full";
     }},
    {"AdaptersThatDrop", 1,
     [](RunConfig& c) {
       adapt(c);
       c.model.lora_target_modules = "q_proj,k_proj,v_proj,o_proj";
       c.model.lora_dropout = 0.2;
     }},
    {"AdaptersOverExperts", 2,
     [](RunConfig& c) {
       adapt(c);
       c.parallel.expert_model_parallel_size = 2;
     }},
    {"AdaptersOverTensor", 2,
     [](RunConfig& c) {
       adapt(c);
       c.parallel.tensor_model_parallel_size = 2;
       c.parallel.expert_tensor_parallel_size = 1;
       c.parallel.sequence_parallel = true;
       c.model.vocab_size = 212;
     }},
};

class TrainedPartsOnGpus : public EngineOnGpus, public ::testing::WithParamInterface<TrainedPart> {
 protected:
  void SetUp() override {
    EngineOnGpus::SetUp();
    if (cuda::devices() < GetParam().ranks)
      GTEST_SKIP() << "needs " << GetParam().ranks << " GPUs, there are " << cuda::devices();
  }
  static RunConfig config_of(const std::string& dtype) {
    RunConfig config = gpu_config(dtype);
    config.parallel.ranks = GetParam().ranks;
    GetParam().change(config);
    return config;
  }
};

TEST_P(TrainedPartsOnGpus, AgreeWithTheCpu) {
  expect_trained_as_on_cpu(config_of("float64"), kSteps);
}

TEST_P(TrainedPartsOnGpus, RecordedStepsHaveTheBitsOfEagerOnes) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    expect_recorded_bits_of_eager_steps(config_of(dtype), kSteps);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, TrainedPartsOnGpus, ::testing::ValuesIn(kTrained),
                         [](const auto& part) { return part.param.name; });

}  // namespace
}  // namespace witan::testing
