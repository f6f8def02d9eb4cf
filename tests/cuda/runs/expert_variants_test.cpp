// Variants of experts, dispatchers and balancing over two GPUs, compared with the same ranks on the CPU.
#include <gtest/gtest.h>

#include <string>

#include "cuda/runs/engine_support.h"

namespace witan::testing {
namespace {

constexpr int64_t kSteps = 5;  // the last of them are replays

struct ExpertVariant {
  std::string name;
  void (*change)(RunConfig&);
};

void over_experts(RunConfig& config) {
  config.parallel.expert_model_parallel_size = 2;
}
// Each expert's matrices and biases are divided, and so are those of attention.
void over_expert_tensor(RunConfig& config) {
  config.parallel.tensor_model_parallel_size = config.parallel.expert_tensor_parallel_size = 2;
  config.parallel.sequence_parallel = true;
  config.model.vocab_size = 212;
}
void gather_tokens(RunConfig& config) {
  config.model.moe.moe_token_dispatcher_type = "allgather";
}
void add_biases(RunConfig& config) {
  config.model.moe.moe_expert_add_bias = config.model.add_bias_linear = true;
}
void balance_globally(RunConfig& config) {
  config.model.moe.moe_router_load_balancing_type = "aux_loss,global_aux_loss";
  config.model.moe.moe_aux_loss_coeff = "0.5,1";
}

const ExpertVariant kVariants[] = {
    {"AllGather",
     [](RunConfig& c) {
       over_experts(c);
       gather_tokens(c);
     }},
    {"AllGatherWithCapacity",
     [](RunConfig& c) {
       over_experts(c);
       gather_tokens(c);
       c.model.moe.moe_expert_capacity_factor = 0.75;
     }},
    {"BiasesOverExperts",
     [](RunConfig& c) {
       over_experts(c);
       add_biases(c);
     }},
    {"BiasesOverExpertTensor",
     [](RunConfig& c) {
       over_expert_tensor(c);
       add_biases(c);
     }},
    {"BiasesOverExpertTensorOfDataRanks",
     [](RunConfig& c) {
       c.parallel.expert_tensor_parallel_size = 2;
       add_biases(c);
     }},
    {"BiasesOfAllGather",
     [](RunConfig& c) {
       over_experts(c);
       gather_tokens(c);
       add_biases(c);
     }},
    {"BlockSparse",
     [](RunConfig& c) {
       over_experts(c);
       add_biases(c);
       c.model.moe.moe_expert_backend = "block_sparse";
     }},
    {"GlobalBalance", balance_globally},
    {"GlobalBalanceRecomputedFsdp",
     [](RunConfig& c) {
       balance_globally(c);
       c.model.recompute_granularity = "full";
       c.parallel.data_parallel_sharding_strategy = "optim_grads_params";
     }},
};

class ExpertVariantsOnGpus : public EngineOnGpus, public ::testing::WithParamInterface<ExpertVariant> {
 protected:
  void SetUp() override {
    EngineOnGpus::SetUp();
    if (cuda::devices() < 2) GTEST_SKIP() << "needs 2 GPUs, there are " << cuda::devices();
  }
  static RunConfig config_of(const std::string& dtype) {
    RunConfig config = gpu_config(dtype);
    config.parallel.ranks = 2;
    GetParam().change(config);
    return config;
  }
};

TEST_P(ExpertVariantsOnGpus, AgreeWithTheCpu) {
  expect_trained_as_on_cpu(config_of("float64"), kSteps);
}

TEST_P(ExpertVariantsOnGpus, RecordedStepsHaveTheBitsOfEagerOnes) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    expect_recorded_bits_of_eager_steps(config_of(dtype), kSteps);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, ExpertVariantsOnGpus, ::testing::ValuesIn(kVariants),
                         [](const auto& variant) { return variant.param.name; });

}  // namespace
}  // namespace witan::testing
