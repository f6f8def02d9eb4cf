// Whole steps on GPUs: compared with the CPU, and recorded with eager ones; to the bit where that is promised.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "cuda/runs/engine_support.h"
#include "support/message_of.h"

namespace witan::testing {
namespace {

TEST_F(EngineOnGpus, TrainAsTheCpuDoes) {
  // float64 distinguishes wrong gradients from rounding; the other two are used for training.
  for (const auto& [dtype, tolerance] :
       {std::pair{"float64", 1e-9}, std::pair{"float32", 1e-4}, std::pair{"bfloat16", 2e-2}}) {
    SCOPED_TRACE(dtype);
    const RunConfig config = gpu_config(dtype);
    const Trajectory gpu = run_engine(config, 6), cpu = on_cpu(config, 6);
    expect_near(gpu.losses, cpu.losses, tolerance);
    expect_near(gpu.norms, cpu.norms, 10 * tolerance);
  }
}

// Gradients overflow until the scale has fallen; the third good step doubles it, and they overflow again. In these
// steps no decision is close: a scale that is a fifth smaller, or larger, gives the same ones.
constexpr int64_t kFloat16Steps = 12;
RunConfig in_float16() {
  RunConfig config = gpu_config("float16");
  config.train.train_iters = 20;
  config.optimizer.initial_loss_scale = 0x1p28;
  config.optimizer.loss_scale_window = 3;
  config.optimizer.hysteresis = 1;
  return config;
}

TEST_F(EngineOnGpus, Float16SkipsStepsAndScalesLossesAsTheCpuDoes) {
  const Trajectory gpu = run_engine(in_float16(), kFloat16Steps), cpu = on_cpu(in_float16(), kFloat16Steps);
  EXPECT_EQ(gpu.loss_scales, cpu.loss_scales);
  EXPECT_LT(gpu.loss_scales[0], 0x1p28) << "the first step overflows";
  EXPECT_NE(std::ranges::adjacent_find(gpu.loss_scales, std::less()), gpu.loss_scales.end()) << "later it grows";
  expect_near(gpu.losses, cpu.losses, 5e-3);
  for (size_t i = 0; i < gpu.norms.size(); ++i) {
    ASSERT_EQ(std::isfinite(gpu.norms[i]), std::isfinite(cpu.norms[i])) << "step " << i;
    if (!std::isfinite(gpu.norms[i])) continue;
    EXPECT_NEAR(gpu.norms[i], cpu.norms[i], 5e-2 * cpu.norms[i]) << "step " << i;
  }
}

TEST_F(EngineOnGpus, RecordedFloat16StepsHaveTheBitsOfEagerOnesAndThePlannedMemory) {
  for (const char* optimizer : {"adam", "muon"}) {
    SCOPED_TRACE(optimizer);
    RunConfig recorded = in_float16();
    recorded.optimizer.optimizer = optimizer;
    recorded.parallel.deterministic = true;
    RunConfig eager = recorded;
    eager.parallel.cuda_graph = false;
    const Trajectory replayed = run_engine(recorded, kFloat16Steps), at_once = run_engine(eager, kFloat16Steps);
    EXPECT_EQ(replayed.losses, at_once.losses);  // norms of skipped steps may be NaN
    EXPECT_TRUE(replayed.weights == at_once.weights);
    EXPECT_EQ(replayed.loss_scales, at_once.loss_scales);
    EXPECT_EQ(replayed.arena_high_water, make_plan(resolve(recorded, {})).arena_bytes());
  }
}

// AdamW and SGD, each group with its own learning rate, which a recorded step reads on the device.
RunConfig with_param_groups(RunConfig config) {
  set_field(config.fields(), "optimizer_groups",
            R"([{kind = "experts", optimizer = "sgd", lr = 0.05, shard_by = "matrices"},
                {kind = "norms,routers", lr_mult = 0.25}, {kind = "embeddings", optimizer = "sgd", sgd_momentum = 0}])",
            "test");
  return config;
}

