// Tensor rules that several families share.
#pragma once

#include <string_view>

#include "witan/convert/models/architecture.h"

namespace witan {

// ---- Hugging Face folders

inline constexpr TensorRule kModelRules[] = {
    {"embedding.weight", "embed_tokens.weight"},
    {"final_norm.weight", "norm.weight"},
    {"head.weight", kHeadName},
};

inline constexpr TensorRule kPreNormRules[] = {
    {"attention_norm.weight", "layers.{l}.input_layernorm.weight"},
    {"mlp_norm.weight", "layers.{l}.post_attention_layernorm.weight"},
};

inline constexpr TensorRule kAttentionRules[] = {
    {"attention.q_proj.weight", "layers.{l}.self_attn.q_proj.weight"},
    {"attention.k_proj.weight", "layers.{l}.self_attn.k_proj.weight"},
    {"attention.v_proj.weight", "layers.{l}.self_attn.v_proj.weight"},
    {"attention.o_proj.weight", "layers.{l}.self_attn.o_proj.weight"},
    {"attention.q_proj.bias", "layers.{l}.self_attn.q_proj.bias"},
    {"attention.k_proj.bias", "layers.{l}.self_attn.k_proj.bias"},
    {"attention.v_proj.bias", "layers.{l}.self_attn.v_proj.bias"},
    {"attention.o_proj.bias", "layers.{l}.self_attn.o_proj.bias"},
    {"attention.q_norm.weight", "layers.{l}.self_attn.q_norm.weight"},
    {"attention.k_norm.weight", "layers.{l}.self_attn.k_norm.weight"},
    {"attention.sinks", "layers.{l}.self_attn.sinks"},
};

// Multi-head latent attention.
inline constexpr TensorRule kLatentRules[] = {
    {"attention.q_proj.weight", "layers.{l}.self_attn.q_proj.weight"},
    {"attention.q_a_proj.weight", "layers.{l}.self_attn.q_a_proj.weight"},
    {"attention.q_a_layernorm.weight", "layers.{l}.self_attn.q_a_layernorm.weight"},
    {"attention.q_b_proj.weight", "layers.{l}.self_attn.q_b_proj.weight"},
    {"attention.kv_a_proj_with_mqa.weight", "layers.{l}.self_attn.kv_a_proj_with_mqa.weight"},
    {"attention.kv_a_layernorm.weight", "layers.{l}.self_attn.kv_a_layernorm.weight"},
    {"attention.kv_b_proj.weight", "layers.{l}.self_attn.kv_b_proj.weight"},
    {"attention.o_proj.weight", "layers.{l}.self_attn.o_proj.weight"},
};

inline constexpr TensorRule kMlpRules[] = {
    {"mlp.gate_up_proj.weight", "layers.{l}.mlp.gate_proj.weight", 0, 2},
    {"mlp.gate_up_proj.weight", "layers.{l}.mlp.up_proj.weight", 1, 2},
    {"mlp.down_proj.weight", "layers.{l}.mlp.down_proj.weight"},
    {"mlp.gate_up_proj.bias", "layers.{l}.mlp.gate_proj.bias", 0, 2},
    {"mlp.gate_up_proj.bias", "layers.{l}.mlp.up_proj.bias", 1, 2},
    {"mlp.down_proj.bias", "layers.{l}.mlp.down_proj.bias"},
};

inline constexpr TensorRule kMoeRules[] = {
    {"moe.router.weight", "layers.{l}.mlp.gate.weight"},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.mlp.experts.{e}.gate_proj.weight",
     .part = 0,
     .parts = 2,
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.mlp.experts.{e}.up_proj.weight",
     .part = 1,
     .parts = 2,
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.down_proj",
     .other = "layers.{l}.mlp.experts.{e}.down_proj.weight",
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.mlp.experts.gate_up_proj",
     .storage = ExpertStorage::fused},
    {.witan = "moe.experts.down_proj", .other = "layers.{l}.mlp.experts.down_proj", .storage = ExpertStorage::fused},
};

// Experts in tensors of their own, as Mixtral names them.
inline constexpr TensorRule kBlockSparseExpertRules[] = {
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.block_sparse_moe.experts.{e}.w1.weight",
     .part = 0,
     .parts = 2,
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.gate_up_proj",
     .other = "layers.{l}.block_sparse_moe.experts.{e}.w3.weight",
     .part = 1,
     .parts = 2,
     .storage = ExpertStorage::single},
    {.witan = "moe.experts.down_proj",
     .other = "layers.{l}.block_sparse_moe.experts.{e}.w2.weight",
     .storage = ExpertStorage::single},
};

