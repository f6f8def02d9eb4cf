#!/usr/bin/env python3
"""Writes attention.tsv, which tests/nn/attention/golden_attention_test.cpp reads: attention layers of transformers on
random weights, their outputs and gradients of sum(y * dy), in float64. A line is a name and values in hexadecimal, of a
row-major tensor.

Made with torch 2.15.0 and transformers 5.23.0, on a CPU:  make_attention.py attention.tsv
"""

import sys

import torch
from transformers import GptOssConfig, Olmo2Config, OlmoeConfig, Qwen2MoeConfig, Qwen3MoeConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding
from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention, Olmo2RotaryEmbedding
from transformers.models.olmoe.modeling_olmoe import OlmoeAttention, OlmoeRotaryEmbedding
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeAttention, Qwen2MoeRotaryEmbedding
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeAttention, Qwen3MoeRotaryEmbedding

torch.set_default_dtype(torch.float64)
torch.manual_seed(11)
# transformers forms softmaxes, norms and angles in float32, whatever the model's dtype: here in float64 too.
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
B, S, D, H, G, HD = 1, 6, 8, 4, 2, 4


def show(file, name, tensor):
    print("\t".join([name] + [float(v).hex() for v in tensor.detach().flatten()]), file=file)


def mask(window):
    """[1, 1, S, S], 0 where a token sees another, itself among the last `window`."""
    i, j = torch.arange(S)[:, None], torch.arange(S)[None, :]
    seen = (j <= i) & (j > i - (window or S))
    return torch.zeros(S, S).masked_fill(~seen, float("-inf"))[None, None]


COMMON = dict(hidden_size=D, num_attention_heads=H, num_key_value_heads=G, rope_theta=10000.0,
              attn_implementation="eager")


def layer(file, name, config, attention, rotary, window=None):
    config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
    config._attn_implementation = "eager"
    module = attention(config, 0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(B, S, D, requires_grad=True)
    positions = torch.arange(S)[None].expand(B, S)
    angles = rotary(config)(x, positions)
    y = module(hidden_states=x, position_embeddings=angles, attention_mask=mask(window))[0]
    dy = torch.randn(B, S, D)
    (y * dy).sum().backward()
    show(file, f"{name}.x", x)
    show(file, f"{name}.dy", dy)
    show(file, f"{name}.y", y)
    show(file, f"{name}.dx", x.grad)
    for key, parameter in module.named_parameters():
        show(file, f"{name}.{key}", parameter)
        show(file, f"{name}.d.{key}", parameter.grad)


def layers(file):
    head = COMMON | dict(head_dim=HD)
    layer(file, "qwen3", Qwen3MoeConfig(**head), Qwen3MoeAttention, Qwen3MoeRotaryEmbedding)
    # Bounds that are reached, behind the norm.
    layer(file, "olmoe", OlmoeConfig(**COMMON, clip_qkv=0.4), OlmoeAttention, OlmoeRotaryEmbedding)
    layer(file, "olmo2", Olmo2Config(**COMMON), Olmo2Attention, Olmo2RotaryEmbedding)
    layer(file, "qwen2", Qwen2MoeConfig(**COMMON, qkv_bias=True), Qwen2MoeAttention, Qwen2MoeRotaryEmbedding)
    layer(file, "gpt_oss", GptOssConfig(**head, sliding_window=3, layer_types=["sliding_attention"],
                                        num_hidden_layers=1), GptOssAttention, GptOssRotaryEmbedding, window=3)


with open(sys.argv[1], "w", encoding="utf-8") as out:
    layers(out)
