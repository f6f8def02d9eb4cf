#!/usr/bin/env python3
"""Weights that transformers makes of folders which Witan quantised, against those that Witan makes of them.

`compare_with_transformers.py WITAN FOLDER [NAME ...]`: of each architecture makes a random bfloat16 model in FOLDER,
imports it (WITAN import), exports it with each --dtype of a folder that it can have, loads that in transformers, imports
it again, exports it plainly, loads that too, and compares every tensor to the bit. Prints how far the logits of 24 tokens
are from the model's own.
Run with Python 3.11, torch 2.15.0 (CPU), transformers 5.24.0, compressed-tensors 0.20.1, accelerate, safetensors 0.8.0.
"""
import pathlib
import subprocess
import sys

import torch
import transformers

WITAN, FOLDER, NAMES = sys.argv[1], pathlib.Path(sys.argv[2]).absolute(), sys.argv[3:]
COMMON = dict(vocab_size=300, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=128, initializer_range=0.05, bos_token_id=1, eos_token_id=None, pad_token_id=None,
              rms_norm_eps=1e-5, intermediate_size=384)
MODELS = {
    "llama": ("Llama", COMMON),
    "mixtral": ("Mixtral", dict(COMMON, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3_moe": ("Qwen3Moe", dict(COMMON, head_dim=64, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=128,
                                   norm_topk_prob=True)),
    "olmoe": ("Olmoe", dict(COMMON, num_key_value_heads=4, num_experts=6, num_experts_per_tok=3, norm_topk_prob=False)),
    "narrow": ("Qwen3Moe", dict(COMMON, head_dim=48, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=96,
                                norm_topk_prob=True)),
    "deepseek_v3": ("DeepseekV3", dict(COMMON, num_key_value_heads=4, moe_intermediate_size=128, n_routed_experts=8,
                                       n_shared_experts=1, num_experts_per_tok=3, first_k_dense_replace=1,
                                       kv_lora_rank=128, q_lora_rank=128, qk_nope_head_dim=64, qk_rope_head_dim=32,
                                       v_head_dim=64, n_group=4, topk_group=2, norm_topk_prob=True)),
    "gpt_oss": ("GptOss", dict(COMMON, head_dim=64, num_local_experts=6, num_experts_per_tok=3, sliding_window=5)),
}


def witan(*args):
    done = subprocess.run([WITAN, *map(str, args), "--runs-folder", str(FOLDER / "runs")], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{args}: {done.stderr}")
    return done.stdout


def load(folder, dtype=None):
    more = {}
    if dtype and dtype.startswith("int"):
        more["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **more).eval()


def compare(name):
    kind, sizes = MODELS[name]
    torch.manual_seed(3)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes))
    model = model.to(torch.bfloat16).eval()
    model.save_pretrained(FOLDER / name)
    witan("import", FOLDER / name, "--run", name)
    ids = torch.randint(0, 300, (1, 24))
    fine = True
    for dtype in ["mxfp4"] if name == "gpt_oss" else ["fp8", "int8", "int4"]:
        out, again = FOLDER / f"{name}-{dtype}", f"{name}-{dtype}-again"
        said = witan("export", "--run", name, "--format", "hf", out, "--dtype", dtype)
        errors = [line for line in said.splitlines() if "relative RMS" in line]
        theirs = load(out, dtype)
        witan("import", out, "--run", again)
        witan("export", "--run", again, "--format", "hf", FOLDER / again)
        ours = load(FOLDER / again)
        one, two = theirs.state_dict(), ours.state_dict()
        different = [k for k in two if k not in one or not torch.equal(one[k].to(two[k].dtype), two[k])]
        with torch.no_grad():
            exact, near = model(ids).logits.float(), theirs(ids).logits.float()
        error = ((near - exact).norm() / exact.norm()).item()
        fine = fine and not different and len(one) == len(two)
        print(f"{name:12} {dtype:6} {len(two)} tensors, {len(different)} different {different[:3]}, "
              f"logits {100 * error:.2f} % off; {len(errors)} kinds quantised")
    return fine


if __name__ == "__main__":
    sys.exit(not all([compare(name) for name in NAMES or MODELS]))
