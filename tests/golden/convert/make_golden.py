#!/usr/bin/env python3
"""Writes a folder for each architecture beside this script: a tiny random model as transformers saves it (config.json,
model.safetensors), what transformers computes with it (expected.safetensors: tokens [B, S], logits [B, S, V], generated
[64]: the greedy continuation of the first 4 tokens of row 0), of a model with experts which of them each token has
(routes.safetensors: experts [layers with experts, B S, K], in ascending order) and the gradient of the mean cross entropy of tokens 1 to
S - 1 as a model of its own (gradient/model.safetensors), so that gradients have the names of weights.

Made with Python 3.11, torch 2.15.0 (CPU), transformers 5.23.0 (those of LATER, NEWEST, HYBRID, V4, GEMMAS and SIBLINGS: 5.24.0),
safetensors 0.8.0, float32; logits and gradients of HYBRID, GEMMAS, V4, olmo_hybrid and ernie4_5_moe are computed in float64, one model in a process. The bytes are committed; run this only to change them: `make_golden.py [NAME ...]`. `make_golden.py --check NAME FOLDER` loads
a folder that Witan exported, compares its logits with expected.safetensors, and fails where they differ at all. It was
run on the export of every model here.
`make_golden.py --routes NAME` writes routes.safetensors alone, of the model as it is.
`make_golden.py --export WITAN [NAME ...]` trains tiny models with the program, exports them as ../convert_exported/NAME,
records the logits that transformers computes with them, and fails where these are not the run's.
"""
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

HERE = pathlib.Path(__file__).parent
COMMON = dict(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=128, initializer_range=0.3, bos_token_id=1, eos_token_id=2, pad_token_id=None,
              rms_norm_eps=1e-5)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
            original_max_position_embeddings=32)
DEEPSEEK = dict(COMMON, intermediate_size=24, moe_intermediate_size=8, n_routed_experts=8, n_shared_experts=2,
                num_experts_per_tok=3, first_k_dense_replace=1, kv_lora_rank=12, qk_nope_head_dim=8,
                qk_rope_head_dim=4, v_head_dim=6, num_key_value_heads=4, num_hidden_layers=3,
                routed_scaling_factor=1.5)
MODELS = {
    "mixtral": ("Mixtral", dict(COMMON, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2,
                                sliding_window=7, rope_theta=1e6)),
    "llama": ("Llama", dict(COMMON, intermediate_size=24, tie_word_embeddings=True, rope_theta=5e5)),
    "llama3": ("Llama", dict(COMMON, intermediate_size=24, rope_parameters=LLAMA3_ROPE)),
    "gpt2": ("GPT2", dict(vocab_size=64, n_embd=16, n_layer=2, n_head=4, n_positions=80, n_inner=24,
                          initializer_range=0.3, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1,
                          eos_token_id=2)),
    "mistral": ("Mistral", dict(COMMON, intermediate_size=24, head_dim=8, sliding_window=6)),
    "qwen2": ("Qwen2", dict(COMMON, intermediate_size=24, use_sliding_window=True, max_window_layers=1,
                            sliding_window=6)),
    "qwen3": ("Qwen3", dict(COMMON, intermediate_size=24, head_dim=8)),
    "qwen3_moe": ("Qwen3Moe", dict(COMMON, intermediate_size=24, head_dim=8, num_experts=6, num_experts_per_tok=3,
                                   moe_intermediate_size=8, norm_topk_prob=True, mlp_only_layers=[0])),
    "olmoe": ("Olmoe", dict(COMMON, intermediate_size=12, num_experts=6, num_experts_per_tok=3, clip_qkv=1.5,
                            norm_topk_prob=False)),
    "olmo2": ("Olmo2", dict(COMMON, intermediate_size=24)),
    # Layers with a window and the others rotate apart: other frequencies, and frequencies that are not stretched.
    "olmo3": ("Olmo3", dict(COMMON, intermediate_size=24, num_hidden_layers=4, sliding_window=6,
                            rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=5e5),
                                                 sliding_attention=dict(rope_type="default", rope_theta=1e4)))),
    "olmo3_yarn": ("Olmo3", dict(COMMON, intermediate_size=24, num_hidden_layers=4, sliding_window=6,
                                 rope_parameters=dict(full_attention=dict(YARN, original_max_position_embeddings=16,
                                                                          attention_factor=0.1 * math.log(4) + 1),
                                                      sliding_attention=dict(rope_type="default", rope_theta=1e4)))),
    "deepseek_v2": ("DeepseekV2", dict(DEEPSEEK, q_lora_rank=None, topk_method="group_limited_greedy", n_group=4,
                                       topk_group=2, rope_parameters=dict(YARN, mscale=0.8, mscale_all_dim=0.8))),
    "deepseek_v3": ("DeepseekV3", dict(DEEPSEEK, q_lora_rank=10, n_group=4, topk_group=2, norm_topk_prob=True,
                                       rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))),
    "gpt_oss": ("GptOss", dict(COMMON, intermediate_size=12, head_dim=8, num_local_experts=6, num_experts_per_tok=3,
                               sliding_window=5, rope_parameters=dict(YARN, truncate=False))),
}
# Sequences of more than 256 tokens, of which expected.safetensors has one (long_tokens, long_logits), have other factors.
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, factor=1.6, short_factor=[1.0, 1.3], long_factor=[2.0, 5.5],
                original_max_position_embeddings=256)
