#!/usr/bin/env python3
"""Writes pairs.json: what datasketch and datatrove find among pairs of texts whose similarity is known, and Jaccard
similarities of short texts. `pip install datasketch==2.0.0 datatrove==0.10.1 xxhash==3.6.0 regex
tokenizers`; ./make_dedup.py

Texts of pair p: 104 words that occur nowhere else, so 100 shingles of five words; in the second text the words 4, 9, 14
... are replaced, `changed` of them, each of which takes five shingles away. tests/data/dedup/duplicate_finder_test.cpp
makes the same.
"""
import json
import re
import shutil
import tempfile
from pathlib import Path

import datatrove.pipeline.dedup.minhash as minhash_steps
from datasketch import MinHash, MinHashLSH
from datatrove.data import Document
from datatrove.pipeline.dedup import (MinhashConfig, MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter,
                                      MinhashDedupSignature)
from datatrove.utils.hashing import HashConfig

PAIRS, WORDS, LENGTH, MOST_CHANGED = 150, 104, 5, 7


def word(number):
    letters = ""
    for _ in range(5):
        letters += chr(ord("a") + number % 26)
        number //= 26
    return letters


def text(pair, changed):
    words = [word(2000 * pair + i) for i in range(WORDS)]
    for i in range(changed):
        words[4 + 5 * i] = word(2000 * pair + 1000 + i)
    return " ".join(words)


def shingles(words, length):
    length = min(length, len(words))
    return {tuple(words[i:i + length]) for i in range(len(words) - length + 1)} if words else set()


def jaccard(a, b):
    return len(a & b) / len(a | b)


def minhash(units, permutations):
    hashed = MinHash(num_perm=permutations, seed=7)
    hashed.update_batch([" ".join(unit).encode() for unit in units])
    return hashed


def corpus():
    """[(changed, first text, second text)]: pairs of one `changed` follow each other."""
    return [(changed, text(pair, 0), text(pair, changed))
            for changed in range(1, MOST_CHANGED + 1)
            for pair in range((changed - 1) * PAIRS, changed * PAIRS)]


def by_datasketch(pairs, bands, rows, least=0.0):
    found, estimates = [0] * (MOST_CHANGED + 1), [0.0] * (MOST_CHANGED + 1)
    index = MinHashLSH(num_perm=bands * rows, params=(bands, rows))
    for number, (changed, first, second) in enumerate(pairs):
        a, b = (shingles(t.split(), LENGTH) for t in (first, second))
        x, y = minhash(a, bands * rows), minhash(b, bands * rows)
        estimates[changed] += x.jaccard(y) / PAIRS
        index.insert(str(number), x)
        candidates = index.query(y)
        assert set(candidates) <= {str(number)}, "texts of different pairs have nothing in common"
        found[changed] += bool(candidates) and jaccard(a, b) >= least
    return found, estimates


class Blanks:
    """Words between blanks, in place of a language's tokenizer."""
    def word_tokenize(self, line):
        return line.split()


def by_datatrove(pairs):
    minhash_steps.load_word_tokenizer = lambda language: Blanks()
    folder = Path(tempfile.mkdtemp())
    config = MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="xxhash"))
    documents = [Document(t, str(i)) for i, t in enumerate(t for _, *texts in pairs for t in texts)]
    MinhashDedupSignature(str(folder / "signatures"), config).run(iter(documents), 0, 1)
    for bucket in range(config.num_buckets):
        MinhashDedupBuckets(str(folder / "signatures"), str(folder / "buckets"), config=config).run(
            None, bucket, config.num_buckets)
    MinhashDedupCluster(str(folder / "buckets"), str(folder / "removed"), config=config).run(None, 0, 1)
    kept = MinhashDedupFilter(str(folder / "removed")).run(iter(documents), 0, 1)
    kept = {int(document.id) for document in kept}
    shutil.rmtree(folder)
    found = [0] * (MOST_CHANGED + 1)
    for number, (changed, _, _) in enumerate(pairs):
        found[changed] += (2 * number not in kept) + (2 * number + 1 not in kept)
    return found


def short_texts():
    texts = ["The quick brown fox jumps over the lazy dog; the dog sleeps.",
             "the quick  brown FOX jumped over the lazy dog. The dog sleeps!",
             "Don't stop_me: 3.14 now, don't stop me now.", "\u00dcber die Stra\u00dfe, \u00fcber die Br\u00fccke.",
             "\u00fcber die Br\u00fccke \u2014 \u00fcber die Stra\u00dfe", "one word", "one word", "one", "one two three"]
    rows = []
    for number, first in enumerate(texts):
        for second in texts[number:]:
            words = [re.findall(r"\w+", t.lower()) for t in (first, second)]
            characters = [list(" ".join(w)) for w in words]
            rows.append({"texts": [first, second],
                         "words": [jaccard(*(shingles(w, n) for w in words)) for n in (1, 2, 3, 5)],
                         "characters": [jaccard(*(shingles(c, n) for c in characters)) for n in (1, 2, 3, 5)]})
    return rows


def main():
    pairs = corpus()
    found, estimates = by_datasketch(pairs, 14, 8)
    verified, _ = by_datasketch(pairs, 40, 4, 0.7)
    datatrove = by_datatrove(pairs)
    by_changed = []
    for changed in range(1, MOST_CHANGED + 1):
        _, first, second = pairs[(changed - 1) * PAIRS]
        exact = jaccard(*(shingles(t.split(), LENGTH) for t in (first, second)))
        by_changed.append({"changed": changed, "jaccard": exact, "datasketch_estimate": estimates[changed],
                           "datasketch_found": found[changed], "datasketch_verified": verified[changed],
                           "datatrove_found": datatrove[changed]})
    golden = {"pairs": PAIRS, "words": WORDS, "by_changed": by_changed, "short_texts": short_texts()}
    Path(__file__).with_name("pairs.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


main()
