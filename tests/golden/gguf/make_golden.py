#!/usr/bin/env python3
"""Writes ../convert/NAME's model as llama.cpp's own converter does, to NAME.gguf beside this script, without a vocabulary.

Made with Python 3.11, torch 2.15.0 (CPU), transformers 5.23.0 and convert_hf_to_gguf.py of the llama.cpp in
llama_cpp_python-0.3.9.tar.gz (May 2025), whose folder vendor/llama.cpp is given: `make_golden.py LLAMA_CPP [NAME ...]`.
The bytes are committed; run this only to change them.
"""
import json
import pathlib
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
LLAMA_CPP = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]
sys.argv[1:], names = [], sys.argv[2:]

import convert_hf_to_gguf as converter  # noqa: E402
import gguf  # noqa: E402

# Of each model the type of its file, and keys of config.json as older transformers wrote them, which the converter
# knows.
MODELS = {
    "mixtral": ("ALL_F32", {"rope_theta": 1e6}),
    "llama3": ("MOSTLY_BF16", {"rope_theta": 10000.0, "original_max_position_embeddings": 16,
                               "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                "high_freq_factor": 4.0}}),
    "gpt2": ("ALL_F32", {"n_ctx": 80}),
    "olmo2": ("ALL_F32", {"rope_theta": 10000.0}),
    "deepseek_v3": ("ALL_F32", {"head_dim": None, "rope_theta": 10000.0, "scoring_func": "sigmoid", "norm_topk_prob": True,
                                "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale_all_dim": 1.0,
                                                 "original_max_position_embeddings": 32}}),
}


def make(name):
    kind, more = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copy(HERE.parent / "convert" / name / "model.safetensors", folder)
        config = json.loads((HERE.parent / "convert" / name / "config.json").read_text())
        config.pop("rope_parameters", None)
        (folder / "config.json").write_text(json.dumps(config | more))
        # transformers has a head_dim of null, and one of DeepSeek's that says less than the converter takes it for.
        hparams = {k: v for k, v in (config | more).items() if v is not None}
        model_class = converter.ModelBase.from_model_architecture(config["architectures"][0])
        model_class.set_vocab = lambda self: self._set_vocab_none()
        model = model_class(folder, getattr(gguf.LlamaFileType, kind), HERE / f"{name}.gguf", hparams=hparams,
                            model_name=name)
        if name == "gpt2":  # the converter writes 4 n_embd, whatever n_inner says
            model.gguf_writer.add_feed_forward_length = lambda _: model.gguf_writer.add_uint32(
                "gpt2.feed_forward_length", config["n_inner"])
        model.write()


for one in names or MODELS:
    make(one)
