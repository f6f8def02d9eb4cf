#!/usr/bin/env python3
"""Writes models.tsv, which tests/model/golden_models_test.cpp reads: tiny models of transformers, the loss of predicting
some tokens and, of every parameter's gradient g, the sum of g_i cos(0.7 i), in float64. A line is a model, a parameter's
name in Witan, the phase of its values and that sum; parameters are sin(1.3 i + phase) / 2, and 1 more in norms. The line
of the loss comes first in each model.

Made with torch 2.15.0 and transformers 5.23.0, on a CPU:  make_models.py > models.tsv
"""

import torch
from transformers import (GptOssConfig, GptOssForCausalLM, Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM,
                          OlmoeConfig, OlmoeForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

torch.set_default_dtype(torch.float64)
# transformers forms softmaxes, norms and angles in float32, whatever the model's dtype: here in float64 too.
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
V, D, H, G, HD, E, F, L, S = 16, 8, 4, 2, 4, 4, 6, 2, 7
TOKENS = [(5 * i * i + 3 * i) % V for i in range(S + 1)]


def interleaved(t):
    """All gates, then all ups -> pairs of them, along the last dim."""
    gates, ups = t.chunk(2, -1)
    return torch.stack([gates, ups], -1).flatten(-2)


def apart(t):
    return torch.cat([t[..., ::2], t[..., 1::2]], -1)


def same(t):
    return t


def swapped(t):
    return t.transpose(-1, -2)


class Map:
    """Witan's parameters, in order, each with those of transformers that it is and how to go there and back."""

    def __init__(self):
        self.rows = []

    def add(self, name, theirs, there=same, back=same):
        self.rows.append((name, theirs if isinstance(theirs, list) else [theirs], there, back))


def names(kind, post_norm):
    parts = Map()
    parts.add("embedding.weight", "model.embed_tokens.weight")
    for layer in range(L):
        ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
        norms = ("post_attention_layernorm", "post_feedforward_layernorm") if post_norm else (
            "input_layernorm", "post_attention_layernorm")
        parts.add(f"{ours}.attention_norm.weight", f"{theirs}.{norms[0]}.weight")
        if kind == "gpt_oss":
            parts.add(f"{ours}.attention.sinks", f"{theirs}.self_attn.sinks")
        for p in "qkvo":
            for part in ("weight", "bias") if kind == "gpt_oss" else ("weight",):
                parts.add(f"{ours}.attention.{p}_proj.{part}", f"{theirs}.self_attn.{p}_proj.{part}")
        if kind != "gpt_oss":
            for p in "qk":
                parts.add(f"{ours}.attention.{p}_norm.weight", f"{theirs}.self_attn.{p}_norm.weight")
        parts.add(f"{ours}.mlp_norm.weight", f"{theirs}.{norms[1]}.weight")
        if post_norm:
            parts.add(f"{ours}.mlp.gate_up_proj.weight", [f"{theirs}.mlp.{p}_proj.weight" for p in ("gate", "up")])
            parts.add(f"{ours}.mlp.down_proj.weight", f"{theirs}.mlp.down_proj.weight")
        elif kind == "gpt_oss":
            parts.add(f"{ours}.moe.router.weight", f"{theirs}.mlp.router.weight")
            parts.add(f"{ours}.moe.router.bias", f"{theirs}.mlp.router.bias")
            experts = f"{theirs}.mlp.experts."
            parts.add(f"{ours}.moe.experts.gate_up_proj", experts + "gate_up_proj",
                      lambda t: interleaved(swapped(t)), lambda t: swapped(apart(t)))
            parts.add(f"{ours}.moe.experts.down_proj", experts + "down_proj", swapped, swapped)
            parts.add(f"{ours}.moe.experts.gate_up_proj_bias", experts + "gate_up_proj_bias", interleaved, apart)
            parts.add(f"{ours}.moe.experts.down_proj_bias", experts + "down_proj_bias")
        else:
            parts.add(f"{ours}.moe.router.weight", f"{theirs}.mlp.gate.weight")
            for p in ("gate_up_proj", "down_proj"):
                parts.add(f"{ours}.moe.experts.{p}", f"{theirs}.mlp.experts.{p}")
    parts.add("final_norm.weight", "model.norm.weight")
    parts.add("head.weight", "lm_head.weight")
    return parts.rows


def values(name, shape, phase):
    t = 0.5 * torch.sin(1.3 * torch.arange(torch.Size(shape).numel()).double() + phase).reshape(shape)
    return t + 1 if "norm" in name else t


PLAIN = {"rope_type": "default", "rope_theta": 10000.0}


def show(kind, config, model, post_norm=False, rope=None):
    config.rope_parameters = dict(rope or PLAIN)
    config._attn_implementation = config._experts_implementation = "eager"
    whole = model(config)
    theirs = dict(whole.named_parameters())
    rows = names(kind, post_norm)
    assert sorted(theirs) == sorted(n for row in rows for n in row[1])
    for phase, (name, keys, there, back) in enumerate(rows):
        shape = back(torch.cat([theirs[k].detach() for k in keys])).shape
        t = there(values(name, shape, phase))
        for key, part in zip(keys, t.chunk(len(keys))):
            theirs[key].data.copy_(part)
    tokens = torch.tensor([TOKENS])
    logits = whole(input_ids=tokens[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:])
    loss.backward()
    print("\t".join([kind, "loss", "0", loss.item().hex()]))
    for phase, (name, keys, _, back) in enumerate(rows):
        g = back(torch.cat([theirs[k].grad for k in keys])).flatten()
        print("\t".join([kind, name, str(phase), (g * torch.cos(0.7 * torch.arange(g.numel()).double())).sum().item().hex()]))


tiny = dict(vocab_size=V, hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=G,
            tie_word_embeddings=False, pad_token_id=None, bos_token_id=None, eos_token_id=None)
show("olmoe", OlmoeConfig(**tiny, intermediate_size=F, num_experts=E, num_experts_per_tok=2, norm_topk_prob=False,
                          clip_qkv=0.8), OlmoeForCausalLM)
show("qwen3", Qwen3MoeConfig(**tiny, head_dim=HD, intermediate_size=F, moe_intermediate_size=F, num_experts=E,
                             num_experts_per_tok=2, norm_topk_prob=True), Qwen3MoeForCausalLM)
show("olmo2", Olmo2Config(**tiny, intermediate_size=F), Olmo2ForCausalLM, post_norm=True)
show("gpt_oss", GptOssConfig(**tiny, head_dim=HD, intermediate_size=F, num_local_experts=E, num_experts_per_tok=2,
                             sliding_window=3), GptOssForCausalLM)
show("olmo3", Olmo3Config(**tiny, intermediate_size=F, sliding_window=3,
                          layer_types=["sliding_attention", "full_attention"]), Olmo3ForCausalLM, post_norm=True,
     rope={"full_attention": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 2.0,
                              "beta_slow": 0.5, "original_max_position_embeddings": 4},
           "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}})
