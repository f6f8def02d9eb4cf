"""One training step of a mixture-of-experts model in Hugging Face Transformers, as its Trainer takes it with bf16=True.

    python3 bench/peers/hf_step.py --layers 6 [--impl grouped_mm|eager] [--compile] [--attn sdpa]
    python3 bench/peers/hf_step.py --model qwen3.5-35b-a3b --layers 4          # with the packages fla and causal_conv1d
    python3 bench/peers/hf_step.py --model nemotron-3-nano-30b-a3b --pattern MEMEM*E        # mamba_ssm, causal_conv1d

float32 parameters under bfloat16 autocast, fused AdamW, clipping, random tokens and weights; --compile compiles each
layer. The sizes are those of recipes/presets but for the number of layers. Recurrences and convolutions use the kernels
of the packages named above where these are installed; each Triton kernel tries --tune of its configurations.
flash-linear-attention refuses its backward with Triton 3.4 to 3.7.0 on Hopper, where its gradients are wrong:
--unchecked takes the time all the same. Prints one JSON line.
"""
import argparse
import importlib.util
import json
import sys
import time

import torch
import transformers

SIZES = {
    "qwen3-30b-a3b": dict(layers=6, hidden=2048, heads=32, kv=4, head=128, ffn=768, experts=128, topk=8, vocab=151936,
                          seq=4096, mbs=4),
    "qwen3.5-35b-a3b": dict(layers=4, hidden=2048, heads=16, kv=2, head=256, ffn=512, experts=256, topk=8, vocab=248320,
                            seq=4096, mbs=4),
    "nemotron-3-nano-30b-a3b": dict(layers=0, hidden=2688, heads=32, kv=2, head=128, ffn=1856, experts=128, topk=6,
                                    vocab=131072, seq=8192, mbs=2),
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="qwen3-30b-a3b", choices=SIZES)
for name in SIZES["qwen3-30b-a3b"]:
    parser.add_argument("--" + name, type=int)
parser.add_argument("--pattern", default="MEMEM*E", help="the layers of Nemotron 3")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--impl", default="grouped_mm", help="how the experts are computed")
parser.add_argument("--attn", default="sdpa")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--tune", type=int, default=0, help="configurations of a Triton kernel to try; 0: all")
parser.add_argument("--unchecked", action="store_true")
parser.add_argument("--device", default="cuda")
a = parser.parse_args()
for name, size in SIZES[a.model].items():
    if getattr(a, name) is None:
        setattr(a, name, size)


def try_few_configurations(count):
    from triton.runtime.autotuner import Autotuner
    original = Autotuner.__init__

    def fewer(self, fn, arg_names, configs, *rest, **named):
        original(self, fn, arg_names, configs[::-(-len(configs) // count)] if configs else configs, *rest, **named)

    Autotuner.__init__ = fewer


def qwen3():
    config = transformers.Qwen3MoeConfig(
        vocab_size=a.vocab, hidden_size=a.hidden, intermediate_size=a.ffn, moe_intermediate_size=a.ffn,
        num_hidden_layers=a.layers, num_attention_heads=a.heads, num_key_value_heads=a.kv, head_dim=a.head,
        max_position_embeddings=a.seq, rms_norm_eps=1e-6, use_cache=False, tie_word_embeddings=False,
        num_experts=a.experts, num_experts_per_tok=a.topk, norm_topk_prob=True, decoder_sparse_step=1,
        output_router_logits=True, router_aux_loss_coef=0.001,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
    return transformers.Qwen3MoeForCausalLM, config


def qwen3_5():
    config = transformers.Qwen3_5MoeTextConfig(
        vocab_size=a.vocab, hidden_size=a.hidden, num_hidden_layers=a.layers, num_attention_heads=a.heads,
        num_key_value_heads=a.kv, head_dim=a.head, max_position_embeddings=a.seq, use_cache=False,
        moe_intermediate_size=a.ffn, shared_expert_intermediate_size=a.ffn, num_experts=a.experts,
        num_experts_per_tok=a.topk, output_router_logits=True, router_aux_loss_coef=0.001,
        rope_parameters={"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25})
    return transformers.Qwen3_5MoeForCausalLM, config


def nemotron_3():
    kinds = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
    a.layers = len(a.pattern)
    config = transformers.NemotronHConfig(
        vocab_size=a.vocab, hidden_size=a.hidden, layers_block_type=[kinds[letter] for letter in a.pattern],
        num_attention_heads=a.heads, num_key_value_heads=a.kv, head_dim=a.head, max_position_embeddings=a.seq,
        mamba_num_heads=64, mamba_head_dim=64, ssm_state_size=128, n_groups=8, n_routed_experts=a.experts,
        moe_intermediate_size=a.ffn, moe_shared_expert_intermediate_size=2 * a.ffn, num_experts_per_tok=a.topk,
        routed_scaling_factor=2.5, use_cache=False)
    return transformers.NemotronHForCausalLM, config


if a.tune:
    try_few_configurations(a.tune)
if a.unchecked:
    import fla.ops.common.chunk_o
    fla.ops.common.chunk_o.TRITON_ABOVE_3_7_1 = True
kind, config = {"qwen3-30b-a3b": qwen3, "qwen3.5-35b-a3b": qwen3_5, "nemotron-3-nano-30b-a3b": nemotron_3}[a.model]()
torch.manual_seed(0)
with torch.device(a.device):
    model = kind._from_config(config, attn_implementation=a.attn, experts_implementation=a.impl)
model.train()
if not importlib.util.find_spec("causal_conv1d"):
    # The kernel of the whole mixer, which training selects, needs that package; the scan alone does not.
    for module in model.modules():
        if type(module).__name__ == "NemotronHMamba2Mixer":
            module.training = False
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
kernels = [name for name in ("fla", "mamba_ssm", "causal_conv1d") if name in sys.modules]  # that could be imported
print(json.dumps({
    "peer": ", ".join([f"transformers {transformers.__version__}", a.attn, a.impl, *kernels] + ["compiled"] * a.compile),
    "model": a.model, "layers": a.layers, "parameters_B": round(sum(p.numel() for p in model.parameters()) / 1e9, 3),
    "tokens": a.accumulate * a.mbs * a.seq, "ms_step": round(median, 1), "ms_fastest": round(min(times), 1),
    "ms_first": round(times[0], 1), "ktok_s": round(a.accumulate * a.mbs * a.seq / median, 1),
    "loss": round(loss.item() * a.accumulate, 3),
    "peak_GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1) if a.device == "cuda" else None}), flush=True)
