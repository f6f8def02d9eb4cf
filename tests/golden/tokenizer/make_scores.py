"""Makes scores.json: what the references' arithmetic makes of the scores of Unigram tokenizers.

Made with Python 3.11, tokenizers 0.23.3, sentencepiece 0.2.3:
    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3 && venv/bin/python make_scores.py

`numbers` are numbers of a tokenizer.json and what Hugging Face reads them as. `texts` are long ones, of `words` drawn by a
linear congruential generator, with a hash of the ids that a tokenizer gives. kinds/ties.model and kinds/ties.json are made up
so that many segmentations have the same score but for its last bits.
"""

import json
import random
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer

HERE = Path(__file__).parent
WORDS = ["aaaa", "aaaaaaaaa", "---", "-----------", "(a)", "ab", "abab", "bb(", "x-x", "=====", "  ", "b", "z", "aab"]
PIECES = [(text * n, n * score) for text, score in [("a", -5.129043102264404), ("-", -3.7103), ("\u2581", -2.1716766357421875),
                                                    ("b", -4.3), ("=", -7.77)] for n in (1, 2, 3)]
PIECES += [("ab", -5.129043102264404 - 4.3), ("x", -12.130167007446289)]
USER_DEFINED = ["(", ")", "bb"]


def numbers():
    rng = random.Random(3)
    texts = ["0", "5", "-5.0", "-12.130167007446289", "-5.129043102264404", "1e3", "1E-3", "-1.5e+2", "123456789012345678901234567890",
             "-0.00000000000000000000012345678901234567890", "18446744073709551615", "18446744073709551616", "1844674407370955161.6",
             "1e308", "1e-320", "4.9e-324", "1e-400", "12345678901234567e-300", "-9.999999999999999999", "2.2250738585072014e-308"]
    texts += [repr(-rng.random() * 15) for _ in range(100)] + ["%.17g" % (-rng.random() * 15) for _ in range(30)]
    model = {"type": "Unigram", "unk_id": None, "vocab": 0}
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, "model": model}
    vocab = "[" + ",".join(f'["t{i}",{text}]' for i, text in enumerate(texts)) + "]"
    read = json.loads(Tokenizer.from_str(json.dumps(file).replace('"vocab": 0', '"vocab": ' + vocab)).to_str())
    return [[text, "%.17g" % score] for text, (_, score) in zip(texts, read["model"]["vocab"])]


def text_of(words, state):
    out = []
    for _ in range(words):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(WORDS[(state >> 33) % len(WORDS)])
    return " ".join(out)


def hash_of(ids):
    total = 0
    for id in ids:
        total = (total * 31 + id + 1) % 2**61
    return total


def make_model():
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    types = proto.SentencePiece
    for text, score, kind in [("<unk>", 0.0, types.UNKNOWN)] + [(*piece, types.NORMAL) for piece in PIECES if piece[0] not in USER_DEFINED] + [
            (text, 0.0, types.USER_DEFINED) for text in USER_DEFINED]:
        proto.pieces.add(piece=text, score=score, type=kind)
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    proto.trainer_spec.vocab_size = len(proto.pieces)
    proto.normalizer_spec.remove_extra_whitespaces = False
    (HERE / "kinds/ties.model").write_bytes(proto.SerializeToString())


def make_json():
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": False}
    vocab = [["<unk>", 0.0]] + [list(piece) for piece in PIECES]
    (HERE / "kinds/ties.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": space,
        "post_processor": None, "decoder": space, "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False}},
        ensure_ascii=False) + "\n")


def processor(name):
    return sentencepiece.SentencePieceProcessor(model_file=str(HERE / "kinds" / name)).encode


def hugging_face(name):
    tokenizer = Tokenizer.from_file(str(HERE / "kinds" / name))
    tokenizer.encode_special_tokens = True
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def main():
    make_model()
    make_json()
    texts = []
    for name, encode in [("ties.model", processor("ties.model")), ("ties.json", hugging_face("ties.json"))]:
        for words, state in [(30, 1), (300, 2), (3000, 3), (12000, 4)]:
            ids = encode(text_of(words, state))
            texts.append({"tokenizer": name, "words": words, "state": state, "ids": len(ids), "hash": str(hash_of(ids))})
    (HERE / "scores.json").write_text(json.dumps({"numbers": numbers(), "words": WORDS, "texts": texts}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