LATER = {
    # Every layer has a window, whatever max_window_layers says.
    "qwen3_moe_window": ("Qwen3Moe", dict(MODELS["qwen3_moe"][1], use_sliding_window=True, sliding_window=6,
                                          max_window_layers=1)),
    "llama_attention_bias": ("Llama", dict(COMMON, intermediate_size=24, attention_bias=True)),
    "llama_mlp_bias": ("Llama", dict(COMMON, intermediate_size=24, mlp_bias=True)),
    "olmoe_attention_bias": ("Olmoe", dict(MODELS["olmoe"][1], attention_bias=True)),
    "llama_gelu": ("Llama", dict(COMMON, intermediate_size=24, hidden_act="gelu")),
    "mixtral_gelu": ("Mixtral", dict(MODELS["mixtral"][1], hidden_act="gelu_pytorch_tanh")),
    # No layer has experts.
    "deepseek_v2_dense": ("DeepseekV2", dict(MODELS["deepseek_v2"][1], first_k_dense_replace=3)),
    "deepseek_v3_dense": ("DeepseekV3", dict(MODELS["deepseek_v3"][1], first_k_dense_replace=3)),
    "gpt2_scaled": ("GPT2", dict(MODELS["gpt2"][1], scale_attn_by_inverse_layer_idx=True)),
    "llama_relu2": ("Llama", dict(COMMON, intermediate_size=24, hidden_act="relu2")),
    "gpt2_relu2": ("GPT2", dict(MODELS["gpt2"][1], activation_function="relu2")),
    "llama_longrope": ("Llama", dict(COMMON, max_position_embeddings=512, intermediate_size=24,
                                     rope_parameters=LONGROPE)),
    # Queries, keys and values are one tensor, of unequal parts, and half of each head rotates.
    "phi3": ("Phi3", dict(COMMON, intermediate_size=24, sliding_window=6,
                          rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
    "phi3_longrope": ("Phi3", dict(COMMON, max_position_embeddings=512, intermediate_size=24,
                                   original_max_position_embeddings=256, rope_parameters=LONGROPE)),
    "llama_dynamic": ("Llama", dict(COMMON, max_position_embeddings=256, intermediate_size=24,
                                    rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=4.0))),
}
MODELS |= LATER

# Models of 2025 and 2026, made of parts that those above have.
GLM = dict(COMMON, intermediate_size=24, moe_intermediate_size=8, n_routed_experts=8, num_experts_per_tok=3,
           n_shared_experts=2, num_hidden_layers=3, routed_scaling_factor=1.5, n_group=4, topk_group=2,
           norm_topk_prob=True)
NEWEST = {
    "glm4_moe_lite": ("Glm4MoeLite", dict(GLM, num_key_value_heads=4, kv_lora_rank=12, q_lora_rank=10,
                                          qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10,
                                          mlp_layer_types=["dense", "sparse", "sparse"])),
    # Half of each head rotates, and queries, keys and values alone have biases.
    "glm4_moe": ("Glm4Moe", dict(GLM, head_dim=8, attention_bias=True, use_qk_norm=True, first_k_dense_replace=1)),
    "minimax_m2": ("MiniMaxM2", dict(COMMON, intermediate_size=12, head_dim=8, num_local_experts=6,
                                     num_experts_per_tok=3,
                                     rope_parameters=dict(rope_type="default", rope_theta=5e6,
                                                          partial_rotary_factor=0.5))),
    "dots1": ("Dots1", dict(GLM, head_dim=8, first_k_dense_replace=1, sliding_window=6, max_window_layers=2)),
    "solar_open": ("SolarOpen", dict(GLM, head_dim=8)),
    "exaone_moe": ("ExaoneMoe", dict(COMMON, intermediate_size=24, head_dim=8, num_hidden_layers=4, num_experts=8,
                                     num_experts_per_tok=3, num_shared_experts=2, moe_intermediate_size=8,
                                     sliding_window=6, sliding_window_pattern=2, n_group=4, topk_group=2)),
    "qwen2_moe": ("Qwen2Moe", dict(COMMON, intermediate_size=24, num_experts=6, num_experts_per_tok=3,
                                   moe_intermediate_size=8, shared_expert_intermediate_size=12, mlp_only_layers=[0])),
    "flex_olmo": ("FlexOlmo", dict(COMMON, intermediate_size=12, num_experts=6, num_experts_per_tok=3)),
    "smollm3": ("SmolLM3", dict(COMMON, intermediate_size=24, num_hidden_layers=4, no_rope_layer_interval=2)),
    "seed_oss": ("SeedOss", dict(COMMON, intermediate_size=24, head_dim=8)),
}
# DeepSeek-V3 under the model_type of its authors, which transformers does not know.
NEWEST["kimi_k2"] = ("DeepseekV3", dict(DEEPSEEK, q_lora_rank=10, n_shared_experts=1, n_group=1, topk_group=1,
                                        routed_scaling_factor=2.827,
                                        rope_parameters=dict(YARN, beta_fast=1.0, factor=32.0, mscale=1.0,
                                                             mscale_all_dim=1.0)))
# Vision-language models, of which only the text decoder computes here; the towers' tensors are side tensors.
NEWEST |= {
    "llava": ("Llava", dict(
        text_config=dict(model_type="qwen2", **COMMON, intermediate_size=24),
        vision_config=dict(model_type="clip_vision_model", hidden_size=8, intermediate_size=12, num_hidden_layers=3,
                           num_attention_heads=2, image_size=8, patch_size=4, projection_dim=8),
        image_token_index=63, image_seq_length=4, tie_word_embeddings=False)),
    "kimi_k25": ("Kimi_K25", dict(
        text_config=dict(model_type="deepseek_v3", **NEWEST["kimi_k2"][1]),
        vision_config=dict(hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
                           patch_size=4, init_pos_emb_height=4, init_pos_emb_width=4, init_pos_emb_time=2),
        projection_hidden_size=12, image_token_id=62, video_token_id=63, vision_start_token_id=60,
        vision_end_token_id=61, tie_word_embeddings=False)),
}
# The folders of these types are those of the whole models.
TOWER = dict(depth=2, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=2, spatial_merge_size=2,
             temporal_patch_size=1, out_hidden_size=16)
IMAGES = dict(image_token_id=62, video_token_id=63, vision_start_token_id=60, vision_end_token_id=61,
              tie_word_embeddings=False)
QWEN2_VL = dict(COMMON, intermediate_size=24, use_sliding_window=True, max_window_layers=1, sliding_window=6,
                rope_parameters=dict(rope_type="default", rope_theta=1e5, mrope_section=[1, 1]))
QWEN3_VL = dict(COMMON, intermediate_size=24, head_dim=8,
                rope_parameters=dict(rope_type="default", rope_theta=1e5, mrope_interleaved=True,
                                     mrope_section=[2, 1, 1]))
NEWEST |= {
    "qwen2_vl_text": ("Qwen2VL", dict(IMAGES, text_config=QWEN2_VL, vision_config=dict(
        depth=2, embed_dim=8, hidden_size=16, num_heads=2, mlp_ratio=2, patch_size=2, spatial_merge_size=2,
        temporal_patch_size=1))),
    "qwen2_5_vl_text": ("Qwen2_5_VL", dict(IMAGES, text_config=QWEN2_VL,
                                           vision_config=dict(TOWER, window_size=4, fullatt_block_indexes=[1]))),
    "qwen3_vl_text": ("Qwen3VL", dict(IMAGES, text_config=QWEN3_VL,
                                      vision_config=dict(TOWER, num_position_embeddings=16, deepstack_visual_indexes=[0]))),
    "qwen3_vl_moe_text": ("Qwen3VLMoe", dict(
        IMAGES, text_config=dict(QWEN3_VL, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12,
                                 mlp_only_layers=[0]),
        vision_config=dict(TOWER, num_position_embeddings=16, deepstack_visual_indexes=[0]))),
    # As llama.cpp has it: all layers have experts.
    "qwen3_vl_moe_even": ("Qwen3VLMoe", dict(
        IMAGES, text_config=dict(QWEN3_VL, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12),
        vision_config=dict(TOWER, num_position_embeddings=16, deepstack_visual_indexes=[0]))),
    "glm4v_moe_text": ("Glm4vMoe", dict(
        image_token_id=62, video_token_id=63, image_start_token_id=58, image_end_token_id=59, video_start_token_id=60,
        video_end_token_id=61, tie_word_embeddings=False,
        text_config=dict(GLM, head_dim=16, first_k_dense_replace=1,
                         rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5,
                                              mrope_section=[1, 1, 2])),
        vision_config=dict(TOWER, image_size=8))),
}
GRANITE = dict(COMMON, intermediate_size=24, embedding_multiplier=3.0, residual_multiplier=0.4, logits_scaling=6.0,
               attention_multiplier=0.3)
