"""Makes splits.json, which tests/tokenizer/golden_test.cpp holds patterns, tables and the normalizer to.

Made with Python 3.11, tokenizers 0.23.3 (its wheels link Oniguruma with Unicode 16.0):
    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 && venv/bin/python make_splits.py
"""

import json
import random
from pathlib import Path

from tokenizers import Regex, normalizers, pre_tokenizers

TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def cased(prefix, but, endings, digits, behind):
    """The family of o200k: capitals, then small letters."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return (f"{prefix}{start}[{UPPER}{but}]*[{LOWER}{but}]+{endings}|{start}[{UPPER}{but}]+[{LOWER}{but}]*{endings}"
            rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+{behind}*|{TAIL}")


PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL,
    "qwen2": ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL,
    "qwen3.5": ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL,
    "o200k": cased("", "", ENDINGS + "?", r"\p{N}{1,3}", r"[\r\n/]"),
    "tekken": cased("", "", "", r"\p{N}", r"[\r\n/]"),
    "kimi": cased(r"[\p{Han}]+|", r"&&[^\p{Han}]", ENDINGS + "?", r"\p{N}{1,3}", r"[\r\n]"),
    "deepseek2": "[一-龥\u3040-ゟ゠-ヿ]+",
    "deepseek3": r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                 r"""| ?[\p{P}\p{S}]+[\r\n]*|""" + TAIL,
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "number": r"\p{N}", "numbers": r"\p{N}+", "triplets": r"\p{N}{1,3}",
    # What other engines read otherwise, or other releases of Oniguruma.
    "repeated group": r"\p{N}{1,3}+x", "possessive": r"\p{L}++|a", "intersection": r"[\w&&[^\p{Han}_]]+",
    "nested": r"[^\d[a-f]&&\p{^P}]+", "boundary": r"\b\w+\b|\B\W", "posix": r"[[:word:]]+|[[:^alpha:][:punct:]]",
    "punctuation": r"[[:punct:]]", "word in brackets": r"[\w.]+|[^\W]", "folded": r"(?i:[^a-z\s]+|ss|k)",
    "empty": r"(?=\p{Lu})", "lookbehind": r"(?<=\p{Ll}|\d\d)\p{Lu}?", "thousands": r"\d{1,3}(?=(?:\d{3})*\b)",
    "hexadecimal": r"\h+|\H", "atomic": r"(?>a|ab)c|\N|\O", "alnum": r"[[:alnum:]]+|[[:print:]]|[[:graph:]]",
}
PIECES = [" ", "  ", "\n", "\r", "\r\n", "\t", "'", "'s", "'LL", "'ſ", "a", "Z", "abc", "HelloWorld", "é", "ß", "ss", "K",
          "1", "12", "9999", "½", "²", "٣", "Ⅷ", ".", "!?", "_", "-", "/", "[", "日本", "の", "カ", "한", "〇", "⺀", "々", "😀",
          "👩‍👩‍👧", "👍🏽", "\u0301", "\u200d", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "\ufeff", "ẞ", "ǅ", "ʰ",
          "ª", "\x1c", "\x00", "\ue000", "\U0001d7d8", "\U0001fae8", "\U0001fa77", "\U00031350", "\U0002ebf0", "\u1c89",
          "\ua7cb", "\u0897", "\U00011de0", "\U00010d40", "\U00010d50"]
NORMALIZED = ["e\u0301", "\u212b\u1e9b\u0323", "\u0344", "q\u0307\u0323", "\u0958", "\u1100\u1161\u11a8", "\uac00\u11a7", "\u0f73\u0345",
              # Characters since Unicode 10, which the reference leaves as they are.
              "a\u0345\u08d3\u0334", "\U00011935\U00011930", "\U000105d2\u0307", "a\u0345\u1acf\u0323\u0897", "\U00016d67\U00016d67",
              "a\u0315\U0001e2ec\u0300"]
PROPERTIES = ("L Lu Ll Lt Lm Lo M Mn Mc N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs C Cc Cf Co Cn LC Any Assigned Alpha "
              "Lower Upper Graph Print Punct PosixPunct Space Word Blank XDigit Alnum Han Hira Katakana Hangul Latin Cyrl "
              "Greek Arabic Thai Common Inherited Kawi Garay Emoji Extended_Pictographic").split()
EVERY = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)


def text(rng):
    out = ""
    for _ in range(rng.randrange(1, 30)):
        piece = rng.choice(PIECES)
        if rng.random() < 0.15:
            piece = chr(rng.choice([rng.randrange(0xA0, 0x600), rng.randrange(0x600, 0xD800), rng.randrange(0x10000, 0x20000)]))
        out += piece * rng.choice([1, 1, 1, 1, 2, 5])
    return out


def pieces(step, of):
    return [piece for piece, _ in step.pre_tokenize_str(of) if piece]


def isolated(regex):
    return pre_tokenizers.Split(Regex(regex), behavior="isolated", invert=False)


def property_sum(name):
    step = pre_tokenizers.Split(Regex(r"\p{%s}" % name), behavior="removed", invert=True)
    members = [ord(c) for piece, _ in step.pre_tokenize_str(EVERY) for c in piece]
    return [len(members), sum(members)]


def main():
    rng = random.Random(20260101)
    splits = [{"name": name, "pattern": pattern,
               "cases": [[each, pieces(isolated(pattern), each)] for each in (text(rng) for _ in range(10))]}
              for name, pattern in PATTERNS.items()]
    digits = [{"individual": flag, "cases": [[each, pieces(pre_tokenizers.Digits(individual_digits=flag), each)]
                                             for each in (text(rng) + "\U00011de0\U00011de11" for _ in range(8))]}
              for flag in (True, False)]
    nfc = normalizers.NFC().normalize_str
    normalized = [[each, nfc(each)] for each in NORMALIZED + [text(rng) for _ in range(20)]]
    properties = {name: property_sum(name) for name in PROPERTIES}
    Path(__file__).with_name("splits.json").write_text(json.dumps(
        {"splits": splits, "digits": digits, "normalized": normalized, "properties": properties}, indent=0) + "\n")


if __name__ == "__main__":
    main()
