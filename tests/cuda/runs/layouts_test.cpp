// Steps of every layout on GPUs, compared with those of one GPU, eager and recorded.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "cuda/runs/engine_support.h"
#include "support/model_variants.h"

namespace witan::testing {
namespace {

constexpr int64_t kSteps = 6;  // at least two of them are replays

struct GpuLayout {
  std::string name;
  int64_t ranks;
  void (*divide)(ParallelConfig&);
  bool same_bits = true;  // as one GPU, in deterministic mode; other layouts divide sums
};

void shard(ParallelConfig& parallel, const char* strategy) {
  parallel.data_parallel_sharding_strategy = strategy;
}
void tensor(ParallelConfig& parallel, int64_t ranks) {
  parallel.tensor_model_parallel_size = ranks;
  parallel.sequence_parallel = true;
}

const GpuLayout kGpuLayouts[] = {
    {"Replicate2", 2, [](ParallelConfig&) {}},
    {"Replicate4", 4, [](ParallelConfig&) {}},
    {"Expert2", 2, [](ParallelConfig& p) { p.expert_model_parallel_size = 2; }},
    {"Expert2Of4", 4, [](ParallelConfig& p) { p.expert_model_parallel_size = 2; }},
    {"Expert4", 4, [](ParallelConfig& p) { p.expert_model_parallel_size = 4; }},
    {"Zero1Over2", 2, [](ParallelConfig& p) { shard(p, "optim"); }},
    {"Zero2Over2", 2, [](ParallelConfig& p) { shard(p, "optim_grads"); }},
    {"FsdpOver2", 2, [](ParallelConfig& p) { shard(p, "optim_grads_params"); }},
    {"FsdpOver4", 4, [](ParallelConfig& p) { shard(p, "optim_grads_params"); }},
    {"FsdpKeptAfterForward", 2,
     [](ParallelConfig& p) {
       shard(p, "optim_grads_params");
       p.reshard_after_forward = false;
     }},
    {"Hsdp2x2", 4,
     [](ParallelConfig& p) {
       shard(p, "optim_grads_params");
       p.num_distributed_optimizer_instances = 2;
     }},
    {"FsdpWithExpert2", 4,
     [](ParallelConfig& p) {
       shard(p, "optim_grads_params");
       p.expert_model_parallel_size = 2;
     }},
    {"Pipeline2", 2, [](ParallelConfig& p) { p.pipeline_model_parallel_size = 2; }},
    {"Pipeline4", 4, [](ParallelConfig& p) { p.pipeline_model_parallel_size = 4; }},
    {"Pipeline2Interleaved", 2,
     [](ParallelConfig& p) {
       p.pipeline_model_parallel_size = 2;
       p.num_virtual_stages_per_pipeline_rank = 2;
     }},
    {"Pipeline2Expert2", 4,
     [](ParallelConfig& p) {
       p.pipeline_model_parallel_size = 2;
       p.expert_model_parallel_size = 2;
     }},
    {"Pipeline2Fsdp2", 4,
     [](ParallelConfig& p) {
       p.pipeline_model_parallel_size = 2;
       shard(p, "optim_grads_params");
     }},
    {"Tensor2", 2, [](ParallelConfig& p) { tensor(p, 2); }, false},
    {"Tensor4", 4, [](ParallelConfig& p) { tensor(p, 4); }, false},
    {"Tensor2Overlap", 2,
     [](ParallelConfig& p) {
       tensor(p, 2);
       p.tp_comm_overlap = true;
     },
     false},
    {"Tensor4Overlap", 4,
     [](ParallelConfig& p) {
       tensor(p, 4);
       p.tp_comm_overlap = true;
     },
     false},
    {"Tensor2Fsdp2Overlap", 4,
     [](ParallelConfig& p) {
       tensor(p, 2);
       shard(p, "optim_grads_params");
       p.tp_comm_overlap = true;
     },
     false},
    {"Tensor2WholeLogits", 2,
     [](ParallelConfig& p) {
       tensor(p, 2);
       p.loss_parallel = false;
     },
     false},
    {"ExpertTensor1Expert2", 2,
     [](ParallelConfig& p) {
       tensor(p, 2);
       p.expert_tensor_parallel_size = 1;
       p.expert_model_parallel_size = 2;
     },
     false},
    {"Context2", 2, [](ParallelConfig& p) { p.context_parallel_size = 2; }, false},
    {"Context4", 4, [](ParallelConfig& p) { p.context_parallel_size = 4; }, false},
    {"Context2Ring", 2,
     [](ParallelConfig& p) {
       p.context_parallel_size = 2;
       p.cp_comm_type = "p2p";
     },
     false},
    {"Context4Ring", 4,
     [](ParallelConfig& p) {
       p.context_parallel_size = 4;
       p.cp_comm_type = "p2p";
     },
     false},
    {"Context2Zero1", 2,
     [](ParallelConfig& p) {
       p.context_parallel_size = 2;
       shard(p, "optim");
     },
     false},
    {"Tensor2Pipeline2", 4,
     [](ParallelConfig& p) {
       tensor(p, 2);
       p.pipeline_model_parallel_size = 2;
     },
     false},
    {"Tensor2Context2", 4,
     [](ParallelConfig& p) {
       tensor(p, 2);
       p.context_parallel_size = 2;
     },
     false},
    {"Tensor2Context2Ring", 4,
     [](ParallelConfig& p) {
       tensor(p, 2);
       p.context_parallel_size = 2;
       p.cp_comm_type = "p2p";
     },
     false},
    {"Tensor2Fsdp2", 4,
     [](ParallelConfig& p) {
       tensor(p, 2);
       shard(p, "optim_grads_params");
     },
     false},
    {"Context2Expert2Pipeline2", 4,
     [](ParallelConfig& p) {
       p.context_parallel_size = 2;
       p.expert_model_parallel_size = 2;
       p.pipeline_model_parallel_size = 2;
     },
     false},
};

// Deep enough for stages with several chunks, and with heads and words for four tensor ranks.
RunConfig whole_config(const std::string& dtype) {
  RunConfig config = gpu_config(dtype);
  config.model.num_layers = 4;
  config.model.vocab_size = 212;
  config.model.attention.num_query_groups = 4;
  return config;
}

RunConfig divided(RunConfig config, const GpuLayout& layout) {
  config.parallel.ranks = layout.ranks;
  layout.divide(config.parallel);
  return config;
}

class LayoutsOnGpus : public EngineOnGpus, public ::testing::WithParamInterface<GpuLayout> {
 protected:
  void SetUp() override {
    EngineOnGpus::SetUp();
    if (cuda::devices() < GetParam().ranks)
      GTEST_SKIP() << "needs " << GetParam().ranks << " GPUs, there are " << cuda::devices();
  }
};

// The trajectory of one GPU, computed once for all layouts.
const Trajectory& alone(const std::string& name, const RunConfig& config) {
  static std::map<std::string, Trajectory> known;
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, run_engine(config, kSteps)).first->second;
}

TEST_P(LayoutsOnGpus, AgreeWithOneGpu) {
  const RunConfig one = whole_config("float64"), many = divided(one, GetParam());
  const Trajectory expected = alone("float64", one);
  const Trajectory together = run_engine(many, kSteps);
  expect_near(together.losses, expected.losses, 1e-9);
  expect_near(together.norms, expected.norms, 1e-8);
  EXPECT_EQ(together.arena_high_water, make_plan(resolve(many, {})).arena_bytes());
}

// If ranks divide sequences, the load of each sequence is summed over them.
TEST_P(LayoutsOnGpus, BalanceSequencesAsOneGpuDoes) {
  if (GetParam().same_bits) GTEST_SKIP() << "sequences are whole";
  RunConfig one = whole_config("float64");
  one.model.moe.moe_router_load_balancing_type = "seq_aux_loss";
  one.model.moe.moe_aux_loss_coeff = "1";
  const RunConfig many = divided(one, GetParam());
  const Trajectory expected = alone("sequences", one);
  const Trajectory together = run_engine(many, kSteps);
  expect_near(together.losses, expected.losses, 1e-9);
  expect_near(together.norms, expected.norms, 1e-8);
  expect_near(together.balances, expected.balances, 1e-9);
  EXPECT_EQ(together.arena_high_water, make_plan(resolve(many, {})).arena_bytes());
}

// Latents are complete on every rank of the tensor axis, or gathered.
TEST_P(LayoutsOnGpus, LatentAttentionAgreesWithOneGpu) {
  RunConfig one = whole_config("float64");
  one.model.attention.multi_latent_attention = true;
  one.model.attention.q_lora_rank = 24;
  one.model.attention.kv_lora_rank = 32;
  one.model.attention.latent_qk_head_dim = 16;
  one.model.attention.qk_pos_emb_head_dim = 8;
  const RunConfig many = divided(one, GetParam());
  const Trajectory expected = alone("latent attention", one);
  const Trajectory together = run_engine(many, kSteps);
  expect_near(together.losses, expected.losses, 1e-9);
  expect_near(together.norms, expected.norms, 1e-8);
  EXPECT_EQ(together.arena_high_water, make_plan(resolve(many, {})).arena_bytes());
}

// Models whose layers are recurrent, or convolutions, beside attention, over packed documents.
const std::pair<const char*, void (*)(ModelConfig&)> kRecurrentModels[] = {
    {"Gated DeltaNet", add_linear_attention},
    {"Kimi Delta Attention",
     [](ModelConfig& model) {
       add_linear_attention(model);
       LinearAttentionConfig& linear = model.linear_attention;
       linear.experimental_attention_variant = "kimi_delta";
       linear.linear_num_key_heads = linear.linear_num_value_heads;
       linear.linear_key_head_dim = linear.linear_value_head_dim = 8;  // on tensor cores in bfloat16
     }},
    {"Mamba-2", [](ModelConfig& model) { add_hybrid_layers(model, "ME*M"); }},
    {"short convolutions", add_short_convolutions}};

RunConfig recurrent_config(const std::string& dtype, void (*add)(ModelConfig&)) {
  RunConfig config = whole_config(dtype);
  config.data.reset_attention_mask = config.data.reset_position_ids = true;
  add(config.model);
  return config;
}

TEST_P(LayoutsOnGpus, RecurrentLayersAgreeWithOneGpu) {
  for (const auto& [name, add] : kRecurrentModels) {
    SCOPED_TRACE(name);
    const RunConfig one = recurrent_config("float64", add), many = divided(one, GetParam());
    const Trajectory expected = alone(name, one);
    const Trajectory together = run_engine(many, kSteps);
    expect_near(together.losses, expected.losses, 1e-9);
    expect_near(together.norms, expected.norms, 1e-8);
    EXPECT_EQ(together.arena_high_water, make_plan(resolve(many, {})).arena_bytes());
  }
}

TEST_P(LayoutsOnGpus, RecordedStepsOfRecurrentLayersHaveTheBitsOfEagerOnes) {
  for (const auto& [name, add] : kRecurrentModels) {
    SCOPED_TRACE(name);
    RunConfig recorded = divided(recurrent_config("bfloat16", add), GetParam());
    recorded.parallel.deterministic = true;
    RunConfig eager = recorded;
    eager.parallel.cuda_graph = false;
    expect_same_bits(run_engine(recorded, kSteps), run_engine(eager, kSteps));
  }
}

// A recorded step must do the same on other tokens as when it was recorded: it has the bits of an eager one and, if no
// rank divides a sum, those of one GPU.
TEST_P(LayoutsOnGpus, RecordedStepsHaveTheBitsOfEagerOnesAndOfOneGpu) {
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    SCOPED_TRACE(dtype);
    RunConfig one = whole_config(dtype);
    one.parallel.deterministic = true;
    one.optimizer.initial_loss_scale = 1024;
    const RunConfig recorded = divided(one, GetParam());
    RunConfig eager = recorded;
    eager.parallel.cuda_graph = false;
    const Trajectory together = run_engine(recorded, kSteps);
    expect_same_bits(together, run_engine(eager, kSteps));
    if (GetParam().same_bits) expect_same_bits(together, alone(dtype, one));
  }
}

// A micro-batch's masks depend on its number in the global batch, whichever rank runs it.
TEST_P(LayoutsOnGpus, DropWhatOneGpuDrops) {
  RunConfig one = whole_config("float64");
  drop(one);
  expect_near(run_engine(divided(one, GetParam()), kSteps).losses, alone("dropout", one).losses, 1e-9);
}

TEST_P(LayoutsOnGpus, StatesAreCheckedOnEveryRank) {
  RunConfig config = divided(whole_config("bfloat16"), GetParam());
  config.parallel.deterministic = true;
  config.train.check_states = true;
  EXPECT_EQ(run_engine(config, 3).losses.size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Of, LayoutsOnGpus, ::testing::ValuesIn(kGpuLayouts),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace witan::testing