HUNYUAN = dict(COMMON, intermediate_size=12, head_dim=8)
NEWEST |= {
    "granite": ("Granite", dict(GRANITE, attention_bias=True, mlp_bias=True)),
    "granitemoe": ("GraniteMoe", dict(GRANITE, num_local_experts=6, num_experts_per_tok=3)),
    "granitemoeshared": ("GraniteMoeShared", dict(GRANITE, num_local_experts=6, num_experts_per_tok=3,
                                                  shared_intermediate_size=20)),
    "ernie4_5": ("Ernie4_5", dict(COMMON, intermediate_size=24, head_dim=8, use_bias=True)),
    "ernie4_5_moe": ("Ernie4_5_Moe", dict(COMMON, intermediate_size=24, num_hidden_layers=4, moe_intermediate_size=8,
                                          moe_num_experts=6, moe_k=3, moe_num_shared_experts=2,
                                          moe_layer_start_index=1, moe_layer_end_index=3, moe_layer_interval=2)),
    # As llama.cpp has it: all layers after the first have experts.
    "ernie4_5_moe_even": ("Ernie4_5_Moe", dict(COMMON, intermediate_size=24, num_hidden_layers=3, moe_intermediate_size=8,
                                               moe_num_experts=6, moe_k=3, moe_num_shared_experts=2,
                                               moe_layer_start_index=1, moe_layer_interval=1)),
    "hunyuan_v1_dense": ("HunYuanDenseV1", dict(HUNYUAN, attention_bias=True)),
    # A factor alpha stretches all lengths alike.
    "hunyuan_v1_moe": ("HunYuanMoEV1", dict(HUNYUAN, num_experts=6, moe_topk=3, rope_parameters=dict(
        rope_type="dynamic", rope_theta=10000.0, alpha=50.0, factor=1.0))),
}
MODELS |= NEWEST

# Gated DeltaNet in most layers. A head of keys has three of values, and rows of projections are not joined in one order.
DELTA = dict(COMMON, head_dim=8, num_hidden_layers=4, linear_conv_kernel_dim=3, linear_key_head_dim=6,
             linear_value_head_dim=10, linear_num_key_heads=2, linear_num_value_heads=6)
DELTA_EXPERTS = dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=8, shared_expert_intermediate_size=12)
# As llama.cpp has them: heads of keys and of values of one size.
EVEN = dict(linear_key_head_dim=8, linear_value_head_dim=8)
DELTA_ROPE = dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[1, 1, 0],
                  mrope_interleaved=True)
DELTA_TOWER = dict(depth=1, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=4, spatial_merge_size=1,
                   temporal_patch_size=1, out_hidden_size=16, num_position_embeddings=4)
DELTA_WRAPPER = dict(vision_config=DELTA_TOWER, image_token_id=60, video_token_id=61, vision_start_token_id=62,
                     vision_end_token_id=63)
HYBRID = {
    "qwen3_next": ("Qwen3Next", dict(DELTA, **DELTA_EXPERTS, intermediate_size=24, mlp_only_layers=[1])),
    "qwen3_5_text": ("Qwen3_5Text", dict(DELTA, intermediate_size=24, attention_bias=True, tie_word_embeddings=True,
                                         layer_types=["full_attention", "linear_attention", "linear_attention",
                                                      "full_attention"], rope_parameters=DELTA_ROPE)),
    "qwen3_next_even": ("Qwen3Next", dict(DELTA, **DELTA_EXPERTS, **EVEN, intermediate_size=24)),
    "qwen3_5_moe_text": ("Qwen3_5MoeText", dict(DELTA, **DELTA_EXPERTS, rope_parameters=DELTA_ROPE)),
    "qwen3_5": ("Qwen3_5", dict(
        text_config=dict(DELTA, **EVEN, model_type="qwen3_5_text", intermediate_size=24, rope_parameters=DELTA_ROPE,
                         tie_word_embeddings=True), tie_word_embeddings=True, **DELTA_WRAPPER)),
    "qwen3_5_moe": ("Qwen3_5Moe", dict(
        text_config=dict(DELTA, **DELTA_EXPERTS, **EVEN, model_type="qwen3_5_moe_text", rope_parameters=DELTA_ROPE),
        tie_word_embeddings=False, **DELTA_WRAPPER)),
}
# Layers of one mixer each. Sizes of Mamba-2 are odd, and a chunk ends within the tokens.
NEMOTRON = dict(COMMON, head_dim=6, layer_norm_epsilon=1e-5, intermediate_size=20, mamba_num_heads=6, mamba_head_dim=4,
                n_groups=2, ssm_state_size=5, conv_kernel=3, chunk_size=9, n_routed_experts=8, num_experts_per_tok=3,
                moe_intermediate_size=12, moe_shared_expert_intermediate_size=20)
