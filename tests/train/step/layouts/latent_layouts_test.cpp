// Models with DeepSeek's latent attention train on every axis like on one rank, in the planned memory.
#include <gtest/gtest.h>

#include "planner/real_run.h"
#include "train/step/layouts/one_rank.h"

namespace witan {
namespace {

using testing::expect_equal;
using testing::expect_same_bits;
using testing::expect_steps_of_one_rank;
using testing::kFsdp;
using testing::laid_out;
using testing::LaidOut;
using testing::run_engine;
using testing::Trajectory;

constexpr int64_t kSteps = 3;

// A dense layer, then a shared expert with routed ones of their own width, chosen by sigmoid scores with a bias; rotary
// frequencies are scaled by YaRN. Steps are clipped.
RunConfig deepseek(int64_t q_lora_rank = 12) {
  RunConfig config;
  config.model.dtype = "float64";
  config.model.num_layers = 4;
  config.model.hidden_size = 32;
  config.model.vocab_size = 64;
  config.model.mlp.ffn_hidden_size = 24;
  AttentionConfig& attention = config.model.attention;
  attention.multi_latent_attention = true;
  attention.num_attention_heads = 8;
  attention.q_lora_rank = q_lora_rank;
  attention.kv_lora_rank = 10;
  attention.latent_qk_head_dim = 6;
  attention.qk_pos_emb_head_dim = 4;
  attention.v_head_dim = 5;
  attention.rotary_interleaved = true;
  attention.rope_scaling_type = "yarn";
  attention.rotary_scaling_factor = 4;
  attention.original_max_position_embeddings = 8;
  attention.mscale = 0.7;
  attention.mscale_all_dim = 0.5;
  config.model.moe.moe_layer_freq = "([0]*1+[1]*3)";
  config.model.moe.moe_ffn_hidden_size = 16;
  config.model.moe.moe_router_score_function = "sigmoid";
  config.model.moe.moe_router_enable_expert_bias = true;
  config.model.moe.moe_shared_expert_intermediate_size = 8;
  config.data.seq_length = 16;
  config.train.train_iters = 30;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = 4;
  config.train.sample_tokens = 0;
  config.optimizer.lr_warmup_iters = 3;
  config.optimizer.clip_grad = 0.1;
  return laid_out(config, {});
}

TEST(LatentLayouts, EveryAxisEqualsOneRankInFloat64) {
  expect_steps_of_one_rank(deepseek(),
                           {{"shard=4"},
                            {"shard=2", kFsdp},
                            {"context=4"},
                            {"tensor=4,expert_tensor=1"},
                            {"tensor=2,expert_tensor=2"},
                            {"pipeline=4"},
                            {"pipeline=2", "auto", 2},
                            {"replicate=4,expert=4"}},
                           kSteps);
}

TEST(LatentLayouts, MixedAxesEqualOneRankInFloat64) {
  for (const int64_t q_lora_rank : {0, 12})
    expect_steps_of_one_rank(deepseek(q_lora_rank),
                             {{"context=2,tensor=2,pipeline=2,expert=2,expert_tensor=2"},
                              {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kFsdp},
                              {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1", kFsdp, 2}},
                             kSteps);
}

// All ranks then compute the same latents, so gradients of their projections are not summed over ranks.
TEST(LatentLayouts, TensorRanksWithoutSequenceParallelEqualOneRankInFloat64) {
  for (const int64_t q_lora_rank : {0, 12}) {
    RunConfig config = deepseek(q_lora_rank);
    config.model.moe = {};
    config.model.moe.num_experts = 0;  // experts would need sequence parallelism
    RunConfig divided = laid_out(config, {"tensor=4"});
    divided.parallel.sequence_parallel = false;
    expect_equal(run_engine(config, 3), run_engine(divided, 3), 1e-9, "tensor=4");
  }
}

TEST(LatentLayouts, MasksDocumentsWindowsAndRecomputationEqualOneRankInFloat64) {
  for (const char* granularity : {"selective", "full"}) {
    RunConfig config = deepseek();
    testing::drop(config);
    config.data.reset_attention_mask = config.data.reset_position_ids = true;
    config.model.attention.window_size = "5,0";
    config.model.attention.window_attn_skip_freq = "2";
    config.model.attention.no_rope_freq = "[0,0,0,1]";
    config.model.recompute_granularity = granularity;
    SCOPED_TRACE(granularity);
    expect_steps_of_one_rank(
        config, {{"context=2,tensor=2,expert=2,expert_tensor=1"}, {"shard=2,context=2,pipeline=2,expert=2", "auto", 2}},
        kSteps);
  }
}

TEST(LatentLayouts, DeterministicRunsRepeatBitwise) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    RunConfig config = deepseek();
    config.model.dtype = dtype;
    config = laid_out(config, {"shard=2,context=2,tensor=2,expert=2,expert_tensor=1", kFsdp});
    config.parallel.deterministic = true;
    testing::expect_repeats(config, 3);
  }
}

// Compares arenas and the bytes that every group sends; if one rank has the whole model, also for a final sample.
TEST(LatentLayouts, PlansAreExact) {
  for (const char* dtype : {"float32", "bfloat16"})
    for (const LaidOut& layout : std::vector<LaidOut>{
             {""}, {"shard=2", kFsdp}, {"context=2,tensor=2"}, {"tensor=2,pipeline=2,expert_tensor=1"}}) {
      RunConfig config = deepseek();
      config.model.dtype = dtype;
      config.train.sample_tokens = 4;
      SCOPED_TRACE(cat(dtype, ", ", described(layout)));
      testing::expect_kept(laid_out(config, layout), {3, 2});
    }
}

// Recomputing queries, keys and values from latents gives the same bits in less memory, as planned.
TEST(LatentLayouts, RecomputedUpProjectionsChangeNoBit) {
  for (const char* dtype : {"float32", "bfloat16"})
    for (const int64_t q_lora_rank : {12, 0})
      for (const LaidOut& layout : std::vector<LaidOut>{{},
                                                        {"shard=2", kFsdp},
                                                        {"tensor=2,expert_tensor=1"},
                                                        {"context=2"},
                                                        {.mesh = "context=2", .comm = "p2p"},
                                                        {"pipeline=2"}}) {
        SCOPED_TRACE(cat(dtype, ", q_lora_rank = ", q_lora_rank, ", ", described(layout)));
        RunConfig config = deepseek(q_lora_rank);
        config.model.dtype = dtype;
        config = laid_out(config, layout);
        const Trajectory kept = run_engine(config, 2);
        config.model.recompute_granularity = "selective";
        config.model.recompute_modules = "mla_up_proj";
        const Trajectory again = run_engine(config, 2);
        expect_same_bits(kept, again);
        if (layout.comm == "p2p" || layout.mesh.find("context") == std::string::npos) {
          EXPECT_LT(again.arena_high_water, kept.arena_high_water);
        }
      }
}

TEST(LatentLayouts, RecomputedUpProjectionsMatchThePlan) {
  RunConfig config = deepseek();
  config.model.recompute_granularity = "selective";
  config.model.recompute_modules = "layernorm,mla_up_proj";
  for (const LaidOut& layout : std::vector<LaidOut>{{}, {"shard=2", kFsdp}, {"tensor=2,expert_tensor=1"}})
    testing::expect_kept(laid_out(config, layout), {3, 2});
}

}  // namespace
}  // namespace witan