// DeepSeek-V3's bias, by which experts are chosen.
inline constexpr TensorRule kRouterBiasRules[] = {
    {"moe.router.expert_bias", "layers.{l}.mlp.gate.e_score_correction_bias"},
};

inline constexpr TensorRule kSharedExpertRules[] = {
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.mlp.shared_experts.gate_proj.weight", 0, 2},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.mlp.shared_experts.up_proj.weight", 1, 2},
    {"moe.shared_experts.down_proj.weight", "layers.{l}.mlp.shared_experts.down_proj.weight"},
};

// The output of the shared expert is multiplied by sigmoid(shared_expert_gate x).
inline constexpr TensorRule kGatedSharedExpertRules[] = {
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.mlp.shared_expert.gate_proj.weight", 0, 2},
    {"moe.shared_experts.gate_up_proj.weight", "layers.{l}.mlp.shared_expert.up_proj.weight", 1, 2},
    {"moe.shared_experts.down_proj.weight", "layers.{l}.mlp.shared_expert.down_proj.weight"},
    {"moe.shared_experts.gate.weight", "layers.{l}.mlp.shared_expert_gate.weight"},
};

// Tensors of Mamba-2 that other programs join.
inline constexpr std::string_view kMambaProjections[] = {"mamba2.z_proj.weight", "mamba2.x_proj.weight",
                                                         "mamba2.B_proj.weight", "mamba2.C_proj.weight",
                                                         "mamba2.dt_proj.weight"};
inline constexpr std::string_view kMambaTaps[] = {"mamba2.x_conv.weight", "mamba2.B_conv.weight",
                                                  "mamba2.C_conv.weight"};
inline constexpr std::string_view kMambaTapBiases[] = {"mamba2.x_conv.bias", "mamba2.B_conv.bias",
                                                       "mamba2.C_conv.bias"};

// A module of multi-token prediction, beside its block.
inline constexpr TensorRule kMtpRules[] = {
    {"enorm.weight", "layers.{l}.enorm.weight"},
    {"hnorm.weight", "layers.{l}.hnorm.weight"},
    {"eh_proj.weight", "layers.{l}.eh_proj.weight"},
    {"norm.weight", "layers.{l}.shared_head.norm.weight"},
};

// The tensors of most dense architectures; those with experts add a table.
inline Architecture llama_like(std::string_view model_type, std::string_view name) {
  return {model_type, name, "model.", {kModelRules, kPreNormRules, kAttentionRules, kMlpRules}};
}

// ---- Default values of configuration classes

inline constexpr std::string_view kLlamaDefaults = R"({
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
  "hidden_act": "silu", "max_position_embeddings": 2048, "initializer_range": 0.02, "rms_norm_eps": 1e-6,
  "tie_word_embeddings": false, "rope_theta": 10000.0, "attention_bias": false, "attention_dropout": 0.0,
  "mlp_bias": false})";

// ---- GGUF files

inline constexpr GgufRule kGgufCommon[] = {
    {"embedding.weight", "token_embd.weight"},
    {"final_norm.weight", "output_norm.weight"},
    {"head.weight", "output.weight"},
    {"attention.o_proj.weight", "attn_output.weight"},
    {"mlp.gate_up_proj.weight", "ffn_gate.weight", 0, 2},
    {"mlp.gate_up_proj.weight", "ffn_up.weight", 1, 2},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"moe.router.weight", "ffn_gate_inp.weight"},
    {"moe.router.expert_bias", "exp_probs_b.bias"},
    {"moe.experts.gate_up_proj", "ffn_gate_exps.weight", 0, 2},
    {"moe.experts.gate_up_proj", "ffn_up_exps.weight", 1, 2},
    {"moe.experts.down_proj", "ffn_down_exps.weight"},
    {"moe.shared_experts.gate_up_proj.weight", "ffn_gate_shexp.weight", 0, 2},
    {"moe.shared_experts.gate_up_proj.weight", "ffn_up_shexp.weight", 1, 2},
    {"moe.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
};

