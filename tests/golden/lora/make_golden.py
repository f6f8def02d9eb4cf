#!/usr/bin/env python3
"""Writes a folder for each model beside this script: LoRA adapters of PEFT's on a tiny model of ../convert, as PEFT
saves them (adapter_config.json, adapter_model.safetensors; both factors random), what the adapted model computes
(expected.safetensors: the logits [B, S, V] of ../convert's tokens) and the gradients of the mean cross entropy of
tokens 1 to S - 1 (gradient.safetensors, by the names of adapter_model.safetensors).

Made with Python 3.11, torch 2.15.0 (CPU), transformers 5.23.0 (qwen3_moe and deepseek_v3: 5.24.0), peft 0.21.2,
safetensors 0.8.0, float32. The bytes are committed; run this only to change them: `make_golden.py [NAME ...]`.
`make_golden.py --check BASE ADAPTERS MERGED` loads the adapters that `witan export --format peft` wrote on the base
model, and the folder that `--format hf` wrote of the same run. It fails where their logits differ by more than 1e-5 of
the largest, or where they are the base's.
"""
import json
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
SHARED = ["mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight",
          "mlp.shared_experts.down_proj.weight"]
MODELS = {
    "llama": dict(r=3, lora_alpha=6, target_modules=ATTENTION + ["gate_proj", "up_proj", "down_proj"]),
    "olmoe": dict(r=2, lora_alpha=5, target_modules=ATTENTION, target_parameters=EXPERTS),
    "qwen3_moe": dict(r=2, lora_alpha=5, target_modules=ATTENTION, target_parameters=EXPERTS + DENSE),
    "deepseek_v3": dict(r=2, lora_alpha=5, target_modules=LATENT, target_parameters=EXPERTS + DENSE + SHARED),
}
# Standard deviations of adapters. Larger ones make deepseek_v3 so steep that float32 rounds its gradients by 2e-5.
DEVIATIONS = {"deepseek_v3": 0.1}


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                              experts_implementation="eager")
    return model.eval()


def make(name):
    tokens = load_file(BASES / name / "expected.safetensors")["tokens"]
    model = peft.get_peft_model(load(BASES / name), peft.LoraConfig(task_type="CAUSAL_LM", **MODELS[name]))
    generator = torch.Generator().manual_seed(11)
    for key, parameter in model.named_parameters():
        if "lora_" in key:
            parameter.data = torch.randn(parameter.shape, generator=generator) * DEVIATIONS.get(name, 0.2)
    folder = HERE / name
    model.eval()
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"../../convert/{name}"
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    logits = model(tokens).logits
    rows = logits[:, :-1].reshape(-1, logits.size(-1))
    torch.nn.functional.cross_entropy(rows, tokens[:, 1:].reshape(-1)).backward()
    save_file({"logits": logits.detach().contiguous()}, folder / "expected.safetensors", {"format": "pt"})
    gradients = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
    saved = load_file(folder / "adapter_model.safetensors")
    gradients = {key.replace(".default", ""): value.contiguous() for key, value in gradients.items()}
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
