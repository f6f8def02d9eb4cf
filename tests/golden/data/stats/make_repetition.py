#!/usr/bin/env python3
"""Makes repetition.json: what datatrove's functions for Gopher's rules of repetition give for some texts and for those of
rows.jsonl, and the most frequent runs of five words there. Words are those of make_golden.py, in lower case.

Made with Python 3.11, regex 2026.11.15, datatrove 0.10.1:
    python3 -m venv venv && venv/bin/pip install regex==2026.11.15 datatrove==0.10.1 tokenizers &&
    venv/bin/python make_repetition.py
"""
import collections
import json
import random
import re
from pathlib import Path

from datatrove.pipeline.filters.gopher_repetition_filter import (find_all_duplicate, find_duplicates,
                                                                  find_top_duplicate, get_n_grams)
from make_golden import WORD


def words_of(text):
    return WORD.findall(text.lower())


def shares(text):
    paragraphs, lines = re.split(r"\n{2,}", text.strip("\n")), re.split(r"\n+", text.strip("\n"))
    same_lines, line_characters = find_duplicates(lines)
    same_paragraphs, paragraph_characters = find_duplicates(paragraphs)
    words, size = words_of(text), len(text)
    values = [same_lines / len(lines), same_paragraphs / len(paragraphs), line_characters / size,
              paragraph_characters / size]
    values += [find_top_duplicate(get_n_grams(words, n)) / size if len(words) >= n else 0 for n in (2, 3, 4)]
    return values + [find_all_duplicate(words, n) / size for n in range(5, 11)]


def make_texts():
    rng = random.Random(9)
    words = "the cat sat on a mat and Größe führt zu Ärger, said he; ещё раз".split()
    texts = ["one", "two words", "a b a b a b a b a b a b a b a b", "no line end\n\n\nno line end\nx\n",
             "\n\nfirst paragraph\nof two lines\n\nsecond\n\nfirst paragraph\nof two lines\n\n\n\nsecond\n",
             "same\nsame\nsame\nother\nsame\n" * 3, "天地玄黃宇宙洪荒天地玄黃宇宙洪荒天地玄黃", "?!\n?!\n..."]
    for _ in range(12):
        phrase = [rng.choice(words) for _ in range(rng.randint(3, 14))]
        text = ""
        for _ in range(rng.randint(2, 30)):
            part = phrase if rng.random() < 0.4 else [rng.choice(words) for _ in range(rng.randint(1, 9))]
            text += " ".join(part) + rng.choice([" ", " ", ". ", "\n", "\n\n"])
        texts.append(text)
    return texts


def main():
    folder = Path(__file__).parent
    rows = [json.loads(line)["text"] for line in (folder / "rows.jsonl").read_text().splitlines()]
    ngrams = collections.Counter(gram for row in rows for gram in get_n_grams(words_of(row), 5))
    golden = {"texts": [{"text": text, "shares": shares(text)} for text in make_texts()],
              "rows": [shares(row) for row in rows], "ngrams": sum(ngrams.values()),
              "frequent": sorted(ngrams.values(), reverse=True)[:30],
              "most": [gram for gram, count in ngrams.most_common(10)]}
    (folder / "repetition.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")


main()
