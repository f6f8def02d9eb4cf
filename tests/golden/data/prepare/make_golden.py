#!/usr/bin/env python3
"""Tokenizes rows as Megatron-LM's tools/preprocess_data.py does, with megatron-core's own tokenizers and
IndexedDatasetBuilder, and writes golden.json: hashes of the .bin and .idx files.

    make_golden.py                              rows.jsonl with the small tokenizers of tests/golden/tokenizer
    make_golden.py --compare WITAN ROWS NAME=FILE ...
        ROWS (JSON Lines) with these tokenizers (tokenizer.json or SentencePiece .model), both by megatron-core and by
        the program WITAN, and compares the files byte for byte.

Made with megatron-core 0.16.1, transformers 5.23.0, tokenizers 0.23.3, sentencepiece 0.2.3.
"""
import hmac
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

from megatron.core.datasets import indexed_dataset
from megatron.core.tokenizers.text.utils.build_tokenizer import build_tokenizer

HERE = pathlib.Path(__file__).parent
SMALL = HERE.parent.parent / "tokenizer"
ENDS = ["<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>"]


def folder_of(tokenizer, at):
    """A folder with the tokenizer.json as AutoTokenizer wants it."""
    at.mkdir(parents=True)
    shutil.copy(tokenizer, at / "tokenizer.json")
    added = [token["content"] for token in json.loads(tokenizer.read_text())["added_tokens"]]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    end = next((end for end in ENDS if end in added), None)
    if end:
        config["eos_token"] = end
    (at / "tokenizer_config.json").write_text(json.dumps(config))
    return at, end


def megatron_tokenizer(kind, model):
    args = types.SimpleNamespace(
        tokenizer_type=kind, tokenizer_model=str(model), vocab_file=None, merge_file=None, vocab_size=None,
        tokenizer_special_tokens=None, tokenizer_hf_use_fast=True, trust_remote_code=False,
        tokenizer_hf_include_special_tokens=False, tokenizer_sentencepiece_legacy=False, tokenizer_metadata=None)
    return build_tokenizer(args)


def preprocess(tokenizer, rows, prefix, key="text", append_eod=True):
    """What Encoder.encode() and Partition.process_json_file() do with each row."""
    builder = indexed_dataset.IndexedDatasetBuilder(
        f"{prefix}_{key}_document.bin", dtype=indexed_dataset.DType.optimal_dtype(tokenizer.vocab_size))
    with open(rows, encoding="utf-8") as lines:
        for line in lines:
            ids = list(tokenizer.tokenize(json.loads(line)[key]))
            lengths = [len(ids)] if ids else []
            if ids and append_eod:
                ids.append(tokenizer.eod)
                lengths[-1] += 1
            builder.add_document(ids, lengths)
    builder.finalize(f"{prefix}_{key}_document.idx")


def hashes(prefix, key="text"):
    """HMAC-SHA256 with an empty key: what the tests have a function for."""
    return {end: hmac.new(b"", pathlib.Path(f"{prefix}_{key}_document.{end}").read_bytes(), "sha256").hexdigest()
            for end in ("bin", "idx")}


def compare(witan, rows, named):
    name, file = named.split("=", 1)
    file = pathlib.Path(file)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        kind, model, end = "SentencePieceTokenizer", file, None
        if file.suffix == ".json":
            kind = "HuggingFaceTokenizer"
            model, end = folder_of(file, scratch / "tokenizer")
        tokenizer = megatron_tokenizer(kind, model)
        append = kind != "HuggingFaceTokenizer" or end is not None
        preprocess(tokenizer, rows, scratch / "megatron", append_eod=append)
        subprocess.run([witan, "data", "prepare", "--input", rows, "--output-prefix", scratch / "witan",
                        "--tokenizer-type", kind, "--tokenizer-model", model] + ["--append-eod"] * append,
                       check=True, capture_output=True)
        ours, theirs = hashes(scratch / "witan"), hashes(scratch / "megatron")
        size = (scratch / "megatron_text_document.bin").stat().st_size
        print(json.dumps({"tokenizer": name, "vocabulary": tokenizer.vocab_size, "bin_bytes": size,
                          "equal": ours == theirs, "hmac_sha256": theirs}))
        return ours == theirs


def small():
    golden = {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for name in ("gpt2", "llama3", "qwen2"):
            model, end = folder_of(SMALL / f"{name}.json", scratch / name)
            tokenizer = megatron_tokenizer("HuggingFaceTokenizer", model)
            for append in [False] + [True] * (end is not None):
                for key in ("text", "title"):
                    preprocess(tokenizer, HERE / "rows.jsonl", scratch / "out", key, append)
                    golden[f"{name} {key}" + " eod" * append] = {
                        "end": end, "files": hashes(scratch / "out", key)}
    (HERE / "golden.json").write_text(json.dumps(golden, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    if "--compare" in sys.argv:
        witan, rows, *named = sys.argv[sys.argv.index("--compare") + 1:]
        sys.exit(0 if all([compare(witan, rows, one) for one in named]) else 1)
    small()
