"""One training step of Qwen3's MoE layers in Hugging Face Transformers, as its Trainer takes it with bf16=True.

    python3 bench/peers/hf_step.py --layers 6 [--impl grouped_mm|eager] [--compile] [--attn sdpa]

float32 parameters under bfloat16 autocast, fused AdamW, clipping, random tokens and weights; --compile compiles each
layer. The sizes are those of recipes/presets/qwen3-30b-a3b.toml but for the number of layers. Prints one JSON line.
"""
import argparse
import json
import time

import torch
import transformers
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

SIZES = dict(layers=6, hidden=2048, heads=32, kv=4, head=128, ffn=768, experts=128, topk=8, vocab=151936, seq=4096,
             mbs=4, accumulate=1, steps=12)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, default in SIZES.items():
    parser.add_argument("--" + name, type=int, default=default)
parser.add_argument("--impl", default="grouped_mm", help="how the experts are computed")
parser.add_argument("--attn", default="sdpa")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--device", default="cuda")
a = parser.parse_args()

config = Qwen3MoeConfig(
    vocab_size=a.vocab, hidden_size=a.hidden, intermediate_size=a.ffn, moe_intermediate_size=a.ffn,
    num_hidden_layers=a.layers, num_attention_heads=a.heads, num_key_value_heads=a.kv, head_dim=a.head,
    max_position_embeddings=a.seq, rms_norm_eps=1e-6, use_cache=False, tie_word_embeddings=False,
    num_experts=a.experts, num_experts_per_tok=a.topk, norm_topk_prob=True, decoder_sparse_step=1,
    output_router_logits=True, router_aux_loss_coef=0.001,
    rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
torch.manual_seed(0)
with torch.device(a.device):
    model = Qwen3MoeForCausalLM._from_config(config, attn_implementation=a.attn, experts_implementation=a.impl)
model.train()
if a.compile:
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = torch.compile(layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
synchronize = torch.cuda.synchronize if a.device == "cuda" else (lambda: None)

times = []
for _ in range(a.steps):
    batches = torch.randint(0, a.vocab, (a.accumulate, a.mbs, a.seq), device=a.device)
    synchronize()
    start = time.perf_counter()
    for tokens in batches:
        with torch.autocast(a.device, torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss / a.accumulate
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    synchronize()
    times.append((time.perf_counter() - start) * 1e3)

median = sorted(times[4:])[len(times[4:]) // 2]
print(json.dumps({
    "peer": f"transformers {transformers.__version__}, {a.attn}, {a.impl}" + (", compiled" if a.compile else ""),
    "layers": a.layers, "parameters_B": round(sum(p.numel() for p in model.parameters()) / 1e9, 3),
    "tokens": a.accumulate * a.mbs * a.seq, "ms_step": round(median, 1),
    "ktok_s": round(a.accumulate * a.mbs * a.seq / median, 1), "loss": round(loss.item() * a.accumulate, 3),
    "peak_GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1) if a.device == "cuda" else None}), flush=True)
