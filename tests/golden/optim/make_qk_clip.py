#!/usr/bin/env python3
"""Writes qk_clip.tsv, which tests/kernels/attention/qk_clip_test.cpp expects, by Megatron-LM's implementation.

    make_qk_clip.py multi_latent_attention.py > qk_clip.tsv

The argument is a source of megatron-core 0.16.1, megatron/core/transformer/multi_latent_attention.py. The functions that
scale projections are taken out of it, because the module imports GPU kernels, and run in float64 by PyTorch 2.15 on a CPU.

A line is: what, heads, channels of a head without positions, with, and of values, columns, threshold, alpha, then the
heads' largest logits, then the weight that cos(0.7 i + 0.3), i counting elements, becomes.
"""

import ast
import pathlib
import sys
from types import SimpleNamespace

import torch


def taken(path, *names):
    """Methods of MLASelfAttention, as functions of `self`."""
    scope = {"torch": torch}
    for node in ast.walk(ast.parse(pathlib.Path(path).read_text())):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            exec(compile(ast.Module([node], []), str(path), "exec"), scope)
    return [scope[name] for name in names]


clip_q, clip_kv = taken(sys.argv[1], "_clip_q_proj_weight", "_clip_kv_proj_weight")


def show(what, clip, rows, columns, layer, logits):
    weight = torch.cos(0.7 * torch.arange(rows * columns, dtype=torch.float64) + 0.3).reshape(rows, columns)
    config = layer.config
    sizes = [layer.num_attention_heads_per_partition, config.qk_head_dim, config.qk_pos_emb_head_dim, config.v_head_dim]
    limits = [columns, config.qk_clip_threshold, config.qk_clip_alpha]
    print(what, *sizes, *limits, *logits, *clip(layer, weight).flatten().tolist(), sep="\t")


for heads, still, turning, values, columns, alpha in [(2, 3, 2, 4, 5, 0.5), (3, 4, 2, 1, 2, 0.25), (2, 1, 3, 2, 3, 1.0)]:
    logits = [412.5, 40.0, 100.5][:heads]
    layer = SimpleNamespace(
        num_attention_heads_per_partition=heads,
        config=SimpleNamespace(
            qk_head_dim=still,
            qk_pos_emb_head_dim=turning,
            v_head_dim=values,
            qk_clip_alpha=alpha,
            qk_clip_threshold=100.0,
        ),
        qk_clip_balancing_eta=torch.clamp(100.0 / torch.tensor(logits, dtype=torch.float64), max=1.0).view(heads, 1, 1),
    )
    show("queries", clip_q, heads * (still + turning), columns, layer, logits)
    show("keys", clip_kv, heads * (still + values), columns, layer, logits)