del NEMOTRON["rms_norm_eps"], NEMOTRON["num_hidden_layers"]
STATE_SPACE = {
    "nemotron_h": ("NemotronH", dict(NEMOTRON, hybrid_override_pattern="ME*-MEM", n_group=4, topk_group=2,
                                     routed_scaling_factor=2.5)),
    # Experts between two projections, weights of experts that are not divided by their sum, and steps that are clamped.
    "nemotron_h_latent": ("NemotronH", dict(NEMOTRON, hybrid_override_pattern="M*EME", moe_latent_size=10,
                                            norm_topk_prob=False, use_conv_bias=False, attention_bias=True,
                                            time_step_min=0.5)),
    # As Nemotron-H: no layer has experts.
    "nemotron_h_dense": ("NemotronH", dict(NEMOTRON, hybrid_override_pattern="M-M*-", mlp_bias=True)),
    # As llama.cpp has it: layers with experts and no dense ones.
    "nemotron_h_moe": ("NemotronH", dict(NEMOTRON, hybrid_override_pattern="ME*EM", moe_latent_size=10, n_group=4,
                                         topk_group=2, routed_scaling_factor=2.5)),
}
# Mamba-2 or attention before experts and a shared MLP; a chunk ends within the tokens.
GRANITE4 = dict(GRANITE, num_hidden_layers=4, mamba_n_heads=8, mamba_d_head=4, mamba_n_groups=2,
                mamba_d_state=5, mamba_d_conv=3, mamba_chunk_size=9, num_local_experts=6, num_experts_per_tok=3,
                shared_intermediate_size=20, layer_types=["mamba", "attention", "mamba", "mamba"])
STATE_SPACE |= {
    "granitemoehybrid": ("GraniteMoeHybrid", dict(GRANITE4, position_embedding_type="nope", tie_word_embeddings=True)),
    # No experts: the shared MLP is all that a layer has. Attention rotates, and steps are clamped.
    "granitemoehybrid_dense": ("GraniteMoeHybrid", dict(
        GRANITE4, head_dim=6, num_local_experts=0, num_experts_per_tok=0, intermediate_size=20,
        position_embedding_type="rope", attention_bias=True, mamba_conv_bias=False, mamba_d_head="auto", time_step_limit=(0.5, float("inf")),
        layer_types=["mamba", "attention", "attention", "mamba"])),
    # As llama.cpp has it: no steps are clamped.
    "granitemoehybrid_even": ("GraniteMoeHybrid", dict(
        GRANITE4, num_local_experts=0, num_experts_per_tok=0, intermediate_size=20,
        position_embedding_type="nope")),
}
HYBRID |= STATE_SPACE
# A decay for each channel of a key, and latent attention that does not rotate.
KIMI_LINEAR = dict(COMMON, num_hidden_layers=4, num_key_value_heads=4, intermediate_size=24, moe_intermediate_size=8,
                   num_local_experts=8, num_experts_per_tok=3, n_shared_experts=2, kv_lora_rank=12, qk_nope_head_dim=8,
                   qk_rope_head_dim=4, v_head_dim=6, linear_head_dim=6, linear_num_heads=4, linear_conv_kernel_dim=3)
HYBRID["kimi_linear"] = ("KimiLinear", dict(KIMI_LINEAR, n_group=4, topk_group=2, layer_types=[
    "linear_attention", "full_attention", "linear_attention", "linear_attention"]))
MODELS |= HYBRID
# Sparse attention: a token of the later ones chooses 5 of up to 24 keys. Many heads keep scores from being 0, and so
# equal.
INDEXER = dict(q_lora_rank=10, index_topk=5, index_head_dim=6, index_n_heads=16, num_key_value_heads=4)
MODELS |= {
    "deepseek_v32": ("DeepseekV32", dict(DEEPSEEK | INDEXER, n_group=4, topk_group=2, norm_topk_prob=True,
                                         rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))),
    # Two layers use the choice of the one before.
    "glm_moe_dsa": ("GlmMoeDsa", dict(GLM | INDEXER, num_hidden_layers=4, kv_lora_rank=12, qk_nope_head_dim=8,
                                      qk_rope_head_dim=4, v_head_dim=10, mlp_layer_types=["dense"] + ["sparse"] * 3,
                                      indexer_types=["full", "full", "shared", "shared"],
                                      rope_parameters=dict(rope_type="default", rope_theta=1e6))),
}

# A layer of each kind, and entries of 6 tokens without an indexer. Tables choose the experts of the first two layers.
YARN_OF_V4 = {key: value for key, value in YARN.items() if key != "rope_theta"}
OF_V4 = dict(COMMON, num_key_value_heads=1, head_dim=12, q_lora_rank=10, o_groups=2, o_lora_rank=6, sliding_window=5,
             index_n_heads=16, index_head_dim=8, index_topk=2, partial_rotary_factor=4 / 12, rope_parameters=YARN_OF_V4,
             n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, moe_intermediate_size=8, swiglu_limit=0.5,
             hc_mult=3, hc_sinkhorn_iters=5)
V4 = {
    "deepseek_v4": ("DeepseekV4", dict(
        OF_V4, num_hidden_layers=4,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                     "compressed_sparse_attention"],
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 6},
        mlp_layer_types=["hash_moe", "hash_moe", "moe", "moe"])),
    # As llama.cpp has it: other entries are of 128 tokens.
    "deepseek_v4_even": ("DeepseekV4", dict(
        OF_V4, num_hidden_layers=3,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        mlp_layer_types=["hash_moe", "moe", "moe"])),
}
MODELS |= V4

