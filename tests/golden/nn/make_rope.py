#!/usr/bin/env python3
"""Writes rope.tsv, which tests/nn/attention/config_test.cpp expects, by Hugging Face's modeling_rope_utils.py.

    make_rope.py > rope.tsv

transformers 5.23.0 (Kimi K2: 5.24.0) and PyTorch 2.15 on a CPU; what they form in float32 is float64 here. A line is: settings by Witan's
keys, the factor of sines and cosines, and the frequencies of all pairs.
"""

import torch

torch.float = torch.float32 = torch.float64
from transformers import LlamaConfig  # noqa: E402
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402

# head size, base, and what Hugging Face calls rope_parameters
CASES = [
    (16, 10000.0, dict(rope_type="linear", factor=4.0)),
    (128, 500000.0, dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                         original_max_position_embeddings=8192)),  # Llama 3.1
    (64, 500000.0, dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                        original_max_position_embeddings=8192)),  # Llama 3.2 1B
    (32, 10000.0, dict(rope_type="llama3", factor=3.0, low_freq_factor=0.5, high_freq_factor=9.0,
                       original_max_position_embeddings=300)),
    (64, 10000.0, dict(rope_type="yarn", factor=40.0, beta_fast=32.0, beta_slow=1.0, mscale=0.707,
                       mscale_all_dim=0.707, original_max_position_embeddings=4096)),  # DeepSeek-V2-Lite
    (64, 10000.0, dict(rope_type="yarn", factor=40.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
                       mscale_all_dim=1.0, original_max_position_embeddings=4096)),  # DeepSeek-V3
    (64, 10000.0, dict(rope_type="yarn", factor=8.0, beta_fast=16.0, beta_slow=2.0, mscale=0.8,
                       mscale_all_dim=0.3, original_max_position_embeddings=1000)),
    (128, 1000000.0, dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)),  # Qwen3
    (64, 150000.0, dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                        original_max_position_embeddings=4096)),  # gpt-oss
    (64, 50000.0, dict(rope_type="yarn", factor=32.0, beta_fast=1.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                       original_max_position_embeddings=4096)),  # Kimi K2
    (16, 100.0, dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=100)),  # the ramp is cut off
]

KEYS = dict(factor="rotary_scaling_factor", low_freq_factor="rope_low_freq_factor",
            high_freq_factor="rope_high_freq_factor")

for dims, base, rope in CASES:
    config = LlamaConfig(hidden_size=4 * dims, num_attention_heads=4, head_dim=dims,
                         max_position_embeddings=131072, rope_parameters=dict(rope, rope_theta=base))
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
    assert frequencies.dtype == torch.float64
    scaling = rope["rope_type"] + ("" if rope.get("truncate", True) else "_unrounded")
    settings = dict(kv_channels=dims, rotary_base=base, rope_scaling_type=scaling)
    settings |= {KEYS.get(k, k): v for k, v in rope.items() if k not in ("rope_type", "truncate")}
    print(";".join(f"{k}={v}" for k, v in settings.items()), repr(float(magnitude)),
          *(repr(f) for f in frequencies.tolist()), sep="\t")
