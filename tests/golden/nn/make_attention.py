#!/usr/bin/env python3
"""Writes attention.tsv, which tests/nn/attention/attention_test.cpp expects, by Hugging Face's models.

    make_attention.py > attention.tsv

transformers 5.23.0 and PyTorch 2.15 on a CPU; what they form in float32 is float64 here. A case begins with a line
"case", its name and its settings by Witan's keys; then lines of y, of the gradient of x, and of each parameter's, with
their values. All that goes in is counted out: element i of x is sin(0.9 i + 0.2), of y's gradient cos(0.4 i + 0.1), of
the p-th matrix 0.3 sin(1.7 i + p) and of the p-th norm 1 + 0.2 sin(1.7 i + p), p counting parameters in the order of
the lines.
"""

import torch

torch.float = torch.float32 = torch.float64
torch.Tensor.float = torch.Tensor.double
torch.set_default_dtype(torch.float64)
from transformers import DeepseekV2Config, DeepseekV3Config, LlamaConfig  # noqa: E402
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2  # noqa: E402
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3  # noqa: E402
from transformers.models.llama import modeling_llama as llama  # noqa: E402

D = 12
POSITIONS = [0, 1, 2, 3, 17, 18, 60, 61, 200]

LATENT = dict(hidden_size=D, num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=6, qk_nope_head_dim=4,
              qk_rope_head_dim=8, v_head_dim=6, rms_norm_eps=1e-6, max_position_embeddings=256)
LATENT_KEYS = ("multi_latent_attention=true;num_attention_heads=3;kv_lora_rank=6;qk_head_dim=4;"
               "qk_pos_emb_head_dim=8;v_head_dim=6")
YARN = dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, beta_fast=8.0, beta_slow=1.0,
            original_max_position_embeddings=64)
YARN_KEYS = (";rotary_base=1000;rope_scaling_type=yarn;rotary_scaling_factor=4;beta_fast=8;beta_slow=1;"
             "original_max_position_embeddings=64")
PLAIN = dict(rope_type="default", rope_theta=1000.0)
LLAMA = dict(hidden_size=D, num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=256)
LLAMA_KEYS = "num_attention_heads=4;num_query_groups=2;kv_channels=8"

LATENT_NAMES = ["kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"]
Q_NAMES = ["q_a_proj", "q_a_layernorm", "q_b_proj"]
CASES = [
    ("deepseek_v3", LATENT_KEYS + YARN_KEYS + ";q_lora_rank=7;rotary_interleaved=true;mscale=1;mscale_all_dim=1",
     v3.DeepseekV3Attention, v3.DeepseekV3RotaryEmbedding, Q_NAMES + LATENT_NAMES,
     DeepseekV3Config(**LATENT, q_lora_rank=7, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))),
    ("deepseek_v3_halves", LATENT_KEYS + ";q_lora_rank=7;rotary_base=1000",
     v3.DeepseekV3Attention, v3.DeepseekV3RotaryEmbedding, Q_NAMES + LATENT_NAMES,
     DeepseekV3Config(**LATENT, q_lora_rank=7, rope_interleave=False, rope_parameters=PLAIN)),
    ("deepseek_v2", LATENT_KEYS + YARN_KEYS + ";rotary_interleaved=true;mscale=0.8;mscale_all_dim=0.3",
     v2.DeepseekV2Attention, v2.DeepseekV2RotaryEmbedding, ["q_proj"] + LATENT_NAMES,
     DeepseekV2Config(**LATENT, q_lora_rank=None, rope_parameters=dict(YARN, mscale=0.8, mscale_all_dim=0.3))),
    ("llama_yarn", LLAMA_KEYS + YARN_KEYS, llama.LlamaAttention, llama.LlamaRotaryEmbedding,
     ["q_proj", "k_proj", "v_proj", "o_proj"], LlamaConfig(**LLAMA, rope_parameters=YARN)),
    ("llama3", LLAMA_KEYS + ";rotary_base=1000;rope_scaling_type=llama3;rotary_scaling_factor=4;"
     "rope_low_freq_factor=1;rope_high_freq_factor=4;original_max_position_embeddings=64",
     llama.LlamaAttention, llama.LlamaRotaryEmbedding, ["q_proj", "k_proj", "v_proj", "o_proj"],
     LlamaConfig(**LLAMA, rope_parameters=dict(rope_type="llama3", rope_theta=1000.0, factor=4.0, low_freq_factor=1.0,
                                               high_freq_factor=4.0, original_max_position_embeddings=64))),
]


def counted(shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


for name, settings, Attention, Rotary, names, config in CASES:
    config._attn_implementation = "eager"
    attention = Attention(config, 0)
    parameters = [dict(attention.named_parameters())[n + ".weight"] for n in names]
    assert len(parameters) == len(list(attention.parameters()))
    with torch.no_grad():
        for p, parameter in enumerate(parameters):
            wave = torch.sin(1.7 * counted(parameter.shape) + p)
            parameter.copy_(0.3 * wave if parameter.dim() == 2 else 1 + 0.2 * wave)
    S = len(POSITIONS)
    x = torch.sin(0.9 * counted((1, S, D)) + 0.2).requires_grad_()
    mask = torch.full((S, S), float("-inf")).triu(1)[None, None]
    y, _ = attention(x, position_embeddings=Rotary(config)(x, torch.tensor([POSITIONS])), attention_mask=mask)
    y.backward(torch.cos(0.4 * counted(y.shape) + 0.1))
    print("case", name, settings, sep="\t")
    for what, values in [("y", y), ("x", x.grad)] + [(n, p.grad) for n, p in zip(names, parameters)]:
        assert values.dtype == torch.float64
        print(what, *(f"{v:.14g}" for v in values.flatten().tolist()), sep="\t")
