"""Makes steps.json of tests/tokenizer/files/steps_test.cpp: what Hugging Face tokenizers makes of the parts of tokenizer.json
around the model, alone and one after the other, and of the models of words.

Made with Python 3.11, tokenizers 0.23.3:
    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 && venv/bin/python make_steps.py
"""

import itertools
import json
import os
import random
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, decoders, processors, trainers, Regex

from make_golden import CORPUS

HERE = Path(__file__).parent
SPACE = "\u2581"
CHARACTERS = [SPACE, "_", " ", "a", "b", "x", ".", "\n", "1", "<", ">", "\u00e9", "\u00b2", "h", "e", "l", "o", "t", "f", "i", "'", "s", "n"]


def characters(**parts):
    """A tokenizer of characters, with bytes and a few longer tokens, in which every step shows."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + CHARACTERS
    tokens += [SPACE + "the", "##s", SPACE + SPACE, " a ", "__", "<0x4a>", "\ufb01"]
    data = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {token: id for id, token in enumerate(tokens)}, "merges": []}}
    data.update(parts)
    return data


def added(id, content, **flags):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False} | flags


def attempt(call):
    """None where the reference panics."""
    try:
        return call()
    except BaseException:
        return None


def decoded():
    steps = [decoders.Replace(SPACE, " "), decoders.Replace("_", ""), decoders.Replace(Regex("[ab]+"), "x y"), decoders.ByteFallback(),
             decoders.Fuse(), decoders.Strip(" ", 1, 0), decoders.Strip("a", 2, 1), decoders.Metaspace(), decoders.Metaspace(prepend_scheme="never"),
             decoders.WordPiece(), decoders.WordPiece(prefix=SPACE, cleanup=False)]
    state = [json.loads(step.__getstate__()) for step in steps]
    chains = [None] + [list(chain) for n in (1, 2) for chain in itertools.permutations(range(len(steps)), n)]
    rng = random.Random(11)
    chains += [rng.sample(range(len(steps)), rng.choice((3, 4))) for _ in range(160)]
    vocab = characters()["model"]["vocab"]
    id = lambda *tokens: [vocab[token] for token in tokens]
    # What is three bytes here, E2 96 81, is the mark of a space.
    lists = [[], id("a"), id(SPACE), id(SPACE, "a"), id(SPACE + SPACE, "a", SPACE), id(" ", "a", " "), id("<s>", SPACE + "the", "##s", "</s>"),
             id("<0xE2>", "<0x96>", "<0x81>", "a", "<0x20>"), id("<0x20>", "<0x61>", "a"), id("a", "a", "a", "b", ".", "_", "__"),
             id(" a ", "n", "'", "t"), id("_", "_"), id("<", "1", ">"), id("<0x4a>", "<0x61>", "b"),
             id(SPACE + "the", SPACE + "the", SPACE, SPACE, ".")]
    cases = []
    for chain in chains:
        decoder = None if chain is None else state[chain[0]] if len(chain) == 1 else {
            "type": "Sequence", "decoders": [state[i] for i in chain]}
        tokenizer = Tokenizer.from_str(json.dumps(characters(decoder=decoder)))
        cases.append([decoder, [attempt(lambda: tokenizer.decode(ids, skip_special_tokens=False)) for ids in lists]])
    return {"ids": lists, "cases": cases}


def around():
    bos, eos = ("<s>", 1), ("</s>", 2)
    template = lambda single: processors.TemplateProcessing(single=single, pair="$A $B:1", special_tokens=[bos, eos])
    both = [template("<s> $A"), template("$A </s>"), template("<s> $A </s>"), processors.BertProcessing(eos, bos),
            processors.RobertaProcessing(eos, bos), processors.ByteLevel(),
            processors.Sequence([processors.ByteLevel(), template("<s> $A")]),
            processors.TemplateProcessing(single="x $A", pair="$A $B:1", special_tokens=[{"id": "x", "ids": [1, 2], "tokens": ["<s>", "</s>"]}])]
    cases = []
    for processor in both:
        tokenizer = Tokenizer.from_str(json.dumps(characters()))
        tokenizer.post_processor = processor
        cases.append([json.loads(tokenizer.to_str())["post_processor"], [tokenizer.encode(text).ids for text in ("hello", "")]])
    return {"texts": ["hello", ""], "cases": cases}


def encoded():
    """Added tokens, and Metaspace behind normalizers and splits."""
    n = len(characters()["model"]["vocab"])
    flags = [dict(single_word=True), dict(rstrip=True), dict(lstrip=True), dict(lstrip=True, rstrip=True), dict(normalized=True, rstrip=True)]
    tokenizers, rng = [], random.Random(5)
    texts = ["ab", "ab\u00b2", "\u00b2ab", "ab\u00bd ab", "\u200cab", "ab\u200d", "ab\u0301", "\u0663ab", "ab\u203f", "ab_ ab.", "<x>   a", "<x>  ", "a  <x>    ab",
             "<x> <x>  ab  <x>", "  <x>  ab", "", " ", "  a", "\u3000a b", "a  b", "xx a", "x a", "\ufb01 a", "\ufb01\ufb01", "\u00e9a", "a.a b.", "..a"]
    texts += ["".join(rng.choice(["a", "b", "ab", " ", "  ", "<x>", "x", ".", "\u00b2", "\u200c", "\ufb01", "\n", SPACE, "\u00e9"]) for _ in range(12))
              for _ in range(40)]
    for flag in flags:
        tokenizers.append(characters(added_tokens=[added(n, "ab", **flag), added(n + 1, "<x>", **flag), added(n + 2, "  ")]))
    norms = [None, {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Replace", "pattern": {"String": "x"}, "content": "aa"},
             {"type": "Replace", "pattern": {"Regex": "x+"}, "content": "a b"}, {"type": "Replace", "pattern": {"String": " "}, "content": ""},
             {"type": "NFKC"}, {"type": "NFD"}, {"type": "Prepend", "prepend": "b."}, {"type": "Lowercase"}]
    norms += [{"type": "Sequence", "normalizers": [norms[i], norms[j]]} for i, j in ((5, 1), (1, 7), (3, 1), (2, 4), (7, 2))]
    dot = {"type": "Split", "pattern": {"String": "."}, "behavior": "Isolated", "invert": False}
    first = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": True}
    letters = {"type": "Split", "pattern": {"Regex": "[a-z]"}, "behavior": "Isolated", "invert": False}
    for norm in norms:
        for steps in ([first], [dot, first], [letters, first], [first, dot, first]):
            pre = steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
            tokenizers.append(characters(normalizer=norm, pre_tokenizer=pre, added_tokens=[added(n, "<x>", lstrip=True)]))
    cases = []
    for data in tokenizers:
        tokenizer = Tokenizer.from_str(json.dumps(data))
        parts = {key: data[key] for key in ("normalizer", "pre_tokenizer", "added_tokens")}
        cases.append([parts, [attempt(lambda: tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]])
    return {"texts": texts, "cases": cases}


def unicode_texts():
    rng = random.Random(8)
    ranges = [(0x20, 0x7E), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x1FFF), (0x2000, 0x33FF), (0x4E00, 0x4E40), (0xA000, 0xABFF), (0xF900, 0xFFFD),
              (0x10000, 0x11FFF), (0x1D000, 0x1F9FF), (0x1E000, 0x1E95F), (0x2B81F, 0x2B925), (0xE0000, 0xE01EF), (0, 0x20)]
    return ["".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(30)) for _ in range(30)] + [
        "Hello, World!  It's \u00e9t\u00e9 \u4e2d\u6587 ok\u200d\u200cx", "a\u0301b\u0327 \u1e69", "", "\t\n\r x", "\u0130I\u0131 \u03a3\u03a3", "don't stop...",
        "\u166d \u1734 \U0001171e \U000111c9 \u1cf2 \u08e2 \u2e43"]


def parts():
    texts = unicode_texts()
    norms = [normalizers.BertNormalizer(clean_text=a, handle_chinese_chars=b, strip_accents=c, lowercase=d)
             for a, b, c, d in ((True, True, None, True), (True, False, False, False), (False, True, False, False), (False, False, True, False),
                           (True, True, None, False))]
    norms += [normalizers.StripAccents(), normalizers.Lowercase()]
    pres = [pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Punctuation()]
    pres += [pre_tokenizers.Punctuation(behavior) for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous")]
    bare = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))

    def state(name, part):
        setattr(bare, name, part)
        return json.loads(bare.to_str())[name]
    return {"texts": texts,
            "normalizers": [[state("normalizer", norm), [norm.normalize_str(text) for text in texts]] for norm in norms],
            "pre_tokenizers": [[state("pre_tokenizer", pre), [[piece for piece, _ in pre.pre_tokenize_str(text)] for text in texts]] for pre in pres]}


def words():
    lines = CORPUS.splitlines()
    bert = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12))
    bert.normalizer = normalizers.BertNormalizer()
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bert.train_from_iterator(lines, trainers.WordPieceTrainer(vocab_size=260, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False))
    bert.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    bert.decoder = decoders.WordPiece()
    level = Tokenizer(models.WordLevel(unk_token="<unk>"))
    level.pre_tokenizer = pre_tokenizers.Whitespace()
    level.train_from_iterator(lines, trainers.WordLevelTrainer(vocab_size=80, special_tokens=["<unk>", "</s>"], show_progress=False))
    texts = lines[:6] + ["councilmember councils", "antidisestablishmentarianism", "A [SEP] b", "\u00c9t\u00e9 d\u00e9j\u00e0", "", "\u4e2d\u6587 dogs!"] + unicode_texts()[:10]
    cases = []
    for tokenizer in (bert, level):
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts[:8] + texts[9:]]
        cases.append([json.loads(tokenizer.to_str()), ids, [tokenizer.encode(text).ids for text in texts[:8] + texts[9:]],
                      [tokenizer.decode(one, skip_special_tokens=False) for one in ids]])
    return {"texts": texts[:8] + texts[9:], "cases": cases}


def main():
    out = {"tokenizer": characters(), "decoded": decoded(), "around": around(), "encoded": encoded(), "parts": parts(), "words": words()}
    (HERE / "steps.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