# Norms on both sides of attention and MLP; every third layer has full attention, whose positions are stretched.
GEMMA = dict(COMMON, head_dim=6, intermediate_size=24, num_hidden_layers=4, sliding_window=6, final_logit_softcapping=8.0,
             layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
             rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=5e5, factor=4.0),
                                  sliding_attention=dict(rope_type="default", rope_theta=1e3)))
SIGLIP = dict(model_type="siglip_vision_model", hidden_size=8, intermediate_size=12, num_hidden_layers=1,
              num_attention_heads=2, image_size=8, patch_size=4)
GEMMAS = {
    "gemma3_text": ("Gemma3Text", dict(GEMMA, query_pre_attn_scalar=10, attention_bias=True)),
    # As llama.cpp has it: logits are divided by the square root of the heads' size.
    "gemma3": ("Gemma3", dict(
        text_config=dict(GEMMA, model_type="gemma3_text", query_pre_attn_scalar=6, num_hidden_layers=7,
                         layer_types=None, final_logit_softcapping=None),
        vision_config=SIGLIP, mm_tokens_per_image=4, boi_token_index=60, eoi_token_index=61, image_token_index=62)),
}
# Heads of layers with full attention have another size and number, of which two of five pairs of channels turn.
GEMMA4 = dict(COMMON, head_dim=6, intermediate_size=24, num_hidden_layers=4, sliding_window=6, attention_k_eq_v=True,
              final_logit_softcapping=8.0, layer_types=["sliding_attention", "full_attention"] * 2,
              global_head_dim=10, num_global_key_value_heads=1,
              rope_parameters=dict(full_attention=dict(rope_type="proportional", rope_theta=5e5,
                                                       partial_rotary_factor=0.5),
                                   sliding_attention=dict(rope_type="default", rope_theta=1e3)))
GEMMAS |= {
    "gemma4_text": ("Gemma4Text", dict(GEMMA4, hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=6,
                                       top_k_experts=3, moe_intermediate_size=8)),
    # Layers of both kinds borrow keys and values, and have wide MLPs; each has an embedding of its own.
    "gemma4_text_small": ("Gemma4Text", dict(GEMMA4, attention_k_eq_v=False, num_hidden_layers=6,
                                             num_global_key_value_heads=None,
                                             layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
                                             num_kv_shared_layers=3, use_double_wide_mlp=True,
                                             hidden_size_per_layer_input=4,
                                             vocab_size_per_layer_input=COMMON["vocab_size"])),
    "gemma4_unified_text": ("Gemma4UnifiedText", dict(GEMMA4, attention_bias=True)),
    # Keys and values of one number in all layers, by projections of their own; frequencies are stretched.
    "gemma4": ("Gemma4", dict(
        text_config=dict(GEMMA4, model_type="gemma4_text", pad_token_id=0, hidden_size_per_layer_input=0,
                         attention_k_eq_v=False,
                         num_hidden_layers=7, layer_types=None, final_logit_softcapping=None,
                         use_bidirectional_attention="vision",
                         rope_parameters=dict(full_attention=dict(rope_type="proportional", rope_theta=5e5, factor=4.0,
                                                                  partial_rotary_factor=0.25),
                                              sliding_attention=dict(rope_type="default", rope_theta=1e3))),
        vision_config=dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
                           num_key_value_heads=2, head_dim=4, patch_size=2, position_embedding_size=4),
        audio_config=dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, output_proj_dims=8,
                          subsampling_conv_channels=[2, 2]),
        boi_token_id=60, eoi_token_id=61, image_token_id=62, video_token_id=63, boa_token_id=60, eoa_token_index=61,
        audio_token_id=62)),
}
MODELS |= GEMMAS

# Other mixers beside attention. LFM2's MLPs are smaller than the file says, and its norms have an epsilon of their own
# name; OLMo Hybrid's layers do not rotate.
LFM = {key: value for key, value in COMMON.items() if key != "rms_norm_eps"} | dict(norm_eps=1e-3, num_hidden_layers=4)
SIBLINGS = {
    "lfm2": ("Lfm2", dict(LFM, intermediate_size=30, block_multiple_of=8, block_ffn_dim_multiplier=1.1, conv_bias=True,
                          conv_L_cache=5, layer_types=["conv", "full_attention", "conv", "conv"])),
    "lfm2_moe": ("Lfm2Moe", dict(LFM, intermediate_size=24, moe_intermediate_size=8, num_experts=6,
                                 num_experts_per_tok=3, num_dense_layers=1, routed_scaling_factor=1.5,
                                 layer_types=["conv", "conv", "full_attention", "conv"])),
    # As llama.cpp has them: no biases, and weights of experts that are not scaled.
    "lfm2_even": ("Lfm2", dict(LFM, intermediate_size=30, block_multiple_of=8, conv_L_cache=4,
                               layer_types=["conv", "full_attention", "conv", "full_attention"])),
    "lfm2_moe_even": ("Lfm2Moe", dict(LFM, intermediate_size=24, moe_intermediate_size=8, num_experts=6,
                                      num_experts_per_tok=3, num_dense_layers=2, conv_L_cache=3,
                                      layer_types=["conv", "full_attention", "conv", "full_attention"])),
    "olmo_hybrid": ("OlmoHybrid", dict(
        COMMON, intermediate_size=24, num_hidden_layers=4, linear_conv_kernel_dim=3, linear_key_head_dim=6,
        linear_value_head_dim=10, linear_num_key_heads=2, linear_num_value_heads=6,
        layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=None))),
}
MODELS |= SIBLINGS

# Runs of Witan's, of a few steps so that norms and biases are not what they begin as.
RUN = ("--seq-length 128 --num-layers 2 --hidden-size 16 --num-attention-heads 4 "
       "--ffn-hidden-size 24 --init-method-std 0.3 --train-iters 4 --micro-batch-size 1 --global-batch-size 2 --lr 0.05 "
       "--lr-warmup-iters 0 --save-interval 4 --sample-tokens 0 --eval-interval 0 --tokenizer-vocab-size 300 "
       "--device cpu --ranks 1")