// A small version of DeepSeek's attention, with sizes that are whole packs.
void make_latent(RunConfig& config) {
  AttentionConfig& attention = config.model.attention;
  attention.multi_latent_attention = true;
  attention.q_lora_rank = 24;
  attention.kv_lora_rank = 32;
  attention.latent_qk_head_dim = 16;
  attention.qk_pos_emb_head_dim = 8;
  attention.v_head_dim = 16;
  attention.rotary_interleaved = true;
  attention.rope_scaling_type = "yarn";
  attention.rotary_scaling_factor = 4;
  attention.original_max_position_embeddings = 16;
  attention.mscale_all_dim = 0.5;
}

TEST_F(EngineOnGpus, RecordedLatentAttentionHasTheBitsOfEagerStepsAndThePlannedMemory) {
  RunConfig recorded = gpu_config("bfloat16");
  make_latent(recorded);
  recorded.parallel.deterministic = true;
  RunConfig eager = recorded;
  eager.parallel.cuda_graph = false;
  const Trajectory replayed = run_engine(recorded, 6);
  expect_same_bits(replayed, run_engine(eager, 6));
  EXPECT_EQ(replayed.arena_high_water, make_plan(resolve(recorded, {})).arena_bytes());
}

TEST_F(EngineOnGpus, RecomputedUpProjectionsOfLatentsChangeNoBitAndTakeTheMemoryThatIsPlanned) {
  RunConfig kept = gpu_config("bfloat16");
  make_latent(kept);
  kept.model.num_layers = 4;
  kept.parallel.deterministic = true;
  RunConfig recomputed = kept;
  recomputed.model.recompute_granularity = "selective";
  recomputed.model.recompute_modules = "mla_up_proj";
  RunConfig eager = recomputed;
  eager.parallel.cuda_graph = false;
  const Trajectory of_kept = run_engine(kept, 6), replayed = run_engine(recomputed, 6);
  expect_same_bits(replayed, of_kept);
  expect_same_bits(replayed, run_engine(eager, 6));
  EXPECT_LT(replayed.arena_high_water, of_kept.arena_high_water);
  EXPECT_EQ(replayed.arena_high_water, make_plan(resolve(recomputed, {})).arena_bytes());
}

TEST_F(EngineOnGpus, RecordedMultiTokenPredictionHasTheBitsOfEagerStepsAndThePlannedMemory) {
  RunConfig recorded = gpu_config("bfloat16");
  recorded.model.mtp_num_layers = 2;
  recorded.parallel.deterministic = true;
  RunConfig eager = recorded;
  eager.parallel.cuda_graph = false;
  const Trajectory replayed = run_engine(recorded, 6);
  expect_same_bits(replayed, run_engine(eager, 6));
  EXPECT_EQ(replayed.arena_high_water, make_plan(resolve(recorded, {})).arena_bytes());
}

// Trains the changed model for three steps, as on the CPU.
template <class Change>
void check(const char* what, const Change& change) {
  SCOPED_TRACE(what);
  RunConfig config = gpu_config("float64");
  change(config);
  const Trajectory gpu = run_engine(config, 3), cpu = on_cpu(config, 3);
  expect_near(gpu.losses, cpu.losses, 1e-9);
  expect_near(gpu.norms, cpu.norms, 1e-8);
  expect_near(gpu.dropped, cpu.dropped, 1e-12);
  expect_near(gpu.balances, cpu.balances, 1e-9);
}

