#!/usr/bin/env python3
"""Writes a folder for each model beside this script: LoRA adapters of PEFT's on a tiny model of ../convert, as PEFT
saves them (adapter_config.json, adapter_model.safetensors; factors and magnitudes random), what the adapted model computes
(expected.safetensors: the logits [B, S, V] of ../convert's tokens) and the gradients of the mean cross entropy of
tokens 1 to S - 1 (gradient.safetensors, by the names of adapter_model.safetensors); in float64 where ../convert's are and with DoRA,
one model in a process.

Made with Python 3.11, torch 2.15.0 (CPU), transformers 5.24.0 (5.23.0 for llama), peft 0.21.2,
safetensors 0.8.0, float32. The bytes are committed; run this only to change them: `make_golden.py [NAME ...]`.
`make_golden.py --check BASE ADAPTERS MERGED` loads the adapters that `witan export --format peft` wrote on the base
model, and the folder that `--format hf` wrote of the same run. It fails where their logits differ by more than 1e-5 of
the largest, or where they are the base's.
"""
import importlib.util
import json
import math
import pathlib
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
BASES = HERE.parent / "convert"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LATENT = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
# In models with experts PEFT takes "gate_proj" among target_modules for the experts' (transformers v4 had them as
# modules), so that MLPs beside experts are named as parameters.
DENSE = ["mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"]
GATED = ["mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight", "mlp.shared_expert.down_proj.weight"]
SHARED = ["mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight",
          "mlp.shared_experts.down_proj.weight"]