GROUPS = "--num-query-groups 2 "
DENSE = GROUPS + "--num-experts 0 "
EXPERTS = GROUPS + "--num-experts 6 --moe-router-topk 3 --moe-ffn-hidden-size 8 "
LATENT = ("--multi-latent-attention true --kv-lora-rank 12 --qk-head-dim 8 --qk-pos-emb-head-dim 4 --v-head-dim 6 "
          "--rotary-interleaved true ")
EXPORTS = {
    "llama": DENSE + "--add-bias-linear true --untie-embeddings-and-output-weights true",
    "llama_attention_bias": DENSE + "--add-attention-bias true --swiglu false --geglu true --gelu-tanh true",
    "llama_mlp_bias": DENSE + "--add-mlp-bias true --swiglu false --squared-reglu true",
    "qwen2": DENSE + "--add-qkv-bias true --window-size 5,0 --window-attn-skip-freq [0,1]",
    "qwen3": DENSE + "--qk-layernorm true --rope-scaling-type linear --rotary-scaling-factor 4",
    "mistral": DENSE + "--window-size 5,0",
    "olmo2": DENSE + "--qk-layernorm true --qk-layernorm-full-width true --norm-placement post",
    "gpt2": "--num-experts 0 --num-query-groups 4 --add-bias-linear true --normalization LayerNorm --norm-bias true "
            "--swiglu false --gelu-tanh true --position-embedding-type learned_absolute "
            "--scale-attn-by-inverse-layer-idx true",
    "mixtral": EXPERTS + "--window-size 5,0",
    "qwen3_moe": EXPERTS + "--qk-layernorm true --window-size 5,0 --moe-layer-freq [0,1]",
    "olmoe": EXPERTS + "--qk-layernorm true --qk-layernorm-full-width true --clip-qkv 1.5 "
             "--moe-router-pre-softmax true",
    "deepseek_v2": LATENT + DENSE + "--q-lora-rank 10",
    "deepseek_v3": LATENT + EXPERTS + "--moe-layer-freq [0,1] --moe-shared-expert-intermediate-size 16 "
                   "--moe-router-score-function sigmoid --moe-router-enable-expert-bias true "
                   "--moe-router-topk-scaling-factor 1.5",
    "longrope": DENSE + "--rope-scaling-type longrope --rotary-scaling-factor 2 --rope-short-factors [1.0,1.3] "
                "--rope-long-factors [2.0,5.5] --original-max-position-embeddings 128",
}
UNTIED = "--untie-embeddings-and-output-weights true "
SIGMOID = "--moe-router-score-function sigmoid --moe-router-enable-expert-bias true "
SHARED = "--moe-shared-expert-intermediate-size 16 "
SCALED = "--moe-router-topk-scaling-factor 1.5 "
DELTA_FLAGS = ("--experimental-attention-variant gated_delta_net --linear-attention-freq [1,0] --linear-conv-kernel-dim 3 "
               "--linear-key-head-dim 6 --linear-value-head-dim 10 --linear-num-key-heads 2 --linear-num-value-heads 4 ")
QWEN_HYBRID = DELTA_FLAGS + ("--attention-output-gate true --apply-layernorm-1p true --qk-layernorm true "
                             "--rotary-percent 0.5 ")
QWEN_SHARED = "--moe-shared-expert-intermediate-size 12 --moe-shared-expert-gate true "
CONVOLUTIONS = ("--experimental-attention-variant short_convolution --linear-attention-freq [1,0] "
                "--linear-conv-kernel-dim 3 --qk-layernorm true ")
MAMBA = ("--mamba-num-heads 6 --mamba-head-dim 4 --mamba-num-groups 2 --mamba-state-dim 5 --mamba-conv-kernel-dim 3 "
         "--mamba-dt-min 0.001 --position-embedding-type none --swiglu false --squared-relu true ")
INDEXED = LATENT + ("--experimental-attention-variant dsa --q-lora-rank 10 --dsa-indexer-n-heads 16 "
                    "--dsa-indexer-head-dim 6 --dsa-indexer-topk 5 --untie-embeddings-and-output-weights true ")
GRANITE_MAMBA = ("--experimental-attention-variant mamba2 --linear-attention-freq [1,0] --mamba-num-heads 8 "
                 "--mamba-head-dim 4 --mamba-num-groups 2 --mamba-state-dim 5 --mamba-conv-kernel-dim 3 "
                 "--position-embedding-type none --embedding-multiplier 3 --residual-multiplier 0.4 "
                 "--logit-scale 0.25 --softmax-scale 0.3 ")
# Those of recurrent layers are computed in float64, each in a process of its own.
RECURRENT = {
    "qwen3_next": EXPERTS + QWEN_HYBRID + QWEN_SHARED,
    "qwen3_5_text": DENSE + QWEN_HYBRID,
    "qwen3_5_moe_text": EXPERTS + QWEN_HYBRID + QWEN_SHARED,
    "nemotron_h": EXPERTS + UNTIED + MAMBA + SIGMOID + SHARED + SCALED + "--hybrid-override-pattern ME*-M "
                  "--num-layers 5 --moe-latent-size 10",
    "granitemoehybrid": GROUPS + "--num-experts 6 --moe-router-topk 3 " + SHARED + GRANITE_MAMBA,
    "kimi_linear": LATENT.replace("--rotary-interleaved true ", "") + "--num-experts 6 --moe-router-topk 3 "
                   "--moe-ffn-hidden-size 8 --moe-layer-freq [0,1] --position-embedding-type none " + SIGMOID + SHARED +
                   SCALED + UNTIED + DELTA_FLAGS.replace("gated_delta_net", "kimi_delta").replace(
                       "--linear-value-head-dim 10 --linear-num-key-heads 2",
                       "--linear-value-head-dim 6 --linear-num-key-heads 4"),
    "olmo_hybrid": DENSE + DELTA_FLAGS + "--linear-allow-neg-eigval true --qk-layernorm true "
                   "--qk-layernorm-full-width true --norm-placement post_attention --linear-norm-epsilon 1e-5",
}
EXPORTS |= RECURRENT | {
    "lfm2": DENSE + CONVOLUTIONS + "--linear-conv-bias true",
    "lfm2_moe": EXPERTS + CONVOLUTIONS + SIGMOID + SCALED + "--moe-layer-freq [0,1]",
    "deepseek_v32": INDEXED + EXPERTS + SIGMOID + SHARED + SCALED + "--moe-layer-freq [0,1]",
    "glm_moe_dsa": INDEXED + EXPERTS + SIGMOID + SHARED + SCALED + "--dsa-indexer-rope-interleaved true "
                   "--dsa-indexer-freq [1,0]",
    "glm4_moe": EXPERTS + SIGMOID + SHARED + SCALED + "--moe-layer-freq [0,1] --rotary-percent 0.5 --add-qkv-bias true "
                "--qk-layernorm true",
    "minimax_m2": EXPERTS + SIGMOID + "--rotary-percent 0.5 --qk-layernorm true --qk-layernorm-full-width true",
    "qwen2_moe": EXPERTS + QWEN_SHARED + "--add-qkv-bias true",
    "gemma4_text": DENSE + "--num-layers 4 --num-kv-shared-layers 2 --use-double-wide-mlp true "
                   "--hidden-size-per-layer-input 4 --window-size 5,0 --window-attn-skip-freq 2 --kv-channels 10 "
                   "--window-kv-channels 6 --rotary-proportional true --rotary-percent 0.5 --window-rotary-percent 1 "
                   "--qk-layernorm true --v-l2-norm true --softmax-scale 1 --embedding-multiplier 4 --swiglu false "
                   "--geglu true --gelu-tanh true --norm-placement both --layer-scalar true --logit-soft-cap 30",
    "exaone_moe": EXPERTS + SIGMOID + SHARED + "--moe-layer-freq [0,1] --qk-layernorm true --window-size 5,0 "
                  "--window-attn-skip-freq [1,0] --no-rope-freq [0,1]",
}