TEST_F(EngineOnGpus, OtherModelsTrainAsOnTheCpu) {
  check("dense", [](RunConfig& c) { c.model.moe.num_experts = 0; });
  check("LayerNorm, biases, GELU, learned positions", [](RunConfig& c) {
    c.model.moe.num_experts = 0;
    c.model.norm.normalization = "LayerNorm";
    c.model.norm.norm_bias = true;
    c.model.add_bias_linear = true;
    c.model.mlp.swiglu = false;
    c.model.attention.position_embedding_type = "learned_absolute";
    c.model.attention.max_position_embeddings = 64;
  });
  check("dropout", [](RunConfig& c) {
    c.model.hidden_dropout = 0.1;
    c.model.attention.attention_dropout = 0.1;
  });
  check("capacity", [](RunConfig& c) { c.model.moe.moe_expert_capacity_factor = 1.0; });
  check("sequences balanced by themselves", [](RunConfig& c) {
    c.model.moe.moe_router_load_balancing_type = "seq_aux_loss";
    c.model.moe.moe_aux_loss_coeff = "1";
  });
  check("sequential experts", [](RunConfig& c) { c.model.moe.moe_grouped_gemm = false; });
  check("block-sparse experts", [](RunConfig& c) { c.model.moe.moe_expert_backend = "block_sparse"; });
  check("the load of the batch so far balanced", [](RunConfig& c) {
    c.model.moe.moe_router_load_balancing_type = "global_aux_loss";
    c.model.moe.moe_aux_loss_coeff = "1";
  });
  check("expert biases, clamped SwiGLU", [](RunConfig& c) {
    c.model.moe.moe_expert_add_bias = true;
    c.model.mlp.activation_func_clamp_value = 0.05;
    c.model.mlp.glu_activation_scale = 1.702;
    c.model.mlp.glu_linear_offset = 1;
  });
  check("squared ReLU, latent experts, gated shared experts", [](RunConfig& c) {
    c.model.mlp.swiglu = false;
    c.model.mlp.squared_relu = true;
    c.model.moe.moe_latent_size = 16;
    c.model.moe.moe_shared_expert_intermediate_size = 24;
    c.model.moe.moe_shared_expert_gate = true;
  });
}

TEST_F(EngineOnGpus, VariantsOfNanogptTrainAsOnTheCpu) {
  const auto nanogpt = [](RunConfig& c) {
    c.model.num_layers = 4;
    c.model.untie_embeddings_and_output_weights = true;
    c.model.init_method = "fan_in";
    c.model.init_method_std = 0.5;
    c.model.attention.num_query_groups = c.model.attention.num_attention_heads;
    c.model.attention.rotary_half_truncated = c.model.attention.qk_l2_norm = true;
    c.model.attention.softmax_scale = 0.12;
    c.model.attention.no_attention_freq = "[0,0,1,0]";
    c.model.value_embedding_freq = "[1,2,0,1]";
    c.model.skip_connections = c.model.embedding_residual = c.model.embedding_norm = true;
    c.model.logit_scale = 0.125;
    c.model.logit_soft_cap = 15;
    c.model.norm.norm_weight = false;
    c.model.mlp.swiglu = false;
    c.model.mlp.silu = true;
    c.model.moe.moe_router_topk = 1;
    c.model.moe.moe_router_pre_softmax = true;
  };
  check("modded-nanogpt with experts", nanogpt);
  check("modded-nanogpt with experts, recomputed", [&](RunConfig& c) {
    nanogpt(c);
    c.model.recompute_granularity = "full";
  });
}

TEST_F(EngineOnGpus, MultiTokenPredictionTrainsAsOnTheCpu) {
  const auto predict_ahead = [](RunConfig& c) {
    c.model.mtp_num_layers = 2;
    c.model.mtp_loss_scaling_factor = 0.5;
    c.data.reset_attention_mask = c.data.reset_position_ids = true;
  };
  check("multi-token prediction", predict_ahead);
  check("multi-token prediction, recomputed", [&](RunConfig& c) {
    predict_ahead(c);
    c.model.untie_embeddings_and_output_weights = true;
    c.model.recompute_granularity = "full";
  });
}

TEST_F(EngineOnGpus, RecomputationAndOptimizersTrainAsOnTheCpu) {
  check("selective recomputation", [](RunConfig& c) { c.model.recompute_granularity = "selective"; });
  check("recomputed MoE layers", [](RunConfig& c) {
    c.model.recompute_granularity = "selective";
    c.model.recompute_modules = "moe,layernorm";
  });
  check("recomputed up-projections of latents", [](RunConfig& c) {
    make_latent(c);
    c.model.recompute_granularity = "selective";
    c.model.recompute_modules = "mla_up_proj";
  });
  check("full recomputation", [](RunConfig& c) { c.model.recompute_granularity = "full"; });
  check("SGD", [](RunConfig& c) { c.optimizer.optimizer = "sgd"; });
  check("Muon", [](RunConfig& c) { c.optimizer.optimizer = "muon"; });
  check("NorMuon", [](RunConfig& c) { c.optimizer.optimizer = "normuon"; });
  check("parameter groups", [](RunConfig& c) { c = with_param_groups(c); });
  check("documents", [](RunConfig& c) { c.data.reset_attention_mask = true; });
}

