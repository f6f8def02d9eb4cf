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

NAMES = ["qwen3_next_even", "qwen3_5", "qwen3_5_moe"]


def make(name):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copy(HERE.parent / "convert" / name / "model.safetensors", folder)
        config = json.loads((HERE.parent / "convert" / name / "config.json").read_text())
        # The sections of the rotation are Qwen3.5's own, which the converter writes where the file has none.
        config.get("text_config", config)["rope_parameters"].pop("mrope_section", None)
        (folder / "config.json").write_text(json.dumps(config))
        model_class = conversion.get_model_class(config["architectures"][0])
        model_class.set_vocab = lambda self: self._set_vocab_none()
        model_class.no_mtp = True
        model_class(folder, gguf.LlamaFileType.ALL_F32, HERE / f"{name}.gguf", hparams=config, model_name=name).write()


for one in sys.argv[2:] or NAMES:
    make(one)