def class_of(config):
    return transformers.AutoModelForImageTextToText if hasattr(config, "text_config") else transformers.AutoModelForCausalLM


def load(folder):
    model = class_of(transformers.AutoConfig.from_pretrained(folder)).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    return model.eval()


def randomise(model):
    """Nothing that a model begins with stays: norms, biases and sinks that are 1 or 0 would hide mistakes."""
    generator = torch.Generator().manual_seed(7)
    tensors = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers()
                                               if "correction_bias" in n or "expert_bias" in n or "layer_scalar" in n]
    for name, tensor in tensors:
        noise = torch.randn(tensor.shape, generator=generator) * 0.3
        around_one = "norm" in name or ".ln_" in name or "layer_scalar" in name
        tensor.data = (1 + noise if around_one else noise).to(tensor.dtype)
    for name, table in model.named_buffers():
        if "tid2eid" in name:  # different experts for each token
            table.data = torch.rand(table.size(0), 8, generator=generator).argsort(dim=1)[:, : table.size(1)].clone()


def save(model, folder):
    """Tensors are those of published folders, which transformers 5.24.0 reads: it saves the layers of kimi_k25's text
    decoder under the name of the tower's, qwen3_vl_moe's experts as [out, in], and olmo_hybrid's convolutions in equal
    thirds and all norms that it has in memory as post_attention_layernorm as feedforward_layer_norm, and kimi_linear's
    dense layers under the name of those with experts."""
    model.save_pretrained(folder)
    names = (folder.name, folder.parent.name)
    path = folder / "model.safetensors"
    if "kimi_k25" in names:
        tensors = {name.replace("language_model.model.blocks.", "language_model.model.layers."): tensor
                   for name, tensor in load_file(path).items()}
        save_file(tensors, path, {"format": "pt"})
    if any(name.startswith("qwen3_vl_moe") for name in names):
        tensors = {name: tensor.transpose(1, 2).contiguous() if ".mlp.experts." in name else tensor
                   for name, tensor in load_file(path).items()}
        save_file(tensors, path, {"format": "pt"})
    if "olmo_hybrid" in names:
        save_file(published_olmo(load_file(path), model.config), path, {"format": "pt"})
    if "kimi_linear" in names:
        tensors = {name if any(part in name for part in (".experts.", ".gate.", ".shared_experts.")) else
                   name.replace(".block_sparse_moe.", ".mlp."): tensor for name, tensor in load_file(path).items()}
        save_file(tensors, path, {"format": "pt"})
    if folder.name in ("qwen3_next", "qwen3_5"):
        path = folder / "model.safetensors"
        save_file(load_file(path) | mtp_of(folder.name), path, {"format": "pt"})


def published_olmo(tensors, config):
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    found = {}
    for name, tensor in tensors.items():
        if "_conv1d." not in name:
            attends = name.replace("feedforward_layer_norm", "post_feedforward_layernorm") in tensors
            name = name.replace("feedforward_layer_norm", "post_attention_layernorm") if attends else name
            found[name] = tensor
        elif ".q_conv1d." in name:
            of = [name.replace(".q_conv1d.", f".{part}_conv1d.") for part in "qkv"]
            whole = torch.cat([tensors[part] for part in of])
            sizes = [keys, keys, len(whole) - 2 * keys]
            found |= {part: taps.clone() for part, taps in zip(of, whole.split(sizes))}
    return found


def mtp_of(name):
    """A part of the module of multi-token prediction that published folders have, and that transformers passes over."""
    generator = torch.Generator().manual_seed(9)
    shapes = {"mtp.fc.weight": (16, 32), "mtp.norm.weight": (16,), "mtp.pre_fc_norm_hidden.weight": (16,)}
    return {tensor: torch.randn(shape, generator=generator).to(torch.bfloat16 if name == "qwen3_5" else torch.float32)
            for tensor, shape in shapes.items()}


def compute_in_double(model):
    """Whatever transformers computes in float32 is computed in float64 from now on: the delta rule amplifies roundings
    so much that float32 would only show that two programs agree to four digits."""
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    model.double()
    for module in model.modules():
        if not hasattr(module, "compute_default_rope_parameters"):
            continue
        if not isinstance(getattr(module, "rope_type", None), dict):
            module.inv_freq = module.compute_default_rope_parameters(module.config)[0]
            continue
        for kind, rope in module.rope_type.items():  # the rotations of types of layers
            make = module.compute_default_rope_parameters if rope == "default" else ROPE_INIT_FUNCTIONS[rope]
            of = module.config.per_layer_config[kind] if "Gemma4" in type(module).__name__ else module.config
            setattr(module, kind + "_inv_freq", make(of, layer_type=kind)[0])


