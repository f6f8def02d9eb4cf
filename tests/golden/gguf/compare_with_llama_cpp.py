#!/usr/bin/env python3
"""Greedy tokens of llama.cpp, from GGUF files that Witan wrote, against those of transformers, from the same weights.

`compare_with_llama_cpp.py WITAN FOLDER [NAME ...]`: of each architecture makes a random model of 300 tokens in FOLDER,
imports it (WITAN import), exports it (WITAN export --format gguf), loads the file in llama.cpp, and compares 40 tokens
after a prompt of 8; imports the file again and exports a Hugging Face folder, whose weights must be the first ones, or
those of the text decoder.
Run with Python 3.11, torch 2.15.0 (CPU), transformers 5.23.0 (the models of LATER: 5.24.0), safetensors 0.8.0,
xllamacpp 2026.10.11549.
"""
import json
import pathlib
import subprocess
import sys
import urllib.request

import torch
import transformers
import xllamacpp
from safetensors.torch import load_file, save_file

WITAN, FOLDER, NAMES = sys.argv[1], pathlib.Path(sys.argv[2]).absolute(), sys.argv[3:]
TOKENS = 40
COMMON = dict(vocab_size=300, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=128, initializer_range=0.3, bos_token_id=1, eos_token_id=None, pad_token_id=None,
              rms_norm_eps=1e-5, intermediate_size=96)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
            original_max_position_embeddings=32)
DEEPSEEK = dict(COMMON, moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3,
                first_k_dense_replace=1, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24,
                num_key_value_heads=4, routed_scaling_factor=1.5)
MODELS = {
    "llama": ("Llama", dict(COMMON, tie_word_embeddings=True, rope_theta=5e5)),
    "llama3": ("Llama", dict(COMMON, rope_parameters=LLAMA3)),
    "mixtral": ("Mixtral", dict(COMMON, num_local_experts=4, num_experts_per_tok=2)),
    "gpt2": ("GPT2", dict(vocab_size=300, n_embd=64, n_layer=3, n_head=4, n_positions=128, n_inner=96,
                          initializer_range=0.3, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1,
                          eos_token_id=None)),
    "qwen2": ("Qwen2", dict(COMMON)),
    "qwen3": ("Qwen3", dict(COMMON, head_dim=32)),
    "qwen3_moe": ("Qwen3Moe", dict(COMMON, head_dim=32, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32,
                                   norm_topk_prob=True)),
    "olmoe": ("Olmoe", dict(COMMON, num_key_value_heads=4, num_experts=6, num_experts_per_tok=3, norm_topk_prob=False)),
    "olmo2": ("Olmo2", dict(COMMON)),
    "olmo3": ("Olmo3", dict(COMMON, num_hidden_layers=4, sliding_window=6,
                            rope_parameters=dict(full_attention=dict(YARN, original_max_position_embeddings=16),
                                                 sliding_attention=dict(rope_type="default", rope_theta=10000.0)))),
    "deepseek_v2": ("DeepseekV2", dict(DEEPSEEK, num_hidden_layers=27, q_lora_rank=None, topk_method="greedy", n_group=1,
                                       topk_group=1)),
    "deepseek_v2_yarn": ("DeepseekV2", dict(DEEPSEEK, q_lora_rank=24, topk_method="greedy", n_group=1, topk_group=1,
                                            rope_parameters=dict(YARN, mscale=0.707, mscale_all_dim=0.707))),
    "deepseek_v3": ("DeepseekV3", dict(DEEPSEEK, q_lora_rank=24, n_group=4, topk_group=2, norm_topk_prob=True,
                                       rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))),
    # llama.cpp rounds the bounds of YaRN's dims, gpt-oss does not: a factor for which that is the same.
    "gpt_oss": ("GptOss", dict(COMMON, head_dim=32, num_local_experts=6, num_experts_per_tok=3, sliding_window=5,
                               rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=1.0, beta_fast=32.0,
                                                    beta_slow=1.0, original_max_position_embeddings=128,
                                                    truncate=False))),
}

TOWER = dict(depth=2, hidden_size=8, intermediate_size=12, num_heads=2, patch_size=2, spatial_merge_size=2,
             temporal_patch_size=1, out_hidden_size=64)
QWEN3_VL = dict(COMMON, head_dim=32, rope_parameters=dict(rope_type="default", rope_theta=1e5, mrope_interleaved=True,
                                                          mrope_section=[6, 5, 5]))
LATER = {
    # rms_norm_eps is that of norms in which transformers has 1e-6, whatever config.json says.
    "kimi_linear": ("KimiLinear", dict(
        {k: v for k, v in COMMON.items() if k != "num_hidden_layers"}, num_hidden_layers=4, rms_norm_eps=1e-6,
        num_key_value_heads=4, layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"], linear_num_heads=4, linear_head_dim=32,
        linear_conv_kernel_dim=4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24, num_experts=8,
        num_experts_per_token=3, num_shared_experts=2, moe_intermediate_size=32, num_expert_group=4, topk_group=2)),
    "qwen2_5_vl": ("Qwen2_5_VL", dict(
        text_config=dict(COMMON, use_sliding_window=False,
                         rope_parameters=dict(rope_type="default", rope_theta=1e5, mrope_section=[4, 2, 2])),
        vision_config=dict(TOWER, window_size=4, fullatt_block_indexes=[1]), tie_word_embeddings=False)),
    "qwen3_vl": ("Qwen3VL", dict(
        text_config=QWEN3_VL, tie_word_embeddings=False,
        vision_config=dict(TOWER, num_position_embeddings=16, deepstack_visual_indexes=[0]))),
    "qwen3_vl_moe": ("Qwen3VLMoe", dict(
        text_config=dict(QWEN3_VL, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=32),
        tie_word_embeddings=False, vision_config=dict(TOWER, num_position_embeddings=16, deepstack_visual_indexes=[0]))),
    "glm4v_moe": ("Glm4vMoe", dict(
        text_config=dict(COMMON, head_dim=32, moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=2,
                         num_experts_per_tok=3, first_k_dense_replace=1, routed_scaling_factor=1.5, n_group=4,
                         topk_group=2, norm_topk_prob=True, attention_bias=True,
                         rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5,
                                              mrope_section=[2, 3, 3])),
        vision_config=dict(TOWER, image_size=8), tie_word_embeddings=False)),
}
MODELS |= LATER