inline constexpr GgufRule kGgufSharedExpertGate[] = {
    {"moe.shared_experts.gate.weight", "ffn_gate_inp_shexp.weight"},
};

inline constexpr GgufRule kGgufNorms[] = {
    {"attention_norm.weight", "attn_norm.weight"},
    {"mlp_norm.weight", "ffn_norm.weight"},
};

inline constexpr GgufRule kGgufAttention[] = {
    {"attention.q_proj.weight", "attn_q.weight"},      {"attention.q_proj.bias", "attn_q.bias"},
    {"attention.k_proj.weight", "attn_k.weight"},      {"attention.k_proj.bias", "attn_k.bias"},
    {"attention.v_proj.weight", "attn_v.weight"},      {"attention.v_proj.bias", "attn_v.bias"},
    {"attention.q_norm.weight", "attn_q_norm.weight"}, {"attention.k_norm.weight", "attn_k_norm.weight"},
};

// Rotation of neighbouring channels, as llama.cpp's "llama" computes it.
inline constexpr GgufRule kGgufPairedAttention[] = {
    {.witan = "attention.q_proj.weight", .other = "attn_q.weight", .rows = GgufRows::rope_pairs},
    {.witan = "attention.k_proj.weight", .other = "attn_k.weight", .rows = GgufRows::rope_pairs},
    {.witan = "attention.v_proj.weight", .other = "attn_v.weight"},
};

// The sections of the rotary positions of models that read images, of which text makes no use.
inline constexpr const char* kGgufSections = "rope.dimension_sections";

// Latent attention.
inline constexpr GgufRule kGgufLatent[] = {
    {"attention.q_proj.weight", "attn_q.weight"},
    {"attention.q_a_proj.weight", "attn_q_a.weight"},
    {"attention.q_a_layernorm.weight", "attn_q_a_norm.weight"},
    {"attention.q_b_proj.weight", "attn_q_b.weight"},
    {"attention.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
    {"attention.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
    {.witan = "attention.kv_b_proj.weight", .other = "attn_kv_b.weight", .latent = LatentStorage::joined},
    {.witan = "attention.kv_b_proj.weight",
     .other = "attn_k_b.weight",
     .rows = GgufRows::latent_keys,
     .latent = LatentStorage::divided},
    {.witan = "attention.kv_b_proj.weight",
     .other = "attn_v_b.weight",
     .rows = GgufRows::latent_values,
     .latent = LatentStorage::divided},
};

inline constexpr GgufRule kGgufMamba[] = {
    {.witan = "mamba2.z_proj.weight", .other = "ssm_in.weight", .joined = kMambaProjections},
    {.witan = "mamba2.x_proj.weight", .other = "ssm_in.weight", .joined = kMambaProjections},
    {.witan = "mamba2.B_proj.weight", .other = "ssm_in.weight", .joined = kMambaProjections},
    {.witan = "mamba2.C_proj.weight", .other = "ssm_in.weight", .joined = kMambaProjections},
    {.witan = "mamba2.dt_proj.weight", .other = "ssm_in.weight", .joined = kMambaProjections},
    {.witan = "mamba2.x_conv.weight", .other = "ssm_conv1d.weight", .joined = kMambaTaps},
    {.witan = "mamba2.B_conv.weight", .other = "ssm_conv1d.weight", .joined = kMambaTaps},
    {.witan = "mamba2.C_conv.weight", .other = "ssm_conv1d.weight", .joined = kMambaTaps},
    {.witan = "mamba2.x_conv.bias", .other = "ssm_conv1d.bias", .joined = kMambaTapBiases},
    {.witan = "mamba2.B_conv.bias", .other = "ssm_conv1d.bias", .joined = kMambaTapBiases},
    {.witan = "mamba2.C_conv.bias", .other = "ssm_conv1d.bias", .joined = kMambaTapBiases},
    {.witan = "mamba2.A_log", .other = "ssm_a", .values = GgufValues::minus_exp, .shape = GgufShape::column},
    {.witan = "mamba2.D", .other = "ssm_d", .shape = GgufShape::column},
    {"mamba2.dt_bias", "ssm_dt.bias"},
    {.witan = "mamba2.norm.weight", .other = "ssm_norm.weight", .shape = GgufShape::state_groups},
    {"mamba2.o_proj.weight", "ssm_out.weight"},
};

}  // namespace witan
