"""Makes the golden files of tests/tokenizer/golden_test.cpp with Hugging Face tokenizers, the reference implementation.

Made with Python 3.11, tokenizers 0.23.3:
    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 && venv/bin/python make_golden.py
"""

import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

CORPUS = """\
A witan was a council of wise people. The king's council wasn't a parliament, and they'd meet where he was: he'll call,
they've come; I'm told we're all of it. The 1234567 words in 2024 cost $3.50, or 1,000,000 more -- and then?!
    def council(members):
        for member in members:
            yield member.vote() if member else None  # nothing more to say
The quick brown fox jumps over the lazy dog. The dog isn't lazy; the fox's quick. Over and over the words come again.
Die Weisen berieten den König über Straßen, Flüsse und Brücken. Où était-ce? À l'été, déjà; mañana será otro día.
Мудрые люди советовали королю. Совет собирался, где он был. 東京は日本の首都です。日本の首都は東京です。中文的句子没有空格。
😀 😀 👩‍👩‍👧 👍🏽 and the words of the people, the council of the king, the king of the people.
aaaa aaaaaaaa abababab banana bananas anagram
"""

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "a", "Hello world", " Hello", "The king's council isn't what they'd said: I'll, we've, you're, I'm.",
    "IT'S THEY'LL WE'VE YOU'RE I'M HE'D can'T", "'s 's''s 'S 'ſ x'ſ 'l 'lx '", "it's'll", "1", "12", "123", "1234", "12345678901",
    "a1b22c333d4444", "3.14159 and 1,000,000 and ½ ² Ⅷ ٣٤٥٦", "東京は日本の首都です。中文的句子没有空格。", "Мудрые люди", "Straße König É é e\u0301",
    "😀 👩‍👩‍👧👍🏽 🇩🇪🇫🇷", "tabs\tand\t\tmore", "trailing   ", "   leading", "two  spaces   three    four", "line\nline\n\nline\n\n\n  indented\n",
    "\r\n\r\n  \r\n x", " \n \n", "x \n y", "end.\n\nNext", "...!!!???\n\n\n--", " !?", "  !?", "\u00a0nbsp\u00a0\u00a0two", "\u3000ideographic\u3000space",
    "\u2028line\u2029sep", "\u180emongolian \u180e", "\u200bzero\u200dwidth", "\x85next\x85line", "\x1c\x1d\x1e\x1f separators", "\x00\x01 control",
    "def f(x):\n    return x  # comment\n", "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|> <|endoftext", "a  <ws> b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "banana anagram abababababa", "hello unreachable words", "ＦＵＬＬ　ｗｉｄｔｈ １２３", "한국어 문장입니다. 각각", "हिन्दी में वाक्य", "ไทยไม่มีช่องว่าง", "العربية ١٢٣",
    "A\u030angstr\u00f6m \u212b \u1e9b\u0323 \u0344", "ǅ ʰ ª º ß ŉ ﬁ", "camelCase HTTPServer's snake_case/path//x\n/", "\U0001d400\U0001d7d8\U0010ffff\ue000",
]


def random_texts(count):
    rng = random.Random(20240520)
    pieces = [" ", "  ", "\n", "\r", "\t", "'", "'s", "'LL", "a", "Z", "é", "ß", "1", "99", "½", ".", "!?", "日", "本", "😀", "\u0301", "\u00a0", "\u3000",
              "the", " council", "<|endoftext|>", "<ws>", "\u200d", "Ж", "_", "-"]
    return ["".join(rng.choice(pieces) for _ in range(rng.randrange(1, 30))) for _ in range(count)]


def split(regex):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(pre_tokenizer, vocab_size, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=2, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([CORPUS], trainer)
    return tokenizer


def with_model(tokenizer, change):
    data = json.loads(tokenizer.to_str())
    change(data)
    return Tokenizer.from_str(json.dumps(data))


def unreachable_words(data):
    """Words in the vocabulary that no merge leads to: only ignore_merges finds them."""
    data["model"]["ignore_merges"] = True
    for word in ["hello", "Ġunreachable", "Ġwords", "banana"]:
        data["model"]["vocab"].setdefault(word, len(data["model"]["vocab"]))


def merges_as_text(data):
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]


def build():
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2 = train(byte_level, 400)
    gpt2.add_special_tokens(["<|endoftext|>"])
    llama3 = with_model(train(split(LLAMA3), 400), unreachable_words)
    llama3.add_special_tokens(["<|begin_of_text|>", "<|endoftext|>"])
    llama3.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        special_tokens=[("<|begin_of_text|>", llama3.token_to_id("<|begin_of_text|>"))])
    qwen2 = train(split(QWEN2), 380, normalizers.NFC())
    qwen2.add_special_tokens(["<|endoftext|>"])
    digits = train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]), 350)
    digits.add_tokens([AddedToken("<ws>", normalized=True), AddedToken("  ", normalized=False)])
    digits.add_special_tokens(["<|endoftext|>"])
    prefix = train(pre_tokenizers.ByteLevel(add_prefix_space=True), 330)
    o200k = train(split(O200K), 350)
    return {"gpt2": gpt2, "llama3": llama3, "qwen2": qwen2, "digits": digits, "prefix": prefix, "o200k": o200k}


def main():
    texts = TEXTS + random_texts(60)
    cases = []
    for name, tokenizer in build().items():
        data = json.loads(tokenizer.to_str())
        if name == "gpt2":
            merges_as_text(data)
        (HERE / f"{name}.json").write_text(json.dumps(data, ensure_ascii=False) + "\n")
        tokenizer = Tokenizer.from_file(str(HERE / f"{name}.json"))
        ids = {}
        for key, plain in [("ids", True), ("ids_with_special", False)]:
            tokenizer.encode_special_tokens = plain
            ids[key] = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        cases.append({"tokenizer": f"{name}.json", **ids})
    (HERE / "encoded.json").write_text(json.dumps({"texts": texts, "cases": cases}) + "\n")

    trained = {}
    for name, pre_tokenizer in [("gpt2", pre_tokenizers.ByteLevel(add_prefix_space=False)), ("llama3", split(LLAMA3))]:
        model = json.loads(train(pre_tokenizer, 500).to_str())["model"]
        trained[name] = {"vocab": model["vocab"], "merges": model["merges"]}
    (HERE / "trained.json").write_text(json.dumps({"corpus": CORPUS, **trained}) + "\n")


if __name__ == "__main__":
    main()