TEST_F(EngineOnGpus, OtherAttentionsTrainAsOnTheCpu) {
  check("latent attention", make_latent);
  check("latent attention without a latent of queries, halves, odd sizes", [](RunConfig& c) {
    make_latent(c);
    c.model.attention.q_lora_rank = 0;
    c.model.attention.latent_qk_head_dim = 5;
    c.model.attention.v_head_dim = 3;
    c.model.attention.rotary_interleaved = false;
  });
  check("half truncated rotation in one kernel with projections",
        [](RunConfig& c) { c.model.attention.rotary_half_truncated = true; });
  check("frequencies as Llama 3.1", [](RunConfig& c) {
    c.model.attention.rope_scaling_type = "llama3";
    c.model.attention.rotary_scaling_factor = 8;
    c.model.attention.original_max_position_embeddings = 16;
  });
  check("norms of heads, sinks, biases of projections", [](RunConfig& c) {
    c.model.attention.qk_layernorm = c.model.attention.add_qkv_bias = true;
    c.model.attention.softmax_type = "learnable";
    c.model.attention.window_size = "9,0";
  });
  check("norms of the full width, bounds, norms behind", [](RunConfig& c) {
    c.model.attention.qk_layernorm = c.model.attention.qk_layernorm_full_width = true;
    c.model.attention.clip_qkv = 1.2;
    c.model.norm_placement = "post";
  });
  check("rotary positions of neighbours, untied", [](RunConfig& c) {
    c.model.attention.rotary_interleaved = true;
    c.model.attention.rotary_percent = 0.5;
    c.model.untie_embeddings_and_output_weights = true;
  });
}

// Some steps compute new bases. For sides without full rank, rounding errors choose some of the vectors, in which later
// steps are taken.
TEST_F(EngineOnGpus, SoapTrainsAsOnTheCpu) {
  RunConfig config = gpu_config("float64");
  config.model.moe.num_experts = 0;
  set_field(config.fields(), "optimizer_groups",
            R"([{kind = "matrices", optimizer = "soap", shampoo_beta = 0.9, )"
            R"(precondition_frequency = 2, max_preconditioner_dim = 64}])",
            "test");
  const Trajectory gpu = run_engine(config, 6), cpu = on_cpu(config, 6);
  expect_near(gpu.losses, cpu.losses, 2e-5);
  EXPECT_EQ(gpu.arena_high_water, make_plan(resolve(config, {})).arena_bytes());
}

// Most logits exceed the threshold, so that every step clips.
RunConfig with_qk_clip(RunConfig config) {
  config.optimizer.optimizer = "muon";
  config.optimizer.qk_clip = true;
  config.optimizer.qk_clip_threshold = 1e-3;
  return config;
}

TEST_F(EngineOnGpus, QkClipMatchesTheCpu) {
  for (const auto& [dtype, tolerance] : {std::pair{"float64", 1e-9}, {"float32", 1e-4}, {"bfloat16", 3e-2}}) {
    SCOPED_TRACE(dtype);
    const RunConfig config = with_qk_clip(gpu_config(dtype));
    const Trajectory gpu = run_engine(config, 4), cpu = on_cpu(config, 4);
    expect_near(gpu.losses, cpu.losses, tolerance);
    expect_near(gpu.max_logits, cpu.max_logits, 10 * tolerance);
    EXPECT_EQ(gpu.max_logits.size(), 4u);
  }
}

TEST_F(EngineOnGpus, QkClipOfLatentAttentionMatchesTheCpu) {
  RunConfig config = gpu_config("float64");
  make_latent(config);
  config.optimizer.qk_clip = true;
  config.optimizer.qk_clip_threshold = 0.01;
  const Trajectory gpu = run_engine(config, 3), cpu = on_cpu(config, 3);
  expect_near(gpu.max_logits, cpu.max_logits, 1e-9);
  expect_near(gpu.losses, cpu.losses, 1e-9);
}