def save_routes(model, tokens, folder):
    chosen = []
    for name, module in model.named_modules():
        if name.endswith(".experts"):  # called with hidden states, the chosen experts and their weights
            module.register_forward_pre_hook(lambda _, given: chosen.append(given[1].sort(-1).values.int()))
    if not any(name.endswith(".experts") for name, _ in model.named_modules()):
        return
    with torch.no_grad():
        model(tokens)
    experts = torch.stack([one.reshape(-1, one.size(-1)) for one in chosen])
    save_file({"experts": experts}, folder / "routes.safetensors", {"format": "pt"})
    print(folder.name, "experts", list(experts.shape))


def routes(name):
    folder = HERE / name
    with tempfile.TemporaryDirectory() as place:
        shutil.copy(folder / "model.safetensors", place)
        config = (folder / "config.json").read_text().replace('"kimi_k2"', '"deepseek_v3"')
        (pathlib.Path(place) / "config.json").write_text(config)
        model = load(pathlib.Path(place))
    if load_file(folder / "expected.safetensors")["logits"].dtype == torch.float64:
        compute_in_double(model)
    save_routes(model, load_file(folder / "expected.safetensors")["tokens"], folder)


def make(name):
    kind, settings = MODELS[name]
    torch.manual_seed(1)
    config = getattr(transformers, kind + "Config")(**settings)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = class_of(config).from_config(config).float()
    randomise(model)
    folder = HERE / name
    save(model, folder)
    model = load(folder)
    if name in HYBRID or name in GEMMAS or name in V4 or name in ("olmo_hybrid", "ernie4_5_moe"):
        compute_in_double(model)
    # The last tokens of a vision-language model stand for images.
    vocabulary = config.text_config.vocab_size - 4 if hasattr(config, "text_config") else config.vocab_size
    tokens = torch.randint(3, vocabulary, (2, 24), generator=torch.Generator().manual_seed(3))
    logits = model(tokens).logits
    rows = logits[:, :-1].reshape(-1, logits.size(-1))
    torch.nn.functional.cross_entropy(rows, tokens[:, 1:].reshape(-1)).backward()
    save_routes(model, tokens, folder)
    generated, row = [], tokens[:1, :4]
    with torch.no_grad():
        for _ in range(64):
            row = torch.cat([row, model(row).logits[:, -1:].argmax(-1)], 1)
    generated = row[0, 4:]
    expected = {"tokens": tokens, "logits": logits.detach().contiguous(), "generated": generated.contiguous()}
    if name.endswith("_longrope"):
        expected["long_tokens"] = torch.randint(3, config.vocab_size, (1, 270),
                                                generator=torch.Generator().manual_seed(5))
        with torch.no_grad():
            expected["long_logits"] = model(expected["long_tokens"]).logits.contiguous()
    save_file(expected, folder / "expected.safetensors", {"format": "pt"})
    for parameter in model.parameters():
        parameter.data = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
    save(model, folder / "gradient")
    for extra in ["config.json", "generation_config.json"]:
        (folder / "gradient" / extra).unlink(missing_ok=True)
    if name == "kimi_k2":
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": name}, indent=2) + "\n")
    print(name, sum(p.numel() for p in model.parameters()), {str(p.dtype) for p in model.parameters()})


def export(witan, name):
    """A tiny run of Witan's, exported as the folder ../convert_exported/NAME. Its config.json is judged by transformers, and not by
    Witan's own reader: the log probabilities of a text that the run writes are compared."""
    folder = HERE.parent / "convert_exported" / name
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        text = pathlib.Path(place) / "text.txt"
        text.write_text("".join(f"line {i} of {i * i % 97} words\n" for i in range(400)))

        def run(*command):
            return subprocess.run([witan, *command, "--run", name, "--runs-folder", place + "/runs"], check=True,
                                  capture_output=True, text=True).stdout
        flags = EXPORTS[name].split()
        common = RUN.replace("--num-layers 2 ", "") if "--num-layers" in flags else RUN
        run("train", "--data", text, *common.split(), *flags)
        run("export", "--format", "hf", folder, *([] if name == "longrope" or name.startswith("llama_") else
                                                  ["--architecture", name]))
        prompts = pathlib.Path(place) / "prompts.jsonl"
        prompts.write_text('{"prompt":"line 7 "}')
        written = json.loads(run("generate", "--prompts", prompts, "--json", "--logprobs", "0", "--temperature", "1",
                                 "--seed", "3", "--max-tokens", "60", "--device", "cpu"))
    prompt = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).encode("line 7 ")
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            file.unlink()
    model = load(folder)
    if name in RECURRENT:
        compute_in_double(model)
    with torch.no_grad():
        of_text = model(torch.tensor([prompt + written["tokens"]])).logits[0, len(prompt) - 1:-1].log_softmax(-1)
        tokens = torch.randint(3, model.config.vocab_size, (1, 24), generator=torch.Generator().manual_seed(3))
        logits = model(tokens).logits.contiguous()
    found = of_text.gather(-1, torch.tensor(written["tokens"])[:, None])[:, 0]
    difference = (found - torch.tensor(written["logprobs"])).abs().max().item()
    print(f"{name}: log probabilities differ by {difference:.1e}")
    save_file({"tokens": tokens, "logits": logits}, folder / "expected.safetensors", {"format": "pt"})
    if not difference < 1e-4:
        sys.exit(f"{name} is another model")


def check(name, folder):
    expected = load_file(HERE / name / "expected.safetensors")
    with torch.no_grad():
        logits = load(folder)(expected["tokens"]).logits
    difference = (logits - expected["logits"]).abs().max().item()
    print(f"{name}: {folder} differs by {difference}")
    sys.exit(difference != 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(*sys.argv[2:4])
    elif sys.argv[1:2] == ["--routes"]:
        routes(sys.argv[2])
    elif sys.argv[1:2] == ["--export"]:
        for one in sys.argv[3:] or EXPORTS:
            export(sys.argv[2], one)
    else:
        for one in sys.argv[1:] or MODELS:
            make(one)
