#!/usr/bin/env python3
"""Writes ../convert/NAME's model as a newer converter of llama.cpp's does than make_golden.py's, to NAME.gguf beside this
script, without a vocabulary and without layers of multi-token prediction.

Made with Python 3.11, torch 2.15.0 (CPU), transformers 5.24.0 and the converter in llama_cpp_python-0.3.36.tar.gz, whose
folder vendor/llama.cpp is given: `make_hybrid.py LLAMA_CPP [NAME ...]`. The bytes are committed; run this only to change
them.
"""
import json
import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
LLAMA_CPP = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]

import conversion  # noqa: E402
import gguf  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402


def sections_of(name, sections):
    text = json.loads((HERE.parent / "convert" / name / "config.json").read_text())["text_config"]
    return {"text_config": text | {"rope_parameters": text["rope_parameters"] | {"mrope_section": sections}}}


# Of each model the keys of config.json that the converter wants otherwise than transformers 5.24 writes them.
PATTERN = {"linear_attention": "M", "moe": "E", "full_attention": "*", "mlp": "-"}
MODELS = {
    "qwen3_next_even": {}, "qwen3_5": {}, "qwen3_5_moe": {},
    # Heads of Mamba-2 have 64 channels unless the file says otherwise in these words.
    "nemotron_h_moe": {"mamba_d_head": 4},
    # A file with keys of experts would be one of a model with experts.
    "nemotron_h_dense": {"mamba_d_head": 4, "num_experts_per_tok": None, "n_routed_experts": None, "n_group": None, "topk_group": None},
    # The names of types of layers in published folders.
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "mamba"]},
    "granitemoehybrid_even": {"layer_types": ["mamba", "attention", "mamba", "mamba"]},
    "lfm2_even": {}, "lfm2_moe_even": {},
    "exaone_moe": {"scoring_func": "sigmoid", "first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
    # The share of rotated channels is 0.5 unless the file says otherwise.
    "solar_open": {"partial_rotary_factor": 1.0},
    "ernie4_5_moe_even": {},
    # The base that alpha raises, and lists of what all layers have.
    "hunyuan_v1_moe": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0 * 50.0 ** (8 / 6)},
                       "moe_topk": [3, 3], "moe_intermediate_size": [12, 12], "num_shared_expert": [1, 1]},
    # llama.cpp knows no windows here.
    "phi3": {"sliding_window": None,
             "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                                 "original_max_position_embeddings": 128}},
    "deepseek_v32": {"scoring_func": "sigmoid", "num_nextn_predict_layers": 0},
    "glm_moe_dsa": {"scoring_func": "sigmoid", "num_nextn_predict_layers": 0, "first_k_dense_replace": 1},
    # llama.cpp knows no windows here. Sections are those of published folders.
    "qwen2_vl_text": sections_of("qwen2_vl_text", [16, 24, 24]),
    "qwen3_vl_text": sections_of("qwen3_vl_text", [24, 20, 20]) | {"vision_config": {}},
    "qwen3_vl_moe_even": sections_of("qwen3_vl_moe_even", [24, 20, 20]) | {"vision_config": {}},
    "glm4v_moe_text": sections_of("glm4v_moe_text", [8, 12, 12]),
    # Names of published folders, and of keys there.
    "deepseek_v4_even": {"compress_ratios": [0, 4, 128], "num_hash_layers": 1, "head_dim": 12,
                         "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                          "original_max_position_embeddings": 32},
                         "rope_parameters": {"rope_theta": 10000.0}, "num_nextn_predict_layers": 0},
    # As in published folders, which give the size of heads of which nothing is made, but not that of experts' groups by
    # the converter's names.
    "kimi_linear": {"linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 3, 4], "num_heads": 4, "head_dim": 6,
                                           "short_conv_kernel_size": 3},
                    "moe_router_activation_func": "sigmoid", "first_k_dense_replace": 1, "n_group": 4,
                    "num_experts_per_token": 3, "head_dim": None},
}


def changed(name):
    config = json.loads((HERE.parent / "convert" / name / "config.json").read_text())
    if name.startswith("qwen3_5"):  # the converter writes Qwen3.5's own sections where the file has none
        config.get("text_config", config)["rope_parameters"].pop("mrope_section", None)
    config = {key: value for key, value in (config | MODELS[name]).items() if value is not None}
    if "layers_block_type" in config:
        config["hybrid_override_pattern"] = "".join(PATTERN[one] for one in config.pop("layers_block_type"))
        config["num_hidden_layers"] = len(config["hybrid_override_pattern"])
    return config


def published_v4(tensors):
    """Tensors of DeepSeek-V4 as in published folders, whose experts have 4 bits: the converter writes no others."""
    names = {"embed_tokens.weight": "embed.weight", "hc_head.hc_fn": "hc_head_fn", "hc_head.hc_base": "hc_head_base",
             "hc_head.hc_scale": "hc_head_scale"}
    found = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("model.").replace(".attn.norm.", ".attn.kv_norm.")
        found[names.get(name, name)] = tensor
        if ".experts." in name:
            found[name.replace(".weight", ".scale")] = torch.ones(1)
    return found


def write_experts(self, bid, proj, key):
    names = [f"layers.{bid}.ffn.experts.{expert}.{proj}" for expert in range(self.hparams["n_routed_experts"])]
    stacked = torch.stack([self.model_tensors[name + ".weight"]() for name in names])
    self.gguf_writer.add_tensor(self.format_tensor_name(key, bid), stacked.numpy())
    return [name + part for name in names for part in (".weight", ".scale")]


def make(name):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copy(HERE.parent / "convert" / name / "model.safetensors", folder)
        config = changed(name)
        (folder / "config.json").write_text(json.dumps(config))
        model_class = conversion.get_model_class(config["architectures"][0])
        model_class.set_vocab = lambda self: self._set_vocab_none()
        model_class.no_mtp = True
        if name == "deepseek_v4_even":
            save_file(published_v4(load_file(folder / "model.safetensors")), folder / "model.safetensors")
            model_class._write_mxfp4_expert_tensor = write_experts
            gguf.GGUFWriter.add_chat_template = lambda self, template: None  # the converter has one of its own
        model = model_class(folder, gguf.LlamaFileType.ALL_F32, HERE / f"{name}.gguf", hparams=config, model_name=name)
        if name == "ernie4_5_moe_even":  # the converter divides intermediate_size by the number of key heads
            model.gguf_writer.add_expert_shared_feed_forward_length = lambda _: model.gguf_writer.add_uint32(
                "ernie4_5-moe.expert_shared_feed_forward_length",
                config["moe_num_shared_experts"] * config["moe_intermediate_size"])
        model.write()


for one in sys.argv[2:] or MODELS:
    make(one)
