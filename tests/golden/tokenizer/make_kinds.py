"""Makes the golden files of tests/tokenizer/files/tokenizer_files_test.cpp: a tiny tokenizer of every kind and what its own library makes
of some texts.

Made with Python 3.11, tokenizers 0.23.3, sentencepiece 0.2.3, tiktoken 0.14.0:
    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3 tiktoken==0.14.0
    venv/bin/python make_kinds.py
"""

import base64
import io
import json
from pathlib import Path

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from make_golden import CORPUS, LLAMA3, TEXTS

HERE = Path(__file__).parent / "kinds"
SPACE = "\u2581"
MORE = [
    " \u2581 two\u2581 marks \u2581\u2581", "a <m> b<m>c <m>", "x<w>y <w> z", "<l>  <l>a  <l>  b", "a <r>  b<r> <r>", "<s>a</s> <unk>",
    "\u2581\u2581\u2581 a  b   c    ", "<0x0A><0x41>", "\x00\x07", "\U0001f600\U0001f600 \u4e2d\u6587\u0e01", "\u212bngstr\u00f6m \ufb01 \u2460 \u00bd \uff21",
    "HELLO \u0130STANBUL \u1e9e \u03a3\u03a3", "user<ud>defined <ud> ab", "a\u0301\u0323 \ud55c\uae00", "a,b;;c--d", "  \n\n x", "aaaaaaaaaaaaaaaaaaaaa" * 4,
    "zzzqqq\u00e6\u00f8\u0142 \u00e6", "qqqq", "the council of the king's people, over and over again",
]


def llama2():
    """As Llama 2's and Mistral's: no pre-tokenizer, byte fallback."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)  # to learn words
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tokenizer.train_from_iterator([CORPUS], trainers.BpeTrainer(vocab_size=520, special_tokens=specials, show_progress=False))
    data = json.loads(tokenizer.to_str())
    data["pre_tokenizer"] = None
    data["added_tokens"] = data["added_tokens"][:3]
    return data


def metaspace():
    """Metaspace that cuts, at the first part alone; unknown characters; every flag of added tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.train_from_iterator([CORPUS[:900]], trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False))
    tokenizer.add_tokens([AddedToken("<w>", single_word=True), AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True),
                          AddedToken("<m>", lstrip=True, rstrip=True, normalized=False)])
    return json.loads(tokenizer.to_str())


def normalized(kind):
    """Bytes behind a chain of normalizers and splits."""
    tokenizer = Tokenizer(models.BPE())
    if kind == 0:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
        splits = [pre_tokenizers.Split(" ", "merged_with_previous"), pre_tokenizers.Split(Regex("[,;-]"), "contiguous")]
    elif kind == 1:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Replace(Regex(" {2,}"), " "),
                                                     normalizers.Strip(left=False, right=True)])
        splits = [pre_tokenizers.Split(" ", "merged_with_next"), pre_tokenizers.Split(Regex("[0-9]+"), "removed")]
    else:
        tokenizer.normalizer = normalizers.NFKD()
        splits = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("[a-z]+"), "merged_with_next", invert=True)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([CORPUS[:900]], trainers.BpeTrainer(
        vocab_size=300, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(tokenizer.to_str())


def unigram(charsmap):
    """As T5's and XLM-R's, with a character map of SentencePiece's."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainers.UnigramTrainer(
        vocab_size=260, unk_token="<unk>", special_tokens=["<unk>", "</s>"], show_progress=False))
    return json.loads(tokenizer.to_str())


def sentencepiece_model(**options):
    rules = HERE / "rules.tsv"
    rules.write_text("".join(f"{a}\t{b}\n" for a, b in [("A0", "20"), ("3000", "20"), ("212B", "C5"), ("FB01", "66 69"), ("FF21", "41"),
                                                        ("9", "20"), ("A", "20"), ("65 301", "E9"), ("1F", "")]))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()), model_writer=model, minloglevel=2, normalization_rule_tsv=str(rules),
        num_threads=1, **options)
    rules.unlink()
    return model.getvalue()


def charsmap_of(model):
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model)
    return proto.normalizer_spec.precompiled_charsmap


def ranks_of(data):
    """The bytes of a byte-level vocabulary, by rank."""
    alphabet = {}
    extra = 0
    for byte in range(256):
        printable = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE
        alphabet[chr(byte if printable else 256 + extra)] = byte
        extra += not printable
    return {bytes(alphabet[c] for c in key): id for key, id in data["model"]["vocab"].items()}


def main():
    HERE.mkdir(exist_ok=True)
    texts = TEXTS + MORE
    cases = []

    def put(name, data, encode, path=None):
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_bytes(data)
        cases.append({"tokenizer": path or name, "ids": [encode(text) for text in texts]})

    def put_json(name, data):
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"
        tokenizer = Tokenizer.from_str(text)
        tokenizer.encode_special_tokens = True
        put(name, text.encode(), lambda t: tokenizer.encode(t, add_special_tokens=False).ids)

    def put_sentencepiece(name, model):
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        put(name, model, processor.encode)

    bpe = sentencepiece_model(model_type="bpe", vocab_size=560, byte_fallback=True, remove_extra_whitespaces=False,
                              user_defined_symbols=["<ud>", SPACE * 3])
    put_sentencepiece("bpe.model", bpe)
    put_sentencepiece("bpe_unknown.model", sentencepiece_model(model_type="bpe", vocab_size=250, character_coverage=0.98))
    plain = sentencepiece_model(model_type="unigram", vocab_size=175, user_defined_symbols=["<ud>", "ab"])
    put_sentencepiece("unigram.model", plain)
    put_sentencepiece("unigram_bytes.model", sentencepiece_model(
        model_type="unigram", vocab_size=420, byte_fallback=True, character_coverage=0.98, add_dummy_prefix=False))
    put_json("llama2.json", llama2())
    put_json("metaspace.json", metaspace())
    for kind in range(3):
        put_json(f"normalized{kind}.json", normalized(kind))
    put_json("unigram.json", unigram(charsmap_of(plain)))

    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=380, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    data = json.loads(byte_level.to_str())
    put("ranks.tiktoken", b"".join(base64.b64encode(token) + b" %d\n" % id for token, id in ranks_of(data).items()),
        tiktoken.Encoding("ranks", pat_str=LLAMA3, mergeable_ranks=ranks_of(data), special_tokens={}).encode_ordinary,
        "ranks.tiktoken#cl100k")
    ranks = dict(list(ranks_of(data).items())[:350])
    inner = tiktoken.Encoding("tekken", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
    tekken = {"config": {"pattern": LLAMA3, "num_vocab_tokens": 380, "default_vocab_size": 375, "default_num_special_tokens": 25,
                         "version": "v3"},
              "vocab": [{"rank": id, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
                        for token, id in ranks_of(data).items()]}
    put("tekken.json", json.dumps(tekken).encode(), lambda t: [id + 25 for id in inner.encode_ordinary(t)])
    model = data["model"]
    merges = "#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in model["merges"])
    (HERE / "pair").mkdir(exist_ok=True)
    (HERE / "pair" / "merges.txt").write_text(merges)
    put("pair/vocab.json", json.dumps(model["vocab"]).encode(), lambda t: byte_level.encode(t).ids, "pair")
    (HERE / "encoded.json").write_text(json.dumps({"texts": texts, "cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