TEST_F(EngineOnGpus, RecordedStepsClipAsEagerOnes) {
  RunConfig eager = with_qk_clip(gpu_config("bfloat16"));
  eager.parallel.deterministic = true;
  RunConfig recorded = eager;
  eager.parallel.cuda_graph = false;
  const Trajectory a = run_engine(recorded, 4), b = run_engine(eager, 4);
  EXPECT_EQ(a.max_logits, b.max_logits);
  EXPECT_TRUE(a.weights == b.weights);
}

TEST_F(EngineOnGpus, RecordedStepsReadTheRatesOfParameterGroups) {
  RunConfig recorded = with_param_groups(gpu_config("bfloat16")), eager = recorded;
  eager.parallel.cuda_graph = false;
  for (RunConfig* config : {&recorded, &eager}) config->parallel.deterministic = true;
  expect_same_bits(run_engine(recorded, 6), run_engine(eager, 6));
}

TEST_F(EngineOnGpus, RecordedMuonHasTheBitsOfEagerStepsAndThePlannedMemory) {
  for (const char* optimizer : {"muon", "normuon"}) {
    RunConfig recorded = gpu_config("bfloat16");
    recorded.optimizer.optimizer = optimizer;
    recorded.parallel.deterministic = true;
    RunConfig eager = recorded;
    eager.parallel.cuda_graph = false;
    const Trajectory replayed = run_engine(recorded, 6);
    expect_same_bits(replayed, run_engine(eager, 6));
    EXPECT_EQ(replayed.arena_high_water, make_plan(resolve(recorded, {})).arena_bytes());
  }
}

// A recorded step must do the same on other tokens as when it was recorded.
TEST_F(EngineOnGpus, RecordedStepsHaveTheBitsOfEagerOnes) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    RunConfig recorded = gpu_config(dtype), eager = recorded;
    eager.parallel.cuda_graph = false;
    for (RunConfig* config : {&recorded, &eager}) config->parallel.deterministic = true;
    expect_same_bits(run_engine(recorded, 6), run_engine(eager, 6));
  }
}

TEST_F(EngineOnGpus, DeterministicRunsRepeatToTheBit) {
  RunConfig config = gpu_config("bfloat16");
  config.parallel.deterministic = true;
  expect_same_bits(run_engine(config, 6), run_engine(config, 6));
}

TEST_F(EngineOnGpus, PlansMatchTheArena) {
  for (const char* dtype : {"float32", "bfloat16"})
    for (const char* granularity : {"none", "selective", "full"}) {
      RunConfig config = gpu_config(dtype);
      config.model.recompute_granularity = granularity;
      EXPECT_EQ(run_engine(config, 3).arena_high_water, make_plan(resolve(config, {})).arena_bytes())
          << dtype << " " << granularity;
      config.model.moe.moe_expert_add_bias = true;
      config.model.moe.moe_latent_size = 16;
      config.model.recompute_modules = "moe";
      EXPECT_EQ(run_engine(config, 3).arena_high_water, make_plan(resolve(config, {})).arena_bytes())
          << dtype << " " << granularity << ", latent experts with biases";
      config.model.attention.qk_layernorm = true;
      config.model.attention.softmax_type = "learnable";
      config.model.norm_placement = "post";
      EXPECT_EQ(run_engine(config, 3).arena_high_water, make_plan(resolve(config, {})).arena_bytes())
          << dtype << " " << granularity << ", norms of heads and sinks";
    }
}

TEST_F(EngineOnGpus, GradientsMayBeBfloat16) {
  RunConfig config = gpu_config("bfloat16");
  config.parallel.gradient_dtype = "bfloat16";
  expect_near(run_engine(config, 6).losses, on_cpu(config, 6).losses, 2e-2);
}

TEST_F(EngineOnGpus, StatesAreChecked) {
  RunConfig config = gpu_config("bfloat16");
  config.train.check_states = true;
  EXPECT_EQ(run_engine(config, 3).losses.size(), 3u);
}

TEST_F(EngineOnGpus, ReserveTheAvailableMemoryOrFail) {
  const std::string said = test::message_of<OutOfMemoryError>([] { Arena::reserve_on_gpu(0, int64_t{1} << 50); });
  EXPECT_THAT(said, ::testing::HasSubstr("GPU 0 has no room for"));
  EXPECT_THAT(said, ::testing::HasSubstr("witan plan"));
}

}  // namespace
}  // namespace witan::testing