def witan(*args):
    done = subprocess.run([WITAN, *map(str, args), "--runs-folder", str(FOLDER / "runs")], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{args}: {done.stderr}")


def randomise(model):
    generator = torch.Generator().manual_seed(7)
    for name, tensor in [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if "correction" in n)]:
        noise = torch.randn(tensor.shape, generator=generator) * (0.2 if tensor.dim() > 1 else 0.3)
        tensor.data = (1 + noise if "norm" in name or ".ln_" in name else noise).to(tensor.dtype)


def transformers_tokens(model, prompt):
    row = torch.tensor([prompt])
    ends = [token["id"] for token in json.loads((FOLDER / "tokenizer.json").read_text())["added_tokens"]]
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(row).logits[:, -1:]
            logits[..., ends] = -torch.inf  # as ignore_eos has it
            row = torch.cat([row, logits.argmax(-1)], 1)
    return row[0, len(prompt):].tolist()


def llama_cpp_tokens(path, prompt):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_gpu_layers, params.cpuparams.n_threads, params.warmup = 128, 0, 1, False
    params.cpuparams_batch.n_threads = params.n_parallel = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds to float16
    server = xllamacpp.Server(params)
    asked = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "samplers": ["top_k"], "top_k": 1,
             "return_tokens": True, "ignore_eos": True, "cache_prompt": False}
    request = urllib.request.Request(f"{server.listening_address}/completion", json.dumps(asked).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["tokens"]


def save(model, folder):
    """As published folders have it: transformers 5.24 saves kimi_linear's dense layers under the name of those with
    experts, and experts of qwen3_vl_moe as [out, in]."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    if folder.name == "kimi_linear":
        tensors = {name if any(part in name for part in (".experts.", ".gate.", ".shared_experts.")) else
                   name.replace(".block_sparse_moe.", ".mlp."): tensor for name, tensor in tensors.items()}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def of_text(tensors):
    """The text decoder's tensors by the names that they have in a folder of a text decoder alone."""
    return {name.replace("model.language_model.", "model."): tensor for name, tensor in tensors.items()
            if "visual." not in name}


def compare(name):
    kind, settings = MODELS[name]
    torch.manual_seed(1)
    config = getattr(transformers, kind + "Config")(**settings)
    config._attn_implementation = config._experts_implementation = "eager"
    reads_images = hasattr(config, "text_config")
    auto = transformers.AutoModelForImageTextToText if reads_images else transformers.AutoModelForCausalLM
    model = auto.from_config(config).float().eval()
    randomise(model)
    folder = FOLDER / name
    save(model, folder)
    if name == "kimi_linear":
        model = auto.from_pretrained(folder, attn_implementation="eager").float().eval()
    (folder / "tokenizer.json").write_bytes((FOLDER / "tokenizer.json").read_bytes())
    witan("import", folder, "--run", name)
    witan("export", "--run", name, "--format", "gguf", FOLDER / f"{name}.gguf")
    witan("import", FOLDER / f"{name}.gguf", "--run", f"{name}-again")
    written = json.loads((folder / "config.json").read_text())
    architecture = written.get("text_config", written)["model_type"]
    witan("export", "--run", f"{name}-again", "--format", "hf", FOLDER / f"{name}-again", "--architecture", architecture)
    one = of_text(load_file(folder / "model.safetensors"))
    two = load_file(FOLDER / f"{name}-again" / "model.safetensors")
    # Files hold -exp(A_log), of which the logarithm is the same but for rounding.
    same = one.keys() == two.keys() and all(
        torch.allclose(one[k], two[k], rtol=1e-6) if k.endswith("A_log") else torch.equal(one[k], two[k]) for k in one)
    prompt = [40, 51, 62, 73, 84, 95, 106, 117]
    expected, found = transformers_tokens(model, prompt), llama_cpp_tokens(FOLDER / f"{name}.gguf", prompt)
    equal = next((i for i, (a, b) in enumerate(zip(expected, found)) if a != b), len(expected))
    print(f"{name:18} {equal} of {TOKENS} tokens equal, {len(set(expected))} different ones; "
          f"weights come back {'the same' if same else 'OTHERWISE'}")
    return equal == TOKENS and same


FOLDER.mkdir(parents=True, exist_ok=True)
if not (FOLDER / "tokenizer.json").exists():
    (FOLDER / "text.txt").write_text("the king's council of wise people and the law of the land\n" * 50)
    subprocess.run([WITAN, "tokenizer", "train", FOLDER / "text.txt", "--vocab-size", "300", "--output",
                    FOLDER / "tokenizer.json"], check=True, capture_output=True)
sys.exit(not all([compare(name) for name in NAMES or MODELS]))