# Modules that join several matrices: their groups of rows, the rows of each matrix in a group, and how many of these
# matrices Witan adapts. An adapter of theirs has a block of B for each of these, and zeros elsewhere.
JOINED = {
    "nemotron_h_moe": {"mixer.in_proj": (1, [24, 24, 10, 10, 6], 4)},
    "qwen3_next": {"linear_attn.in_proj_qkvz": (2, [6, 6, 30, 30], 4), "self_attn.q_proj": (4, [8, 8], 2)},
    "qwen3_5_moe_text": {"linear_attn.in_proj_qkv": (1, [12, 12, 60], 3), "self_attn.q_proj": (4, [8, 8], 2)},
    "lfm2_moe": {"conv.in_proj": (1, [16, 16, 16], 3)},
    "phi3": {"self_attn.qkv_proj": (1, [16, 8, 8], 3), "mlp.gate_up_proj": (1, [24, 24], 2)},
    "gpt2": {"attn.c_attn": (1, [16, 16, 16], 3)},
}
MODELS = {
    "llama": dict(r=3, lora_alpha=6, target_modules=ATTENTION + ["gate_proj", "up_proj", "down_proj"]),
    "olmoe": dict(r=2, lora_alpha=5, use_rslora=True, target_modules=ATTENTION, target_parameters=EXPERTS),
    "qwen3_moe": dict(r=2, lora_alpha=5, target_modules=ATTENTION, target_parameters=EXPERTS + DENSE),
    "deepseek_v3": dict(r=2, lora_alpha=5, target_modules=LATENT, target_parameters=EXPERTS + DENSE + SHARED),
    # PEFT refuses out_proj in models with Mamba-2, which Witan adapts wherever it adapts o_proj.
    "nemotron_h_moe": dict(r=2, lora_alpha=5,
                           target_modules=["in_proj", "q_proj", "k_proj", "v_proj", "up_proj", "down_proj"],
                           target_parameters=["mixer.experts.up_proj", "mixer.experts.down_proj"]),
    "qwen3_next": dict(r=2, lora_alpha=5, target_modules=["in_proj_qkvz", "out_proj"] + ATTENTION,
                       target_parameters=EXPERTS + DENSE + GATED),
    "qwen3_5_moe_text": dict(r=2, lora_alpha=5, target_modules=["in_proj_qkv", "in_proj_z", "out_proj"] + ATTENTION,
                             target_parameters=EXPERTS + GATED),
    "lfm2_moe": dict(r=2, lora_alpha=5, target_modules=["in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "w1", "w2",
                                                        "w3"],
                     target_parameters=["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"]),
    "deepseek_v4": dict(r=2, lora_alpha=5, target_modules=["q_a_proj", "self_attn.q_b_proj"],
                        target_parameters=EXPERTS + SHARED),
    "phi3": dict(r=3, lora_alpha=6, use_rslora=True,
                 target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
    "gpt2": dict(r=3, lora_alpha=6, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True),
    "granitemoeshared": dict(r=2, lora_alpha=5, target_modules=ATTENTION + ["input_linear", "output_linear"],
                             target_parameters=["block_sparse_moe.experts.gate_up_proj",
                                                "block_sparse_moe.experts.down_proj"]),
}
MODELS["kimi_linear"] = dict(r=2, lora_alpha=5, target_parameters=EXPERTS + DENSE + SHARED, target_modules=ATTENTION + [
    "kv_a_proj_with_mqa", "kv_b_proj", "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj"])
MODELS["gemma4_text_small"] = dict(r=2, lora_alpha=5, target_parameters=DENSE, target_modules=ATTENTION + [
    "per_layer_input_gate", "per_layer_projection", "per_layer_model_projection"])
JOINED["granitemoeshared"] = {"shared_mlp.input_linear": (1, [20, 20], 2)}
# DoRA: a folder of its own for each base model, computed in float64; magnitudes differ from the rows' norms.
DORA = {f"{base}_dora": base for base in ("llama", "phi3", "gpt2")}
for name, base in DORA.items():
    MODELS[name] = dict(MODELS[base], use_dora=True)
    JOINED[name] = JOINED.get(base, {})
# Standard deviations of adapters. Larger ones make these so steep that float32 rounds their gradients by 2e-5.
DEVIATIONS = {"deepseek_v3": 0.1, "gemma4_text_small": 0.1}


def of_bases():
    spec = importlib.util.spec_from_file_location("of_bases", BASES / "make_golden.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                              experts_implementation="eager")
    return model.eval()


def blocks(groups, sizes, adapted, rank):
    """Where B [groups * sum(sizes), adapted * rank] of a joined module may differ from zero."""
    group = torch.zeros(sum(sizes), adapted * rank, dtype=torch.bool)
    for i in range(adapted):
        group[sum(sizes[:i]):sum(sizes[:i + 1]), i * rank:(i + 1) * rank] = True
    return group.repeat(groups, 1)


def make(name):
    base = DORA.get(name, name)
    tokens = load_file(BASES / base / "expected.safetensors")["tokens"]
    joined, keys = JOINED.get(name, {}), MODELS[name]
    times = {path: adapted for path, (_, _, adapted) in joined.items()}
    factor = math.sqrt if keys.get("use_rslora") else float  # of alpha, so that n times the rank has the same scale
    model = peft.get_peft_model(load(BASES / base), peft.LoraConfig(
        task_type="CAUSAL_LM", **keys, rank_pattern={path: n * keys["r"] for path, n in times.items()},
        alpha_pattern={path: factor(n) * keys["lora_alpha"] for path, n in times.items()}))
    generator = torch.Generator().manual_seed(11)
    for key, parameter in model.named_parameters():
        if "lora_magnitude_vector" in key:
            parameter.data *= 1 + 0.2 * torch.randn(parameter.shape, generator=generator)
        elif "lora_" in key:
            parameter.data = torch.randn(parameter.shape, generator=generator) * DEVIATIONS.get(name, 0.2)
            for path, of in joined.items():
                if f".{path}.lora_B." in key:
                    parameter.data[~blocks(*of, keys["r"])] = 0
    folder = HERE / name
    model.eval()
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"../../convert/{base}"
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    saved = load_file(folder / "adapter_model.safetensors")
    if name in DORA or load_file(BASES / base / "expected.safetensors")["logits"].dtype == torch.float64:
        of_bases().compute_in_double(model)
    logits = model(tokens).logits
    rows = logits[:, :-1].reshape(-1, logits.size(-1))
    torch.nn.functional.cross_entropy(rows, tokens[:, 1:].reshape(-1)).backward()
    save_file({"logits": logits.detach().contiguous()}, folder / "expected.safetensors", {"format": "pt"})
    gradients = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
    gradients = {key.replace("_vector.default.weight", "_vector").replace(".default", ""): value.contiguous() for key, value in gradients.items()}
    assert gradients.keys() == saved.keys(), gradients.keys() ^ saved.keys()
    save_file(gradients, folder / "gradient.safetensors", {"format": "pt"})
    print(name, len(saved), "tensors")


def check(base, adapters, merged):
    tokens = torch.randint(3, 60, (2, 24), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        plain = load(base)(tokens).logits
        adapted = peft.PeftModel.from_pretrained(load(base), adapters).eval()(tokens).logits
        whole = load(merged)(tokens).logits
    largest = whole.abs().max().item()
    difference, moved = (adapted - whole).abs().max().item() / largest, (adapted - plain).abs().max().item() / largest
    print(f"adapters and the merged model differ by {difference}, adapters and the base by {moved}")
    sys.exit(not difference < 1e-5 < moved)


if sys.argv[1:2] == ["--check"]:
    check(*sys.argv[2:5])
else:
    for one in sys.argv[1:] or MODELS:
        make(one)
